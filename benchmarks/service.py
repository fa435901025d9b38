"""What a report costs: rates and processor times, beside FastAPI without Redis and an ASGI echo."""

import json
import random
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from benchmarks.load import Load, request_bytes, run
from benchmarks.paired import Ratio
from benchmarks.peers import serving
from benchmarks.sizing import processor_s
from tidegate.domain import commands
from tidegate.domain.config import JobConfig
from tidegate.domain.policy import LimitingLag
from tidegate.domain.state import JobState
from tidegate_spark.testing import CoordinatorProcess

SUBSTREAMS = 1_000
NAMES = 100_000
SECONDS, WARM_UP_S = 5.0, 1.0
START = 1_700_000_000_000
CONFIG = {"policy": {"type": "limiting_lag", "lag_ms": 0}, "max_future_skew_ms": None}


@dataclass(frozen=True)
class Cell:
    """One load on one server: ``k`` substreams a report, on ``connections`` connections."""

    server: str
    k: int
    connections: int

    def __str__(self) -> str:
        return f"{self.server}, k={self.k}, {self.connections} connections"


@dataclass(frozen=True)
class Cost:
    """One measurement of a cell: answers per second, and processor time per report in microseconds."""

    rate: float
    app_us: float
    redis_us: float
    p99_ms: float


