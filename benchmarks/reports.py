"""The cost of a report: rates and processor times, compared with the servers of :mod:`benchmarks.peers`.

``k`` is the number of substreams in a report. After each load, the watermark must be that of the Python machine.
"""

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import psutil

from benchmarks.load import request_bytes, send
from benchmarks.paired import interleave
from benchmarks.peers import serving
from benchmarks.processes import family_s, processor_s
from benchmarks.results import Row, Spread, ratios
from tidegate.domain import commands
from tidegate.domain.config import JobConfig
from tidegate.domain.job import JobState
from tidegate.domain.policies import LimitingLag
from tidegate_spark.testing import CoordinatorProcess

SUBSTREAMS = 1_000
NAMES = 100_000
SECONDS = 5.0
START = 1_700_000_000_000
CONFIG = {"policy": {"type": "limiting_lag", "lag_ms": 0}, "max_future_skew_ms": None}


@dataclass(frozen=True)
class Cell:
    """One load on one server: ``k`` substreams per report, on ``connections`` connections."""

    server: str
    k: int
    connections: int


@dataclass(frozen=True)
class Cost:
    """One measurement of a cell: answers per second, and processor time per report in microseconds."""

    rate: float
    app_us: float
    store_us: float
    p99_ms: float


class Reports:
    """Reports whose event times advance. Each report has the ``k`` substreams that were reported longest ago.

    Each report thus raises the minimum, which is the most expensive case.
    """

    def __init__(self, k: int, substreams: int) -> None:
        names = random.Random(k).sample(range(NAMES), max(k, substreams // k * k))
        self._groups = [[f"substream-{number:06}" for number in names[at : at + k]] for at in range(0, len(names), k)]
        self._encoded = [json.dumps(group, separators=(",", ":")) for group in self._groups]
        self._k, self.sent = k, 0

    def all_at_once(self) -> dict[str, list[object]]:
        """Return the body of a first report of all substreams."""
        names = [name for group in self._groups for name in group]
        return {"substreams": [*names], "max_event_times": [START] * len(names)}

    def to(self, url: str, job: str, headers: str = "") -> Iterator[bytes]:
        """Yield requests without end, with further header lines."""
        path = f"/v1/jobs/{job}:report"
        while True:
            self.sent += 1
            times = ",".join([str(START + self.sent)] * self._k)
            names = self._encoded[self.sent % len(self._encoded)]
            body = f'{{"substreams":{names},"max_event_times":[{times}]}}'
            yield request_bytes(url, path, body.encode(), headers)

    def expected_watermark(self) -> int | None:
        """Return the watermark that the Python machine has after the reports that were sent."""
        first = max(0, self.sent - len(self._groups) + 1)
        times = {name: START for group in self._groups for name in group}
        for sent in range(first, self.sent + 1):
            times |= dict.fromkeys(self._groups[sent % len(self._groups)], START + sent)
        machine = JobState(JobConfig(LimitingLag(0)), 0)
        commands.create(machine)
        commands.report(machine, times, 0)
        return machine.watermark


class Server:
    """A server with one job for each value of ``k``.

    Args:
        name: Name of the server, and prefix of the names of its jobs.
        url: Address of the server.
        pid: Id of its process.
        coordinator: The coordinator that has the jobs; None if the server keeps no state.
        substreams: Number of substreams of each job.
        store: The process that keeps the state; by default, the Redis of the coordinator.
    """

    def __init__(
        self,
        name: str,
        url: str,
        pid: int,
        coordinator: CoordinatorProcess | None,
        substreams: int = SUBSTREAMS,
        store: psutil.Process | None = None,
    ) -> None:
        self._name, self._url, self._app = name, url, psutil.Process(pid)
        self._coordinator, self._substreams = coordinator, substreams
        self._store = psutil.Process(coordinator.pid).children()[0] if coordinator else store
        self._reports: dict[int, Reports] = {}

    def measure(self, cell: Cell) -> Cost:
        """Run a load, and check the watermark after it.

        Raises:
            AssertionError: If the watermark is not that of the Python machine.
        """
        job = f"{self._name}-{cell.k}"
        if cell.k not in self._reports:
            self._reports[cell.k] = self._prepare(job, cell.k)
        reports = self._reports[cell.k]
        before = self._processor_s()
        load = send(self._url, reports.to(self._url, job), cell.connections, SECONDS)
        app_us, store_us = (
            1e6 * (end - begin) / load.count for begin, end in zip(before, self._processor_s(), strict=True)
        )
        self._check(job, reports)
        return Cost(load.rate, app_us, store_us, load.percentile_ms(99))

    def _processor_s(self) -> tuple[float, float]:
        return processor_s(self._app), family_s(self._store) if self._store else 0.0

    def _prepare(self, job: str, k: int) -> Reports:
        reports = Reports(k, self._substreams)
        if self._coordinator:
            with httpx.Client(base_url=self._coordinator.url, timeout=60) as http:
                http.put(f"/v1/jobs/{job}", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
                http.post(f"/v1/jobs/{job}:report", json=reports.all_at_once()).raise_for_status()
        return reports

    def _check(self, job: str, reports: Reports) -> None:
        if self._coordinator:
            watermark = httpx.get(f"{self._coordinator.url}/v1/jobs/{job}", timeout=60).json()["watermark"]
            expected = reports.expected_watermark()
            assert watermark == expected, f"{job}: the watermark is {watermark}, expected {expected}"


FASTAPI, AGAIN, OURS, AWAITED, ECHO = "FastAPI", "FastAPI again", "coordinator", "awaited", "echo"
"""FastAPI without Redis (measured twice), the coordinator, FastAPI that awaits one call of the coordinator's function
for each request, and an ASGI application that answers with the request."""
APPS = {FASTAPI: "fastapi_app", AGAIN: "fastapi_app", AWAITED: "awaited_app", ECHO: "echo_app"}
CELLS = (
    *(Cell(server, 1, 16) for server in (FASTAPI, AGAIN, OURS, ECHO)),
    *(Cell(server, 1, 64) for server in (FASTAPI, OURS, AWAITED)),
    *(Cell(server, 100, 16) for server in (FASTAPI, OURS)),
    Cell(OURS, 1000, 16),
)


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Measure each cell in each round."""
    with ExitStack() as stack:
        process = stack.enter_context(CoordinatorProcess(out / f"reports-{time.time_ns()}"))
        servers = {OURS: Server("coordinator", process.url, process.pid, process)}
        redis = str(process.data_dir / "valkey.sock")
        for name, app in APPS.items():
            url, pid = stack.enter_context(serving(app, REDIS_SOCKET=redis))
            servers[name] = Server(app, url, pid, process if name == AWAITED else None)
        measurements = {cell: partial(servers[cell.server].measure, cell) for cell in CELLS}
        return _rows(interleave(measurements, rounds, show))


def _rows(costs: Mapping[Cell, list[Cost]]) -> list[Row]:
    def figures(server: str, k: int, connections: int, figure: str) -> list[float]:
        return [getattr(cost, figure) for cost in costs[Cell(server, k, connections)]]

    def ratio(figure: str, of: tuple[str, int, int], to: tuple[str, int, int]) -> Spread:
        return ratios(figures(*of, figure), figures(*to, figure))

    def ours(figure: str, k: int) -> Spread:
        return Spread.of(figures(OURS, k, 16, figure))

    rate, app, redis = "rate", "app_us", "store_us"
    one, hundred, fastapi = (OURS, 1, 16), (OURS, 100, 16), (FASTAPI, 1, 16)
    many, thousand = (OURS, 1, 64), (OURS, 1000, 16)
    return [
        Row("rate, k=1: FastAPI again / FastAPI (control)", ratio(rate, (AGAIN, 1, 16), fastapi)),
        Row("rate, k=1, 16 connections: coordinator / FastAPI", ratio(rate, one, fastapi), at_least=1.2),
        Row("rate, k=1, 64 connections: coordinator / FastAPI", ratio(rate, many, (FASTAPI, 1, 64)), at_least=1.2),
        Row("rate, k=100: coordinator / FastAPI", ratio(rate, hundred, (FASTAPI, 100, 16)), at_least=0.6),
        Row("rate, k=1, 64 connections: coordinator / awaited", ratio(rate, many, (AWAITED, 1, 64)), at_least=2.5),
        Row("application, k=1: coordinator / echo", ratio(app, one, (ECHO, 1, 16)), at_most=3),
        Row("application, k=1000 / k=100", ratio(app, thousand, hundred), at_most=4),
        Row("application, k=1", ours(app, 1), "us"),
        Row("application, k=100", ours(app, 100), "us"),
        Row("application, k=1000", ours(app, 1000), "us", at_most=1000),
        Row("Redis, k=1", ours(redis, 1), "us", at_most=30),
        Row("Redis, k=100", ours(redis, 100), "us", at_most=250),
        Row("Redis, k=1000", ours(redis, 1000), "us", at_most=2000),
        Row("p99, k=1, 64 connections", Spread.of(figures(*many, "p99_ms")), "ms"),
        Row("reports per second, k=1, 64 connections", Spread.of(figures(*many, rate)), "/s"),
    ]
