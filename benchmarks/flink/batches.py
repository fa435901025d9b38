"""The coordinator on the replay: batches of the landings of an interval, with the calls of the Spark client.

A batch begins and commits at the end of its interval. The duration of a batch in Spark is not included. A row is late
if the pinned watermark of its batch has closed the hour of the row. An interval without landings is a batch without
rows, which is the same evidence of silence as a heartbeat.
"""

import http.client
import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from benchmarks.flink.clocked import ClockedCoordinator
from benchmarks.flink.replay import HOUR_MS, MINUTE_MS, Flight, Outcome, Replay
from tidegate_spark import JobConfig

INTERVALS = (60, 15, 5)
"""Intervals of batches, in minutes."""
TICK_MS = 5 * MINUTE_MS
"""Step of the clock. The watermark is read at each step, so each delay is up to one step too long."""
QUERY = "departures"
_RUN = {"query_id": "checkpoint", "run_id": "run"}
_THREADS = 4


@dataclass(frozen=True, slots=True)
class Case:
    """A job configuration, and the interval of its batches in minutes."""

    name: str
    minutes: int
    config: JobConfig = field(hash=False)

    @property
    def interval_ms(self) -> int:
        """Interval of the batches in milliseconds."""
        return self.minutes * MINUTE_MS


def batches_of(replay: Replay, interval_ms: int) -> dict[int, list[Flight]]:
    """Return the flights of each batch by the end of its interval; an interval without landings is missing."""
    found: dict[int, list[Flight]] = {}
    for flight in replay.flights:
        interval = (flight.landed_ms - replay.start_ms) // interval_ms
        found.setdefault(replay.start_ms + (interval + 1) * interval_ms, []).append(flight)
    return found


class JobRun:
    """The run of one job over the replay.

    Attributes:
        name: Name of the job.
        case: The case.
        landed: The flights of each batch, by the end of its interval.
    """

    def __init__(self, port: int, number: int, case: Case, replay: Replay) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self.name, self.case, self._replay = f"case-{number}", case, replay
        self._path = f"/v1/jobs/{self.name}"
        self.landed = batches_of(replay, case.interval_ms)
        self._open_ms = list(reversed(replay.window_ends_ms))
        self._closed_ms: dict[int, int] = {}
        self._batches = 0
        self._call("PUT", self._path, case.config, {"If-None-Match": "*"})
        declared = {"query": QUERY, "substreams": replay.destinations, "reason": "the destinations of the replay"}
        self._call("POST", f"{self._path}:declare", declared)

    def advance(self, now_ms: int) -> None:
        """Run a batch if an interval ends now, and note the hours that close."""
        self.read_watermark(now_ms)
        if (now_ms - self._replay.start_ms) % self.case.interval_ms:
            return
        self.note_closed(now_ms, self._batch(self.landed.get(now_ms, []))["watermark"])

    def read_watermark(self, now_ms: int) -> None:
        """Read the watermark, which also applies timeouts, and note the hours that close."""
        self.note_closed(now_ms, self._call("GET", f"{self._path}/watermark")["watermark"])

    def _batch(self, flights: Sequence[Flight]) -> dict[str, Any]:
        path = f"{self._path}/queries/{QUERY}/batches/{self._batches}"
        pinned = self._call("PUT", path, _RUN)["pinned_watermark"]
        rows = Counter(flight.destination for flight in flights)
        highest_ms: dict[str, int] = {}
        for flight in flights:
            highest_ms[flight.destination] = max(flight.departed_ms, highest_ms.get(flight.destination, 0))
        late = Counter(one.destination for one in flights if pinned is not None and one.window_end_ms <= pinned)
        names = list(rows)
        reference = _RUN | {"query": QUERY, "batch_id": self._batches, "partition": 0}
        report = {"substreams": names, "max_event_times": [highest_ms[name] for name in names]}
        report["counts"] = [rows[name] for name in names]
        if flights:
            self._call("POST", f"{self._path}:report", report | {"batch": reference})
        counts = {"substreams": names, "on_time": [rows[name] - late[name] for name in names]}
        counts |= {"late": [late[name] for name in names], "null_event_time": [0] * len(names)}
        self._batches += 1
        return self._call("POST", f"{path}:commit", _RUN | {"rows": counts, "reported": len(names)})

    def note_closed(self, now_ms: int, watermark: int | None) -> None:
        """Note the hours that a watermark closes."""
        while watermark is not None and self._open_ms and self._open_ms[-1] <= watermark:
            self._closed_ms[self._open_ms.pop()] = now_ms

    def end(self) -> Outcome:
        """Return the outcome.

        Raises:
            RuntimeError: If the coordinator has counted more rows or fewer.
        """
        counted = self._call("GET", self._path)["rows"]
        self._http.close()
        if counted["on_time"] + counted["late"] != len(self._replay.flights):
            raise RuntimeError(f"{self.case.name}: expected {len(self._replay.flights)} rows, counted {counted}.")
        left = dict.fromkeys(self._open_ms, self._replay.end_ms)
        return Outcome(counted["late"], self._closed_ms | left)

    def _call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> dict[str, Any]:
        sent = None if body is None else json.dumps(body)
        self._http.request(method, path, sent, {"Content-Type": "application/json"} | (headers or {}))
        response = self._http.getresponse()
        content = response.read()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: expected 2xx, got {response.status}: {content.decode()}")
        answer: dict[str, Any] = json.loads(content)
        return answer


def measure(
    coordinator: ClockedCoordinator, replay: Replay, cases: Sequence[Case], show: Callable[[str], None]
) -> list[Outcome]:
    """Run all cases side by side on one clock, and return their outcomes in this order."""
    runs = [JobRun(coordinator.port, number, case, replay) for number, case in enumerate(cases)]
    with ThreadPoolExecutor(_THREADS) as threads:
        for now_ms in range(replay.start_ms + TICK_MS, replay.end_ms + 1, TICK_MS):
            coordinator.now_ms = now_ms
            # The clock moves on when all jobs are done with this step.
            list(threads.map(lambda run, at_ms=now_ms: run.advance(at_ms), runs))
            if (now_ms - replay.start_ms) % (24 * HOUR_MS) == 0:
                show(f"  coordinator: day {(now_ms - replay.start_ms) // (24 * HOUR_MS)}")
    return [run.end() for run in runs]