class Reports:
    """Reports whose event times advance; each covers the substreams that were reported longest ago.

    So each report raises the minimum, which is the most expensive case.
    """

    def __init__(self, k: int, substreams: int) -> None:
        names = random.Random(k).sample(range(NAMES), max(k, substreams // k * k))
        self._groups = [[f"substream-{number:05}" for number in names[at : at + k]] for at in range(0, len(names), k)]
        self._encoded = [json.dumps(group, separators=(",", ":")) for group in self._groups]
        self._k, self._sent = k, 0

    def all_at_once(self) -> dict[str, list[object]]:
        """Return the body of a first report of all substreams."""
        names = [name for group in self._groups for name in group]
        return {"substreams": [*names], "max_event_times": [START] * len(names)}

    def to(self, url: str, job: str) -> Iterator[bytes]:
        """Yield requests without end."""
        path = f"/v1/jobs/{job}:report"
        while True:
            self._sent += 1
            times = ",".join([str(START + self._sent)] * self._k)
            names = self._encoded[self._sent % len(self._encoded)]
            yield request_bytes(url, path, f'{{"substreams":{names},"max_event_times":[{times}]}}'.encode())

    def expected_watermark(self) -> int | None:
        """Return the watermark that the Python machine has after the reports that were sent."""
        machine = JobState(JobConfig(LimitingLag(0)), 0)
        commands.create(machine)
        first = max(0, self._sent - len(self._groups) + 1)
        for sent in range(first, self._sent + 1):
            group = self._groups[sent % len(self._groups)]
            commands.report(machine, dict.fromkeys(group, START + sent), 0)
        return machine.watermark


class Coordinator:
    """A coordinator with its Valkey, and one job for each k."""

    def __init__(self, process: CoordinatorProcess) -> None:
        self.url = process.url
        self.app = psutil.Process(process.pid)
        (self.redis,) = self.app.children()
        self._reports: dict[int, Reports] = {}

    def measure(self, cell: Cell, seconds: float) -> Cost:
        """Run a load, and check the watermark that it leaves.

        Raises:
            AssertionError: If the watermark is not that of the Python machine.
        """
        job = f"of-{cell.k}"
        if cell.k not in self._reports:
            self._reports[cell.k] = Reports(cell.k, SUBSTREAMS)
            with httpx.Client(base_url=self.url, timeout=60) as http:
                http.put(f"/v1/jobs/{job}", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
                body = self._reports[cell.k].all_at_once()
                http.post(f"/v1/jobs/{job}:report", json=body).raise_for_status()
        reports = self._reports[cell.k]
        cost = _measure(self.url, reports.to(self.url, job), cell, seconds, self.app, self.redis)
        watermark = httpx.get(f"{self.url}/v1/jobs/{job}", timeout=60).json()["watermark"]
        expected = reports.expected_watermark()
        assert watermark == expected, f"{cell}: the watermark is {watermark}, expected {expected}"
        return cost


class Peer:
    """A server without state."""

    def __init__(self, url: str, pid: int) -> None:
        self.url, self.app = url, psutil.Process(pid)

    def measure(self, cell: Cell, seconds: float) -> Cost:
        """Run a load."""
        reports = Reports(cell.k, SUBSTREAMS)
        return _measure(self.url, reports.to(self.url, "peer"), cell, seconds, self.app, None)


def _measure(
    url: str, requests: Iterator[bytes], cell: Cell, seconds: float, app: psutil.Process, redis: psutil.Process | None
) -> Cost:
    before = [processor_s(process) for process in (app, redis) if process]
    load: Load = run(url, requests, cell.connections, seconds)
    after = [processor_s(process) for process in (app, redis) if process]
    spent = [1e6 * (end - begin) / len(load.latencies_s) for begin, end in zip(before, after, strict=True)]
    return Cost(load.rate, spent[0], spent[1] if redis else 0.0, load.percentile_ms(99))


FASTAPI, AGAIN, OURS, ECHO = "FastAPI without Redis", "FastAPI again", "coordinator", "ASGI echo"
CELLS = (
    *(Cell(server, 1, 16) for server in (FASTAPI, AGAIN, OURS, ECHO)),
    *(Cell(server, 1, 64) for server in (FASTAPI, OURS)),
    *(Cell(server, 100, 16) for server in (FASTAPI, OURS)),
    *(Cell(server, 1000, 16) for server in (FASTAPI, OURS)),
)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def run_all(out: Path, rounds: int, show: Callable[[str], None]) -> dict[Cell, list[Cost]]:
    """Measure each cell in each round, in random order. The first round does not count."""
    costs: dict[Cell, list[Cost]] = {cell: [] for cell in CELLS}
    with ExitStack() as stack:
        servers: dict[str, Coordinator | Peer] = {}
        for name, app in ((FASTAPI, "fastapi_app"), (AGAIN, "fastapi_app"), (ECHO, "echo_app")):
            port = free_port()
            process = stack.enter_context(serving(app, port))
            servers[name] = Peer(f"http://127.0.0.1:{port}", process.pid)
        directory = out / f"service-{time.time_ns()}"
        servers[OURS] = Coordinator(stack.enter_context(CoordinatorProcess(directory)))
        for number in range(rounds + 1):
            for cell in random.sample(CELLS, len(CELLS)):
                cost = servers[cell.server].measure(cell, SECONDS if number else WARM_UP_S)
                costs[cell] += [cost] if number else []
            show(f"  {f'round {number}/{rounds}' if number else 'warming up'}")
    return costs


def ratio(costs: Mapping[Cell, list[Cost]], cell: Cell, to: Cell, figure: str) -> Ratio:
    """Return the ratio of one figure of two cells: the median of the rounds and its spread."""
    pairs = zip(costs[cell], costs[to], strict=True)
    ratios = [getattr(ours, figure) / getattr(theirs, figure) for ours, theirs in pairs]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def table(costs: Mapping[Cell, list[Cost]]) -> str:
    """Return the measured figures and the ratios as text."""
    lines = [f"{'':<50}  reports/s  app us  Redis us  p99 ms  rate / FastAPI"]
    for cell, measured in costs.items():
        rate, app, redis, p99 = (
            statistics.median(getattr(cost, figure) for cost in measured)
            for figure in ("rate", "app_us", "redis_us", "p99_ms")
        )
        to = ratio(costs, cell, Cell(FASTAPI, cell.k, cell.connections), "rate")
        lines.append(f"{cell!s:<50} {rate:>10,.0f} {app:>7,.0f} {redis:>9,.0f} {p99:>7,.1f}  {to}")
    echo = ratio(costs, Cell(OURS, 1, 16), Cell(ECHO, 1, 16), "app_us")
    lines.append(f"processor time of the coordinator / ASGI echo, k=1: {echo}")
    return "\n".join(lines)
