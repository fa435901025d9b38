"""The time until thousands of waiting clients receive a new watermark, by event stream and by long poll.

The time of a client starts just before the benchmark sends the report that moves the watermark. The time ends when the
client has received the new watermark. The clients and the coordinator share the machine, so the times include the work
of both.

The event streams are measured a second time beside slow readers: clients that connect and never read. By then, the
coordinator has emitted more events than the connections of the slow readers can buffer.
"""

import asyncio
import resource
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import httpx
import uvloop

from benchmarks.results import Row, Spread
from tidegate_spark.testing import CoordinatorProcess

CLIENTS = 5000
SLOW = 50
EVENTS_BEFORE = 4000
STREAMS_WITHIN_S, POLLS_WITHIN_S = 1.0, 3.0
CONNECTING_AT_ONCE = 100
LONGEST_S = 60
JOB = "/v1/jobs/waited-for"


@dataclass(frozen=True)
class Woken:
    """The times at which the clients of a round received the watermark, in seconds after the report was sent."""

    median_s: float
    p99_s: float
    last_s: float

    @classmethod
    def of(cls, delays: list[float]) -> "Woken":
        ordered = sorted(delays)
        return cls(statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))], ordered[-1])

    def __str__(self) -> str:
        return f"half within {self.median_s:.2f} s, 99 % within {self.p99_s:.2f} s, the last after {self.last_s:.2f} s"


class Client(asyncio.Protocol):
    """One connection with one request. The result of ``heard`` is the time at which ``mark`` was received."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.mark = b""
        self.tail = b""
        self.heard: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport has another base
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.tail = (self.tail + data)[-4096:]
        if self.mark and self.mark in self.tail and not self.heard.done():
            self.heard.set_result(time.perf_counter())

    def connection_lost(self, error: Exception | None) -> None:
        if not self.heard.done():
            self.heard.set_exception(error or ConnectionError("the coordinator closed the connection"))

    def expect(self, mark: bytes) -> None:
        self.mark, self.heard = mark, asyncio.get_running_loop().create_future()
        if mark in self.tail:
            self.heard.set_result(time.perf_counter())


class Bench:
    def __init__(self, url: str, rounds: int, show: Callable[[str], None]) -> None:
        self.rounds, self.show = rounds, show
        parts = urlsplit(url)
        self.host, self.port = str(parts.hostname), parts.port or 80
        self.event_time = 1000
        self.http = httpx.AsyncClient(base_url=url, timeout=60)

    async def begin(self) -> None:
        config = {"policy": {"type": "limiting_lag", "lag_ms": 0}}
        (await self.http.put(JOB, json=config, headers={"If-None-Match": "*"})).raise_for_status()
        await self.emit()

    async def emit(self) -> None:
        self.event_time += 1
        body = {"substreams": ["a"], "max_event_times": [self.event_time]}
        (await self.http.post(f"{JOB}:report", json=body)).raise_for_status()

    async def connect(self, path: str, number: int) -> list[Client]:
        """Return ``number`` clients that have sent a GET request for ``path``."""
        loop = asyncio.get_running_loop()
        request = f"GET {path} HTTP/1.1\r\nHost: {self.host}\r\n\r\n".encode()
        clients: list[Client] = []
        for first in range(0, number, CONNECTING_AT_ONCE):
            made = (
                loop.create_connection(lambda: Client(request), self.host, self.port)
                for _ in range(min(CONNECTING_AT_ONCE, number - first))
            )
            clients += [client for _, client in await asyncio.gather(*made)]
        return clients

    async def streams(self) -> list[Woken]:
        """Measure event streams: every client receives every emission."""
        clients = await self.connect(f"{JOB}/watermark:watch?kind=emission", CLIENTS)
        for client in clients:
            client.expect(b"event: state")
        async with asyncio.timeout(LONGEST_S):
            await asyncio.gather(*(client.heard for client in clients))
        rounds = []
        for _ in range(self.rounds):
            rounds.append(await self._woken(clients, self._told))
            self.show(f"  event streams: {rounds[-1]}")
        await self._close(clients)
        return rounds

    async def polls(self) -> list[Woken]:
        """Measure long polls: in each round, every client waits for the next emission."""
        rounds = []
        for _ in range(self.rounds):
            path = f"{JOB}/watermark?at_least={self.event_time + 1}&timeout_s=120"
            clients = await self.connect(path, CLIENTS)
            await self._settled()
            rounds.append(await self._woken(clients, lambda: b'"reached":true'))
            self.show(f"  long polls: {rounds[-1]}")
            await self._close(clients)
        return rounds

    def _told(self) -> bytes:
        return f'"watermark":{self.event_time + 1},'.encode()

    async def _woken(self, clients: list[Client], mark: Callable[[], bytes]) -> Woken:
        for client in clients:
            client.expect(mark())
        began = time.perf_counter()
        await self.emit()
        async with asyncio.timeout(LONGEST_S):
            heard = await asyncio.gather(*(client.heard for client in clients))
        return Woken.of([at - began for at in heard])

    async def _settled(self) -> None:
        """Wait until the coordinator has accepted all requests: it then answers further requests without delay."""
        for _ in range(100):
            began = time.perf_counter()
            (await self.http.get(f"{JOB}/watermark")).raise_for_status()
            if time.perf_counter() - began < 0.02:
                break
        await asyncio.sleep(1)

    async def _close(self, clients: list[Client]) -> None:
        for client in clients:
            client.transport.abort()
            client.heard.cancel()
        await self._settled()

    async def slow_readers(self) -> list[socket.socket]:
        """Open connections without reading from them, and emit more events than the connections can buffer."""
        found = []
        request = f"GET {JOB}/watermark:watch HTTP/1.1\r\nHost: {self.host}\r\n\r\n".encode()
        for _ in range(SLOW):
            slow = socket.socket()
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect((self.host, self.port))
            slow.sendall(request)
            found.append(slow)
        for _ in range(EVENTS_BEFORE):
            await self.emit()
        return found


async def _run(url: str, rounds: int, show: Callable[[str], None]) -> dict[str, list[Woken]]:
    bench = Bench(url, rounds, show)
    await bench.begin()
    show(f"{CLIENTS} clients, {rounds} rounds")
    found = {"event streams": await bench.streams(), "long polls": await bench.polls()}
    show(f"with {SLOW} slow readers, after {EVENTS_BEFORE} events")
    slow = await bench.slow_readers()
    found["event streams beside slow readers"] = await bench.streams()
    for connection in slow:
        connection.close()
    await bench.http.aclose()
    return found


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Measure the time until the last client of each round has received the watermark."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with CoordinatorProcess(out / f"waiting-{time.time_ns()}") as process:
        found = uvloop.run(_run(process.url, rounds, show))
    limits = {kind: POLLS_WITHIN_S if kind == "long polls" else STREAMS_WITHIN_S for kind in found}
    return [
        Row(f"{CLIENTS} {kind}: last client", Spread.of(one.last_s for one in woken), "s", at_most=limits[kind])
        for kind, woken in found.items()
    ]
