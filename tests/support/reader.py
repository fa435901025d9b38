"""A reader of a pipeline's results in its own process: ``python -m tests.support.reader URL JOB DIRECTORY [TABLE]``.

The reader polls the written watermark of the job, and its frames. Each time one of them has changed, the reader notes
which results it finds: a line of JSON with the written watermark, the finished frames with the rows that their
generations count, and the files in ``DIRECTORY/out``; or the rows of the table of Delta Lake at the path ``TABLE``.
"""

import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from deltalake import DeltaTable

from tests.support.lake import delta_rows
from tests.support.waiting import until

NOTES = "reader.jsonl"
POLL_S = 0.002


@contextmanager
def reading(url: str, job: str, directory: Path, table: str | None = None) -> Iterator[None]:
    """Read the results of a pipeline while the block runs, from a process of its own."""
    arguments = [sys.executable, "-m", "tests.support.reader", url, job, str(directory)]
    arguments += [] if table is None else [table]
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
        found = {key(row) for row in _found(note, calls)[0]}
        missed = {one for one, at in ends.items() if at <= note["written"]} - found
        assert not missed, f"at the written watermark {note['written']}, the reader missed {missed}"
    written = [note["written"] for note in seen]
    assert written == sorted(written), "it does not move back"
    return len(seen)


def check_frames(directory: Path, size_of: Callable[[Any], tuple[Any, int, int]]) -> tuple[int, int]:
    """Check that the reader has found the rows of each generation when it saw it.

    Return the number of frames with rows that it has seen, and the number of corrections.

    Args:
        directory: The folder of the pipeline.
        size_of: Returns, for a row of the function for on-time rows or windows, what identifies it, a time in its
            frame, and its number of rows. A later value replaces an earlier one.
    """
    calls = {path.name: json.loads(path.read_text()) for path in (directory / "out").glob("*.json")}
    seen, corrections = set(), set()
    for note in (json.loads(line) for line in (directory / NOTES).read_text().splitlines()):
        sizes: dict[Any, tuple[int, int]] = {}
        results, late = _found(note, calls)
        for key, at, size in map(size_of, results):
            sizes[key] = at, max(size, sizes.get(key, (0, 0))[1])
        for start, end, generation, rows, diverted in note["frames"]:
            found = sum(size for at, size in sizes.values() if start <= at < end)
            found_late = sum(start <= row[1] < end for row in late)
            shown = f"generation {generation} of the frame at {start}"
            assert found >= rows, f"{shown} has {rows} rows, and the reader found {found}"
            assert found_late >= diverted, f"{shown} has {diverted} late rows, and the reader found {found_late}"
            seen.add(start)
            corrections |= {(start, generation)} if generation > 1 else set()
    return len(seen), len(corrections)


def _found(note: Mapping[str, Any], calls: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the rows and the late rows that the reader has found, those of several attempts once."""
    if "rows" in note:
        late = {tuple(row) for *row, kind in note["rows"] if kind == "late"}
        return [row for *row, kind in note["rows"] if kind == "on_time"], [*late]
    results, late_of_batch = list[Any](), dict[int, list[Any]]()
    for name in note["files"]:
        if name in calls and name.startswith("late"):
            late_of_batch[calls[name]["batch"]] = calls[name]["rows"]
        elif name in calls:
            results += calls[name]["rows"]
    return results, [row for rows in late_of_batch.values() for row in rows]


def main() -> None:
    """Read until the standard input ends."""
    url, job, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    before: tuple[int | None, list[list[int]]] | None = None
    with (directory / NOTES).open("a") as notes, httpx.Client(timeout=60) as client:
        while True:
            has_ended, _, _ = select.select([sys.stdin], [], [], 0)
            written = _written(client.get(f"{url}/v1/jobs/{job}/watermark"))
            frames = _finished(client.get(f"{url}/v1/jobs/{job}/frames", params={"limit": 1000}))
            if (written, frames) != before:
                before = written, frames
                found = _rows(sys.argv[4]) if len(sys.argv) > 4 else _files(directory)
                print(json.dumps({"written": written, "frames": frames, **found}), file=notes, flush=True)
            if has_ended:
                return
            time.sleep(POLL_S)


def _files(directory: Path) -> dict[str, Any]:
    return {"files": sorted(path.name for path in (directory / "out").glob("*.json"))}


def _rows(table: str) -> dict[str, Any]:
    if not DeltaTable.is_deltatable(table):
        return {"rows": []}
    return {"rows": [[*row.values()] for row in delta_rows(table)]}


def _written(answer: httpx.Response) -> int | None:
    if answer.status_code == 404:  # the job does not exist before the first start of the query
        return None
    written: int | None = answer.raise_for_status().json()["written_watermark"]
    return written


def _finished(answer: httpx.Response) -> list[list[int]]:
    """Return each finished frame with rows: its bounds, its generation, and what its generations count.

    These are the rows of results, and the late rows.
    """
    if answer.status_code == 404:
        return []
    found = []
    for frame in answer.raise_for_status().json()["frames"]:
        rows = [each["rows"] for each in frame["generations"]]
        of_results = sum(each["on_time"] + each["updated"] for each in rows)
        diverted = sum(each["diverted"] for each in rows)
        if frame["generation"] is not None and of_results + diverted:
            found.append([frame["start"], frame["end"], frame["generation"], of_results, diverted])
    return found


if __name__ == "__main__":
    main()
