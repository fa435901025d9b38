"""A quiet tenant beside a loud one, under six loads. Each tenant has its own key and job.

The loads are small reports on many connections, calls that are refused, the OpenAPI document, invalid bodies, and
reports with 10,000 and 100,000 substreams. Each load is sent as fast as the coordinator answers.

The load runs in a process with a lower priority. Otherwise, on a machine with few cores, the quiet tenant would also
wait for the processor that the load itself uses.
"""

import itertools
import json
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

from benchmarks.load import Load, request_bytes, send
from benchmarks.reports import CONFIG, Reports
from benchmarks.results import Row, Spread, ratios
from tidegate.auth import keyring
from tidegate.auth.roles import Role
from tidegate_spark.testing import CoordinatorProcess

SUBSTREAMS = 1_000
FLOOD_S = 60.0
QUIET_S, QUIET_INTERVAL_S = 5.0, 0.02
JOBS = ("quiet", "loud")
NICENESS = 10
CONNECT_S = 30
MAX_RATIO = 3
"""Target of the ratio of the 99th percentile beside a load to the same percentile without it."""
BODY_BYTES = 4_000_000
"""Size of an invalid body, a little below the limit."""

Keys = Mapping[str, str]
"""The key of each tenant, by its job."""
Requests = Callable[[str, str], Iterator[bytes]]
"""Function of the coordinator's address and the loud tenant's key that yields requests without end."""


@dataclass(frozen=True)
class Loud:
    """A load: its requests, the number of connections, and the first digit of the statuses of its answers."""

    requests: Requests
    connections: int
    answers: int = 2


@dataclass(frozen=True, slots=True)
class Beside:
    """The quiet tenant beside a load, the load, and the growth of the coordinator's memory."""

    quiet: Load
    loud: Load
    grown_mb: float


