"""The cost of substreams in a job: reports, memory, and the time until a waiting client is notified."""

import asyncio
import re
import time
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import uvloop
from redis import Redis

from benchmarks.paired import interleave
from benchmarks.reports import CONFIG, START, Cell, Reports, Server
from benchmarks.results import Row, Spread, ratios
from tidegate_spark.testing import CoordinatorProcess

SMALL, LARGE = 1_000, 100_000
K = 100
WATCHED, RATE, SECONDS = 10_000, 500, 10
"""Number of substreams of the job that a client waits for, reports per second, and seconds of a measurement."""
SENDERS = 16
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Measure a small and a large job in each round, then the notifications."""
    with CoordinatorProcess(out / f"jobs-{time.time_ns()}") as process:
        memory = _bytes_per_substream(process)
        servers = {size: Server(f"of-{size}", process.url, process.pid, process, size) for size in (SMALL, LARGE)}
        measurements = {size: partial(server.measure, Cell("", K, 16)) for size, server in servers.items()}
        costs = interleave(measurements, rounds, show)
        spent = {size: [cost.app_us + cost.store_us for cost in found] for size, found in costs.items()}
        latencies = uvloop.run(_notifications(process.url))
    notified, ordered = f"notified, {RATE} reports/s, {WATCHED:,} substreams", sorted(1000 * one for one in latencies)
    p50, p99 = (Spread.of([ordered[int(share * len(ordered))]]) for share in (0.5, 0.99))
    return [
        Row(f"memory of Redis per substream, {LARGE:,} substreams", Spread.of([memory]), "bytes", at_most=200),
        Row(f"report, k={K}: {LARGE:,} / {SMALL:,} substreams", ratios(spent[LARGE], spent[SMALL]), at_most=2),
        Row(f"{notified}: p50", p50, "ms"),
        Row(f"{notified}: p99", p99, "ms", at_most=50),
    ]


def _bytes_per_substream(process: CoordinatorProcess) -> float:
    """Return the memory that Redis uses for each substream of a new job, with names of 16 bytes."""
    with (
        httpx.Client(base_url=process.url, timeout=60) as http,
        Redis(unix_socket_path=str(process.data_dir / "valkey.sock")) as redis,
    ):
        http.put("/v1/jobs/memory", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        before = redis.info("memory")["used_memory"]
        http.post("/v1/jobs/memory:report", json=Reports(K, LARGE).all_at_once()).raise_for_status()
        return float((redis.info("memory")["used_memory"] - before) / LARGE)


async def _notifications(url: str) -> list[float]:
    """Return the seconds from each report until a waiting client has received the watermark that the report emits.

    Each report raises the watermark by one. The time starts before the benchmark sends the report.
    """
    reports, job = Reports(K, WATCHED), "watched"
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        (await http.put(f"/v1/jobs/{job}", json=CONFIG, headers={"If-None-Match": "*"})).raise_for_status()
        (await http.post(f"/v1/jobs/{job}:report", json=reports.all_at_once())).raise_for_status()
    requests = reports.to(url, job)
    connections = [await _connect(url) for _ in range(SENDERS)]
    for _ in range(WATCHED // K):  # from then on, each report has the only substreams with the lowest event time
        await _exchange(connections[0], next(requests))
    received: list[tuple[int, float]] = []
    watching = asyncio.create_task(_watch(await _connect(url), job, received))
    await asyncio.sleep(1)
    sent: dict[int, float] = {}
    began = time.perf_counter()

    async def send(connection: Connection) -> None:
        while (at := began + len(sent) / RATE) < began + SECONDS:
            request = next(requests)
            sent[START + reports.sent - WATCHED // K + 1] = at
            await asyncio.sleep(at - time.perf_counter())
            await _exchange(connection, request)

    await asyncio.gather(*(send(connection) for connection in connections))
    async with asyncio.timeout(10):
        while not received or received[-1][0] < max(sent):
            await asyncio.sleep(0.05)
    watching.cancel()
    for _, writer in connections:
        writer.close()
    watermarks = [watermark for watermark, _ in received]
    return [received[bisect_left(watermarks, watermark)][1] - at for watermark, at in sent.items()]


async def _connect(url: str) -> Connection:
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def _exchange(connection: Connection, request: bytes) -> None:
    """Send a request, and read its answer."""
    reader, writer = connection
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    [length] = re.findall(rb"content-length: (\d+)", head)
    await reader.readexactly(int(length))


async def _watch(connection: Connection, job: str, received: list[tuple[int, float]]) -> None:
    """Append each watermark that the event stream of a job emits, with the time of its receipt."""
    reader, writer = connection
    writer.write(f"GET /v1/jobs/{job}/watermark:watch?kind=emission HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    try:
        while True:
            line = await reader.readline()
            if line.startswith(b"data:") and (found := re.search(rb'"watermark":(\d+)', line)):
                received.append((int(found[1]), time.perf_counter()))
    finally:
        writer.close()
