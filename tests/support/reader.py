"""A reader of a pipeline's results in its own process: ``python -m tests.support.reader URL JOB DIRECTORY``.

The reader polls the written watermark of the job. Each time it has moved, the reader notes which results it finds: a
line of JSON with the written watermark, and the files in ``DIRECTORY/out``.
"""

import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.waiting import until

NOTES = "reader.jsonl"
POLL_S = 0.002


@contextmanager
def reading(url: str, job: str, directory: Path) -> Iterator[None]:
    """Read the results of a pipeline while the block runs, from a process of its own."""
    arguments = [sys.executable, "-m", "tests.support.reader", url, job, str(directory)]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert process.stdin is not None
    until((directory / NOTES).exists, "the reader reads")
    try:
        yield
    finally:
        process.stdin.close()
        status = process.wait(60)
    assert status == 0, "the reader has failed"


def check(directory: Path, key: Callable[[Any], Any], end: Callable[[Any], int]) -> int:
    """Check that the reader has missed no result; return the number of written watermarks that it has seen.

    A window that a row reaches after the window has closed is an update, for which no reader waits.

    Args:
        directory: The folder of the pipeline.
        key: Returns what identifies a row of the function for on-time rows or windows.
        end: Returns the written watermark from which a reader must find such a row.
    """
    calls = {path.name: json.loads(path.read_text()) for path in (directory / "out").glob("on_time*.json")}
    pinned = {name: call["pinned_watermark"] for name, call in calls.items()}
    ends = {
        key(row): end(row)
        for name, call in calls.items()
        for row in call["rows"]
        if pinned[name] is None or end(row) > pinned[name]
    }
    notes = [json.loads(line) for line in (directory / NOTES).read_text().splitlines()]
    seen = [note for note in notes if note["written"] is not None]
    for note in seen:
        found = {key(row) for name in note["files"] if name in calls for row in calls[name]["rows"]}
        missed = {one for one, at in ends.items() if at <= note["written"]} - found
        assert not missed, f"at the written watermark {note['written']}, the reader missed {missed}"
    written = [note["written"] for note in seen]
    assert written == sorted(written), "it does not move back"
    return len(seen)


def main() -> None:
    """Read until the standard input ends."""
    url, job, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    before = None
    with (directory / NOTES).open("a") as notes, httpx.Client(timeout=60) as client:
        while True:
            has_ended, _, _ = select.select([sys.stdin], [], [], 0)
            written = _written(client.get(f"{url}/v1/jobs/{job}/watermark"))
            if written != before:
                before = written
                files = sorted(path.name for path in (directory / "out").glob("*.json"))
                print(json.dumps({"written": written, "files": files}), file=notes, flush=True)
            if has_ended:
                return
            time.sleep(POLL_S)


def _written(answer: httpx.Response) -> int | None:
    if answer.status_code == 404:  # the job does not exist before the first start of the query
        return None
    written: int | None = answer.raise_for_status().json()["written_watermark"]
    return written


if __name__ == "__main__":
    main()