@dataclass(frozen=True, slots=True)
class Round:
    """The quiet tenant alone, twice, and beside each load."""

    alone: Load
    again: Load
    beside: dict[str, Beside]


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Flood with small reports for a minute, then send each load for a few seconds in each round."""
    found: list[Round] = []
    directory = out / f"tenants-{time.time_ns()}"
    directory.mkdir(parents=True)
    file = directory / "keys.json"
    keys = {job: keyring.create(file, job, Role.REPORT, job) for job in JOBS}
    with (
        CoordinatorProcess(directory / "data", keys_file=str(file)) as process,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), os.nice, (NICENESS,)) as sender,
    ):
        for job, key in keys.items():
            headers = {"If-None-Match": "*", "Authorization": f"Bearer {key}"}
            httpx.put(f"{process.url}/v1/jobs/{job}", json=CONFIG, headers=headers, timeout=60).raise_for_status()
        sender.submit(os.getpid).result()  # starting the process takes seconds
        flood = _beside(process, keys, sender, SMALL, FLOOD_S)
        show(f"  flooded for {FLOOD_S:.0f} s")
        for number in range(1, rounds + 1):
            found.append(_round(process, keys, sender))
            show(f"  round {number}/{rounds}")
    name = f"{SMALL}, {FLOOD_S:.0f} s"
    return [
        Row(f"{name}: reports per second", Spread.of([flood.loud.rate]), "/s"),
        Row(f"{name}: p50", Spread.of([flood.loud.percentile_ms(50)]), "ms"),
        Row(f"{name}: p99", Spread.of([flood.loud.percentile_ms(99)]), "ms"),
        Row(f"{name}: growth of the coordinator's memory", Spread.of([flood.grown_mb]), "MB"),
        *_rows(found),
    ]


def _rows(rounds: list[Round]) -> list[Row]:
    """Return the rows about the latency of the quiet tenant."""

    def alone(percent: int) -> list[float]:
        return [each.alone.percentile_ms(percent) for each in rounds]

    def beside(name: str, percent: int) -> list[float]:
        return [each.beside[name].quiet.percentile_ms(percent) for each in rounds]

    p99 = "quiet tenant, p99"
    again = [each.again.percentile_ms(99) for each in rounds]
    rows = [
        Row(f"{p99}: alone", Spread.of(alone(99)), "ms"),
        Row(f"{p99}: alone again / alone (control)", ratios(again, alone(99))),
    ]
    for name in LOADS:
        rows.append(Row(f"{p99}: {name} / alone", ratios(beside(name, 99), alone(99)), at_most=MAX_RATIO))
    for name in LOADS:
        rows.append(Row(f"quiet tenant, p50: {name} / alone", ratios(beside(name, 50), alone(50))))
    for name in LOADS:
        rates = [each.beside[name].loud.rate for each in rounds]
        rows.append(Row(f"answers per second: {name}", Spread.of(rates), "/s"))
    return rows


def _round(process: CoordinatorProcess, keys: Keys, sender: ProcessPoolExecutor) -> Round:
    alone, again = (_quiet(process.url, keys["quiet"], QUIET_S) for _ in range(2))
    order = random.sample(list(LOADS), len(LOADS))
    return Round(alone, again, {name: _beside(process, keys, sender, name, QUIET_S) for name in order})


def _beside(process: CoordinatorProcess, keys: Keys, sender: ProcessPoolExecutor, name: str, seconds: float) -> Beside:
    coordinator = psutil.Process(process.pid)
    sending = sender.submit(_send, process.url, keys["loud"], name, seconds + 2)
    _wait_for_connections(coordinator, LOADS[name].connections, sending)
    before = coordinator.memory_info().rss
    quiet = _quiet(process.url, keys["quiet"], seconds)
    grown = coordinator.memory_info().rss - before
    loud = sending.result(timeout=seconds + 120)
    if loud.seconds < seconds:
        raise RuntimeError(f"{name}: the load ended after {loud.seconds:.1f} s, before the measurement.")
    return Beside(quiet, loud, grown / 1e6)


def _wait_for_connections(coordinator: psutil.Process, number: int, sending: "Future[Load]") -> None:
    """Return when the load has opened its connections.

    Raises:
        TimeoutError: If it has not opened them within ``CONNECT_S`` seconds.
        RuntimeError: If the load has failed.
    """
    deadline = time.monotonic() + CONNECT_S
    while sum(each.status == psutil.CONN_ESTABLISHED for each in coordinator.net_connections("tcp")) < number:
        if sending.done():
            sending.result()
        if time.monotonic() > deadline:
            raise TimeoutError(f"The load did not open {number} connections within {CONNECT_S} s.")
        time.sleep(0.05)


def _send(url: str, key: str, name: str, seconds: float) -> Load:
    load = LOADS[name]
    sent = send(url, load.requests(url, key), load.connections, seconds, load.answers)
    sent.last_body = b""
    return sent


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


def _reports(k: int, url: str, key: str) -> Iterator[bytes]:
    """Yield reports of ``k`` substreams."""
    reports = Reports(k, max(k, SUBSTREAMS))
    reports.sent = time.time_ns() // 1_000_000 - 1_700_000_000_000  # later than those of an earlier load
    return reports.to(url, "loud", f"authorization: Bearer {key}\r\n")


def _refused(url: str, key: str) -> Iterator[bytes]:
    """Yield calls without a key, with an unknown key, for the job of another tenant, and for an unknown path."""
    valid, unknown = f"authorization: Bearer {key}\r\n", f"authorization: Bearer {key[:-4]}0000\r\n"
    calls = [("/v1/jobs/loud:report", ""), ("/v1/jobs/loud:report", unknown)]
    calls += [("/v1/jobs/quiet:report", valid), ("/v1/nothing", valid)]
    return itertools.cycle([request_bytes(url, path, b"{}", headers) for path, headers in calls])


def _documents(url: str, key: str) -> Iterator[bytes]:
    """Yield requests for the OpenAPI document."""
    head = f"GET /v1/openapi.json HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\nauthorization: Bearer {key}\r\n\r\n"
    return itertools.repeat(head.encode())


def _invalid(url: str, key: str) -> Iterator[bytes]:
    """Yield reports whose bodies are large and invalid: unknown members, not JSON, and values of other types."""
    unknown = ",".join(f'"member-{number}":0' for number in range(BODY_BYTES // 17))
    names = json.dumps([f"substream-{number:06}" for number in range(BODY_BYTES // 45)])
    floats, objects, short = (",".join([value] * (BODY_BYTES // (len(value) + 1))) for value in ("1.5", "{}", "0"))
    bodies = [
        f"{{{unknown}}}",
        f'{{"substreams":[{short}',
        f'{{"substreams":["one"],"max_event_times":[{floats}]}}',
        f'{{"substreams":["one"],"max_event_times":[0],"delays":[[{objects}]]}}',
        f'{{"substreams":["one"],"max_event_times":[0],"more":[{short}]}}',
        f'{{"substreams":{names},"max_event_times":["0"]}}',
    ]
    headers = f"authorization: Bearer {key}\r\n"
    return itertools.cycle([request_bytes(url, "/v1/jobs/loud:report", body.encode(), headers) for body in bodies])


SMALL = "small reports on 400 connections"
LOADS = {
    SMALL: Loud(partial(_reports, 1), 400),
    "refused calls": Loud(_refused, 64, answers=4),
    "openapi.json": Loud(_documents, 64),
    "invalid bodies of 4 MB": Loud(_invalid, 16, answers=4),
    "reports of 10,000 substreams": Loud(partial(_reports, 10_000), 16),
    "reports of 100,000 substreams": Loud(partial(_reports, 100_000), 4),
}
