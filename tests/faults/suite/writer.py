"""``python -m tests.faults.suite.writer settings.json``: a query without Spark, in a process that may be killed.

The process runs batches with the client's protocol and its real files, in the order in which Spark runs them: plan,
begin, report, commit, finish. The plan of a batch names its rows, so that a replay has the same rows. The process ends
at the end of its standard input. An error of the client is written to the file ``errors``.
"""

import json
import math
import os
import random
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.faults.suite.history import Recorder
from tests.faults.suite.plan import JITTER_MS, event_time
from tests.faults.suite.transport import RecordedTransport
from tidegate_spark.clock import SYSTEM_CLOCK
from tidegate_spark.config import JobConfig
from tidegate_spark.errors import CoordinatorUnavailable, Refused, TidegateError
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.protocol.connection import JobConnection
from tidegate_spark.protocol.fold import Fold, slot_of
from tidegate_spark.protocol.retry import OnOutage
from tidegate_spark.protocol.session import DriverSession
from tidegate_spark.protocol.settings import QuerySettings

ON_OUTAGE = timedelta(seconds=10)
PAUSE_S = 0.4
PROCESSING_S = 0.8
"""Longest time between the reports and the commit of a batch."""
ROWS = 20
WRITTEN = "written.json"
"""File in the checkpoint with the end of the windows that the query has written."""


@dataclass(frozen=True)
class Settings:
    """The settings of a process.

    Attributes:
        client: Name of this process in the history.
        start: Monotonic time of the start of the run.
        seed: Draws rows and pauses.
        continues: Whether batches continue without the coordinator (``on_outage="continue"``).
        has_windows: Whether the query writes windows after the commit of their rows, and tells that they are written.
    """

    client: str
    job: str
    query: str
    substreams: list[str]
    config: JobConfig
    urls: list[str]
    history: str
    checkpoint: str
    start: float
    seed: int
    continues: bool = False
    has_windows: bool = False


class Writer:
    """One run of a query."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._rng = settings, random.Random(settings.seed)
        self._directory = Path(settings.checkpoint)
        recorder = Recorder(Path(settings.history), settings.client)

        def transport(url: str, headers: dict[str, str]) -> RecordedTransport:
            return RecordedTransport(settings.urls, headers, recorder, random.Random(settings.seed))

        on_outage = OnOutage.of("continue" if settings.continues else ON_OUTAGE)
        connection = JobConnection(
            settings.urls[0], settings.job, None, settings.config, on_outage, SYSTEM_CLOCK, transport
        )
        query = QuerySettings(connection, settings.query, tuple(settings.substreams), tells_output=settings.has_windows)
        self._session = DriverSession(query, Checkpoint(settings.checkpoint))

    def run(self, batches: float = math.inf) -> None:
        """Run this number of batches, unless the process is killed or the client raises an error."""
        protocol = self._session.protocol
        self._session.run(protocol.start())
        while batches > 0:
            batches -= 1
            batch = self._run_batch()
            if self._rng.random() < 0.5:
                with suppress(CoordinatorUnavailable):  # the next heartbeat carries newer evidence
                    self._session.run(protocol.heartbeat(0.0, batch))
            time.sleep(self._rng.uniform(PAUSE_S / 2, PAUSE_S))

    def _run_batch(self) -> int:
        batch, rows = self._plan()
        session, protocol = self._session, self._session.protocol
        closed = self._closed_before(batch)
        session.calls.output_watermark = closed
        opened = session.run(protocol.begin(batch))
        fold = fold_of(rows, opened.stored.pinned_watermark, slot_of(self._settings.config))
        session.run(protocol.report(opened, fold))
        time.sleep(self._rng.uniform(0, PROCESSING_S))  # the user's function: the watermark may move, or a fault begin
        answer = session.run(protocol.commit(opened, fold))
        if self._settings.has_windows and answer is not None:
            time.sleep(self._rng.uniform(0, PROCESSING_S))  # the user's function for windows
            written = max((each for each in (closed, answer["coalesced_watermark"]) if each is not None), default=None)
            self._write(batch, closed, written)
            session.run(protocol.wrote(written, batch))
        (self._directory / "commits" / str(batch)).write_text("v1\n{}")
        return batch

    def _closed_before(self, batch: int) -> int | None:
        """Return the end of the windows that the batches before a batch have written."""
        path = self._directory / WRITTEN
        if not path.exists():
            return None
        of_batch, before, written = json.loads(path.read_text())
        closed: int | None = before if of_batch == batch else written
        return closed

    def _write(self, batch: int, before: int | None, written: int | None) -> None:
        new = self._directory / f".{WRITTEN}.{os.getpid()}"
        new.write_text(json.dumps([batch, before, written]))
        new.rename(self._directory / WRITTEN)

    def _plan(self) -> tuple[int, dict[str, list[int]]]:
        """Return the next batch and the event times of its rows by substream; write them to Spark's log if new."""
        offsets = self._directory / "offsets"
        planned = max((int(path.name) for path in offsets.iterdir() if path.name.isdecimal()), default=-1)
        is_finished = planned == -1 or (self._directory / "commits" / str(planned)).exists()
        batch = planned + 1 if is_finished else planned
        path = offsets / str(batch)
        if not path.exists():
            now = event_time(time.monotonic() - self._settings.start)
            rows = {name: self._times(now) for name in self._settings.substreams}
            metadata = json.dumps({"batchTimestampMs": int(1000 * time.time())})
            written = offsets / f".{batch}.{os.getpid()}"
            written.write_text(f"v1\n{metadata}\n{json.dumps(rows)}")
            with suppress(FileExistsError):  # another run on this checkpoint has planned the batch
                os.link(written, path)
            written.unlink()
        return batch, json.loads(path.read_text().splitlines()[2])

    def _times(self, now: int) -> list[int]:
        return [now - self._rng.randrange(JITTER_MS)] + [now - self._rng.randrange(20_000) for _ in range(ROWS)]


def fold_of(rows: Mapping[str, list[int]], pinned_watermark: int | None, slot: int | None) -> Fold:
    """Return the fold of a batch whose rows have these event times, in slots of this length (None: no slots)."""

    def is_late(at: int) -> bool:
        return pinned_watermark is not None and at < pinned_watermark

    late = [sum(map(is_late, times)) for times in rows.values()]
    slots: dict[int, list[int]] = {}
    for at in (at for times in rows.values() for at in times):
        counts = slots.setdefault(at // (slot or 1), [0, 0, 0])
        counts[0] += 1
        counts[2] += is_late(at)
    none = [0] * len(rows)
    names, count = list(rows), [len(times) for times in rows.values()]
    return Fold(
        names,
        [max(times) for times in rows.values()],
        count,
        none,
        late,
        none,
        none,
        slot=slot,
        slots=[] if slot is None else [[number, *counts] for number, counts in sorted(slots.items())],
    )


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def main() -> int:
    """Run the query that the settings name; return 0 if the coordinator was unavailable, 1 after another error."""
    settings = Settings(**json.loads(Path(sys.argv[1]).read_text()))
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        Writer(settings).run()
    except CoordinatorUnavailable:
        return 0
    except TidegateError as error:
        code = error.code if isinstance(error, Refused) else type(error).__name__
        found: dict[str, Any] = {"client": settings.client, "at": time.monotonic(), "code": code, "text": str(error)}
        with open(Path(settings.history) / "errors", "a") as file:
            file.write(json.dumps(found) + "\n")
        return 1
    return 1


if __name__ == "__main__":
    sys.exit(main())
