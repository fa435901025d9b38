"""A quiet tenant beside a flood: many connections that report as fast as the coordinator answers.

Each tenant has its own key and job.

The flood runs in a process with a lower priority. Otherwise, on a machine with few cores, the quiet tenant would also
wait for the processor that the flood itself uses.
"""

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from benchmarks.load import Load, send
from benchmarks.reports import CONFIG, Reports
from benchmarks.results import Row, Spread, ratios
from tidegate.auth import keyring
from tidegate.auth.roles import Role
from tidegate_spark.testing import CoordinatorProcess

FLOODING, SUBSTREAMS = 256, 1_000
FLOOD_S = 60.0
QUIET_S, QUIET_INTERVAL_S = 5.0, 0.02
JOBS = ("quiet", "flooding")
NICENESS = 10
CONNECT_S = 30
MAX_RATIO = 3
"""Target of the ratio of a percentile with the flood to the same percentile without it."""

Keys = Mapping[str, str]
"""The key of each tenant, by its job."""


@dataclass(frozen=True, slots=True)
class Round:
    """Loads of the quiet tenant without and with the flood; the flood's load and the growth of memory."""

    idle: Load
    idle_again: Load
    flooded: Load
    flood: Load
    grown_mb: float


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Flood once for a minute, then for a few seconds in each round."""
    found: list[Round] = []
    directory = out / f"tenants-{time.time_ns()}"
    directory.mkdir(parents=True)
    file = directory / "keys.json"
    keys = {job: keyring.create(file, job, Role.REPORT, job) for job in JOBS}
    with (
        CoordinatorProcess(directory / "data", keys_file=str(file)) as process,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), os.nice, (NICENESS,)) as flooding,
    ):
        for job, key in keys.items():
            headers = {"If-None-Match": "*", "Authorization": f"Bearer {key}"}
            httpx.put(f"{process.url}/v1/jobs/{job}", json=CONFIG, headers=headers, timeout=60).raise_for_status()
        flooding.submit(os.getpid).result()  # starting the process takes seconds
        for number in range(rounds + 1):
            found.append(_round(process, keys, flooding, QUIET_S if number else FLOOD_S))
            show(f"  {f'round {number}/{rounds}' if number else f'flooded for {FLOOD_S:.0f} s'}")
    first, rest = found[0], found[1:]
    flood = f"{FLOODING} connections, {FLOOD_S:.0f} s"
    return [
        Row(f"{flood}: reports per second", Spread.of([first.flood.rate]), "/s"),
        Row(f"{flood}: p50", Spread.of([first.flood.percentile_ms(50)]), "ms"),
        Row(f"{flood}: p99", Spread.of([first.flood.percentile_ms(99)]), "ms"),
        Row(f"{flood}: growth of the coordinator's memory", Spread.of([first.grown_mb]), "MB"),
        *_quiet_rows(rest, 50),
        *_quiet_rows(rest, 99),
    ]


def _quiet_rows(rounds: list[Round], percent: int) -> list[Row]:
    """Return the rows about one percentile of the quiet tenant's latency."""
    idle, again, flooded = (
        [load.percentile_ms(percent) for load in loads]
        for loads in zip(*((each.idle, each.idle_again, each.flooded) for each in rounds), strict=True)
    )
    name = f"quiet tenant, p{percent}"
    return [
        Row(f"{name}: idle again / idle (control)", ratios(again, idle)),
        Row(f"{name}: flooded / idle", ratios(flooded, idle), at_most=MAX_RATIO),
        Row(f"{name}: idle", Spread.of(idle), "ms"),
        Row(f"{name}: flooded", Spread.of(flooded), "ms"),
    ]


def _round(process: CoordinatorProcess, keys: Keys, flooding: ProcessPoolExecutor, flood_s: float) -> Round:
    idle, again = (_quiet(process.url, keys["quiet"], QUIET_S) for _ in range(2))
    coordinator = psutil.Process(process.pid)
    flood = flooding.submit(_flood, process.url, keys["flooding"], flood_s + 2)
    _wait_for_connections(coordinator)
    before = coordinator.memory_info().rss
    flooded = _quiet(process.url, keys["quiet"], flood_s)
    grown = coordinator.memory_info().rss - before
    return Round(idle, again, flooded, flood.result(timeout=flood_s + 60), grown / 1e6)


def _wait_for_connections(coordinator: psutil.Process) -> None:
    """Return when the flood has opened its connections.

    Raises:
        TimeoutError: If it has not opened them within ``CONNECT_S`` seconds.
    """
    deadline = time.monotonic() + CONNECT_S
    while sum(each.status == psutil.CONN_ESTABLISHED for each in coordinator.net_connections("tcp")) < FLOODING:
        if time.monotonic() > deadline:
            raise TimeoutError(f"The flood did not open {FLOODING} connections within {CONNECT_S} s.")
        time.sleep(0.05)


def _flood(url: str, key: str, seconds: float) -> Load:
    """Send reports on many connections; an answer other than 2xx is an error."""
    reports = Reports(1, SUBSTREAMS)
    reports.sent = time.time_ns() // 1_000_000 - 1_700_000_000_000  # later than those of an earlier flood
    return send(url, reports.to(url, "flooding", f"authorization: Bearer {key}\r\n"), FLOODING, seconds)


def _quiet(url: str, key: str, seconds: float) -> Load:
    """Make calls with pauses between them."""
    load, began = Load(), time.perf_counter()
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as http:
        for number in itertools.count(time.time_ns() // 1_000_000):
            sent = time.perf_counter()
            if sent > began + seconds:
                break
            body = {"substreams": ["only"], "max_event_times": [number]}
            http.post("/v1/jobs/quiet:report", json=body).raise_for_status()
            load.latencies_s.append(time.perf_counter() - sent)
            time.sleep(QUIET_INTERVAL_S)
    load.seconds = time.perf_counter() - began
    return load
