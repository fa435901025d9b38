"""A quiet tenant beside a flood: many connections that report as fast as the coordinator answers."""

import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from benchmarks.load import Load, send
from benchmarks.reports import CONFIG, Reports
from benchmarks.results import Row, Spread, ratios
from tidegate_spark.testing import CoordinatorProcess

FLOODING, SUBSTREAMS = 256, 1_000
FLOOD_S = 60.0
QUIET_S, QUIET_INTERVAL_S = 5.0, 0.02
JOBS = ("quiet", "flooding")


@dataclass(frozen=True, slots=True)
class Round:
    """Latencies of the quiet tenant without and with the flood, in milliseconds; the flood's load and memory."""

    idle_ms: float
    idle_again_ms: float
    flooded_ms: float
    flood: Load
    grown_mb: float


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Flood once for a minute, then for a few seconds in each round."""
    found: list[Round] = []
    with CoordinatorProcess(out / f"tenants-{time.time_ns()}") as process:
        with httpx.Client(base_url=process.url, timeout=60) as http:
            for job in JOBS:
                http.put(f"/v1/jobs/{job}", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        for number in range(rounds + 1):
            found.append(_round(process, QUIET_S if number else FLOOD_S))
            show(f"  {f'round {number}/{rounds}' if number else f'flooded for {FLOOD_S:.0f} s'}")
    first, rest = found[0], found[1:]
    idle = [each.idle_ms for each in rest]
    flood = f"{FLOODING} connections, {FLOOD_S:.0f} s"
    return [
        Row(f"{flood}: reports per second", Spread.of([first.flood.rate]), "/s"),
        Row(f"{flood}: p50", Spread.of([first.flood.percentile_ms(50)]), "ms"),
        Row(f"{flood}: p99", Spread.of([first.flood.percentile_ms(99)]), "ms"),
        Row(f"{flood}: growth of the coordinator's memory", Spread.of([first.grown_mb]), "MB"),
        Row("quiet tenant, p50: idle again / idle (control)", ratios([each.idle_again_ms for each in rest], idle)),
        Row("quiet tenant, p50: flooded / idle", ratios([each.flooded_ms for each in rest], idle), at_most=3),
        Row("quiet tenant, p50: idle", Spread.of(idle), "ms"),
        Row("quiet tenant, p50: flooded", Spread.of(each.flooded_ms for each in rest), "ms"),
    ]


def _round(process: CoordinatorProcess, flood_s: float) -> Round:
    idle, again = (_quiet_ms(process.url, QUIET_S) for _ in range(2))
    coordinator = psutil.Process(process.pid)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        flood = pool.submit(_flood, process.url, flood_s + 2)
        time.sleep(1)
        before = coordinator.memory_info().rss
        flooded = _quiet_ms(process.url, flood_s)
        grown = coordinator.memory_info().rss - before
        return Round(idle, again, flooded, flood.result(timeout=flood_s + 60), grown / 1e6)


def _flood(url: str, seconds: float) -> Load:
    """Send reports on many connections; an answer other than 2xx is an error."""
    reports = Reports(1, SUBSTREAMS)
    reports.sent = time.time_ns() // 1_000_000 - 1_700_000_000_000  # later than those of an earlier flood
    return send(url, reports.to(url, "flooding"), FLOODING, seconds)


def _quiet_ms(url: str, seconds: float) -> float:
    """Return the median latency of calls with pauses between them, in milliseconds."""
    latencies: list[float] = []
    with httpx.Client(base_url=url, timeout=60) as http:
        until = time.perf_counter() + seconds
        for number in itertools.count(time.time_ns() // 1_000_000):
            if time.perf_counter() > until:
                return 1000 * statistics.median(latencies)
            began = time.perf_counter()
            body = {"substreams": ["only"], "max_event_times": [number]}
            http.post("/v1/jobs/quiet:report", json=body).raise_for_status()
            latencies.append(time.perf_counter() - began)
            time.sleep(QUIET_INTERVAL_S)
    raise AssertionError
