"""CPU time and memory of the coordinator and its Redis. docs/deploy.md has the results.

CPU time depends less on other load than elapsed time. A batch is begun, reported by two tasks, and committed with
counts by substream and hour. Each substream has a row in each batch.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from redis import Redis

from tidegate.domain.ledger import HOUR
from tidegate_spark.testing import CoordinatorProcess

BATCHES = {1: 400, 100: 200, 1_000: 60, 10_000: 12}
"""Number of measured batches by number of substreams. Before them, a quarter as many batches run as a warm-up."""
TASKS = 2
STREAMS = 1_000
_RUN = {"query_id": "checkpoint", "run_id": "run"}


@dataclass(frozen=True)
class Batch:
    """The resources of a batch.

    Attributes:
        substreams: Number of substreams.
        coordinator_ms: CPU time of the coordinator per batch, in milliseconds.
        redis_ms: CPU time of Redis per batch, in milliseconds.
        redis_bytes: Memory of Redis per substream, in bytes.
    """

    substreams: int
    coordinator_ms: float
    redis_ms: float
    redis_bytes: float

    def __str__(self) -> str:
        return (
            f"  {self.substreams:>6,} substreams: CPU time per batch {self.coordinator_ms:.1f} ms (coordinator) and "
            f"{self.redis_ms:.1f} ms (Redis); memory of Redis per substream {self.redis_bytes:,.0f} bytes"
        )


@dataclass(frozen=True)
class Sizes:
    """The results of all measurements.

    Attributes:
        batches: The resources of batches.
        empty_mb: Memory of a coordinator after its start, in MB.
        stream_kb: Memory of the coordinator per open event stream, in KB.
    """

    batches: list[Batch]
    empty_mb: float
    stream_kb: float


class Bench:
    def __init__(self, process: CoordinatorProcess) -> None:
        self.coordinator = psutil.Process(process.pid)
        (self.valkey,) = self.coordinator.children()
        self.redis = Redis(unix_socket_path=str(process.data_dir / "valkey.sock"))
        self.http = httpx.Client(base_url=process.url, timeout=120)

    def memory(self) -> int:
        return int(self.redis.info("memory")["used_memory"])

    def batch(self, job: str, number: int, names: list[str]) -> None:
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
            "rule": "row",
            "substreams": names,
            "on_time": [1] * len(names),
            "late": none,
            "null_event_time": none,
            "hours": [[[event_time // HOUR, 1, 0, 0]]] * len(names),
        }
        self._call("POST", f"{path}:commit", _RUN | {"rows": rows})

    def measure(self, substreams: int, batches: int) -> Batch:
        job, before = f"of-{substreams}", self.memory()
        names = [f"substream-{number}" for number in range(substreams)]
        config = {"policy": {"type": "limiting_lag", "lag_ms": 0}, "max_future_skew_ms": None}
        self._call("PUT", f"/v1/jobs/{job}", config, {"If-None-Match": "*"})
        warming = batches // 4
        for number in range(warming):
            self.batch(job, number, names)
        began = [processor_s(process) for process in (self.coordinator, self.valkey)]
        for number in range(warming, warming + batches):
            self.batch(job, number, names)
        ended = [processor_s(process) for process in (self.coordinator, self.valkey)]
        ours, redis = (1000 * (after - earlier) / batches for earlier, after in zip(began, ended, strict=True))
        return Batch(substreams, ours, redis, (self.memory() - before) / substreams)

    def streams(self) -> float:
        """Return the memory of the coordinator per open event stream, in bytes."""
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

    def _call(self, method: str, path: str, body: Any, headers: dict[str, str] | None = None) -> None:
        self.http.request(method, path, json=body, headers=headers).raise_for_status()


def processor_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def run(out: Path, show: Callable[[str], None]) -> Sizes:
    with CoordinatorProcess(out / f"sizing-{time.time_ns()}", max_body_bytes=str(64 * 1024 * 1024)) as process:
        bench = Bench(process)
        empty = bench.coordinator.memory_info().rss
        found = []
        for substreams, batches in BATCHES.items():
            found.append(bench.measure(substreams, batches))
            show(str(found[-1]))
        sizes = Sizes(found, empty / 1e6, bench.streams() / 1e3)
        bench.http.close()
        bench.redis.close()
    show(f"  memory of the coordinator: {sizes.empty_mb:.0f} MB, and {sizes.stream_kb:.0f} KB per open event stream")
    return sizes
