"""The cost of a whole batch for the coordinator and Redis. docs/how-to/deploy.md has the results.

The benchmark begins a batch, sends the reports of two tasks, and commits the batch with counts by substream and hour.
Each substream has a row in each batch. The cost is processor time, which depends less on other load than elapsed time.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
from redis import Redis

from benchmarks.paired import interleave
from benchmarks.processes import processor_s
from benchmarks.results import Row, Spread
from tidegate.domain.completeness import HOUR
from tidegate_spark.testing import CoordinatorProcess

BATCHES = {1: 100, 100: 50, 1_000: 10, 10_000: 3}
"""Number of batches in a round, by number of substreams."""
TARGETS = {1: (1.2, 0.4), 100: (2.5, 1.2), 10_000: (100, 80)}
"""Maximum processor time of the coordinator and of Redis, in milliseconds per batch, by number of substreams."""
BATCHES_OF_A_SMALL_JOB = 400
TASKS = 2
STREAMS = 1_000
CONFIG = {"policy": {"type": "limiting_lag", "lag_ms": 0}, "max_future_skew_ms": None}
_RUN = {"query_id": "checkpoint", "run_id": "run"}


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor time of a batch in milliseconds."""

    coordinator_ms: float
    redis_ms: float


class Bench:
    """A coordinator with jobs of several sizes."""

    def __init__(self, process: CoordinatorProcess) -> None:
        self.coordinator = psutil.Process(process.pid)
        (self.valkey,) = self.coordinator.children()
        self.redis = Redis(unix_socket_path=str(process.data_dir / "valkey.sock"))
        self.http = httpx.Client(base_url=process.url, timeout=120)
        self._batches: dict[str, int] = {}

    def run(self, job: str, substreams: int, batches: int) -> None:
        """Run the next batches of a job. Create the job if it does not exist."""
        if job not in self._batches:
            self._call("PUT", f"/v1/jobs/{job}", CONFIG, {"If-None-Match": "*"})
            self._batches[job] = 0
        for _ in range(batches):
            self._batch(job, self._batches[job], [f"substream-{number:06}" for number in range(substreams)])
            self._batches[job] += 1

    def _batch(self, job: str, number: int, names: list[str]) -> None:
        path = f"/v1/jobs/{job}/queries/q/batches/{number}"
        event_time = HOUR * 400_000 + number * 1000
        self._call("PUT", path, _RUN)
        for task in range(TASKS):
            some = names[task::TASKS]
            reference = _RUN | {"query": "q", "batch_id": number, "partition": task}
            body = {"substreams": some, "max_event_times": [event_time] * len(some), "counts": [1] * len(some)}
            if some:
                self._call("POST", f"/v1/jobs/{job}:report", body | {"batch": reference})
        none = [0] * len(names)
        rows = {
            "substreams": names,
            "on_time": [1] * len(names),
            "late": none,
            "null_event_time": none,
            "hours": [[[event_time // HOUR, 1, 0, 0]]] * len(names),
        }
        self._call("POST", f"{path}:commit", _RUN | {"rows": rows})

    def measure(self, substreams: int) -> Cost:
        """Return the cost of a batch, and check that all rows are counted."""
        job, batches = f"of-{substreams}", BATCHES[substreams]
        before = [processor_s(process) for process in (self.coordinator, self.valkey)]
        self.run(job, substreams, batches)
        after = [processor_s(process) for process in (self.coordinator, self.valkey)]
        rows = self.http.get(f"/v1/jobs/{job}").json()["rows"]
        assert rows["on_time"] == self._batches[job] * substreams, rows
        return Cost(*(1000 * (end - begin) / batches for begin, end in zip(before, after, strict=True)))

    def memory_of_a_small_job(self) -> float:
        """Return the bytes that a job with one substream takes in Redis after its batches."""
        self.run("small", 1, BATCHES_OF_A_SMALL_JOB)
        keys = self.redis.scan_iter("*{small}*")
        return float(sum(self.redis.memory_usage(key, samples=0) or 0 for key in keys))

    def memory_of_a_stream(self) -> float:
        """Return the bytes that an open event stream takes in the coordinator."""
        before = self.coordinator.memory_info().rss
        limits = httpx.Limits(max_connections=None)
        with httpx.Client(base_url=self.http.base_url, timeout=60, limits=limits) as client:
            requests = [client.build_request("GET", "/v1/jobs/of-1/watermark:watch") for _ in range(STREAMS)]
            streams = [client.send(request, stream=True) for request in requests]
            for stream in streams:
                next(stream.iter_raw())
            after = self.coordinator.memory_info().rss
            for stream in streams:
                stream.close()
        return (after - before) / STREAMS

    def close(self) -> None:
        """Close the connections."""
        self.http.close()
        self.redis.close()

    def _call(self, method: str, path: str, body: Any, headers: dict[str, str] | None = None) -> None:
        self.http.request(method, path, json=body, headers=headers).raise_for_status()


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Measure batches of each size, and the memory of jobs and event streams."""
    with CoordinatorProcess(out / f"batches-{time.time_ns()}", max_body_bytes=str(64 * 1024 * 1024)) as process:
        bench = Bench(process)
        start = bench.coordinator.memory_info().rss
        small = bench.memory_of_a_small_job()
        costs = interleave({size: partial(bench.measure, size) for size in BATCHES}, rounds, show)
        stream = bench.memory_of_a_stream()
        bench.close()
    rows = [
        Row("memory of a job with one substream after 400 batches", Spread.of([small / 1000]), "KB", at_most=100),
        Row("memory of a coordinator after its start", Spread.of([start / 1e6]), "MB"),
        Row("memory of an open event stream", Spread.of([stream / 1000]), "KB"),
    ]
    for size, found in costs.items():
        coordinator, redis = TARGETS.get(size, (None, None))
        figures = Spread.of(cost.coordinator_ms for cost in found)
        rows.append(Row(f"batch of {size:,} substreams: coordinator", figures, "ms", at_most=coordinator))
        rows.append(
            Row(f"batch of {size:,} substreams: Redis", Spread.of(cost.redis_ms for cost in found), "ms", at_most=redis)
        )
    return rows
