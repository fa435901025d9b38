"""A TCP proxy whose faults a schedule switches on and off: delays, drops, cuts, refusals and repeated requests."""

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Self

CHUNK = 65_536
REPEAT_TIMEOUT_S = 20.0
"""Longest time for which the answer to a repeated request is awaited."""


@dataclass
class Direction:
    """The faults of one direction of a proxy.

    Attributes:
        delay_s: Longest delay of a chunk of bytes.
        drops: Whether bytes are lost. A connection that has lost bytes delivers no more of them in this direction.
    """

    delay_s: float = 0.0
    drops: bool = False


@dataclass(eq=False)
class _Connection:
    """One connection of a client, with the request that the server has not yet answered."""

    writers: list[asyncio.StreamWriter]
    request: bytearray = field(default_factory=bytearray)
    has_gap: bool = False


class Proxy:
    """A proxy to one port of loopback, or to one Unix socket.

    Attributes:
        port: The port on which the proxy listens.
        to_server: The faults of requests.
        to_client: The faults of answers.
        refuses: Whether new connections are closed at once.
        repeats: Share of the requests that the server receives twice.
        repeated: Number of requests that the server received twice.
    """

    def __init__(self, target: Callable[[], int | str], rng: random.Random) -> None:
        self._target, self._rng = target, rng
        self._connections: set[_Connection] = set()
        self._repeating: set[asyncio.Task[None]] = set()
        self._accepting: set[asyncio.Task[None]] = set()
        self.port = 0
        self.to_server, self.to_client = Direction(), Direction()
        self.refuses, self.repeats, self.repeated = False, 0.0, 0

    async def listen(self) -> asyncio.Server:
        """Start to accept connections."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def cut(self) -> None:
        """Abort all connections."""
        for connection in list(self._connections):
            self._abort(connection)

    def heal(self) -> None:
        """Switch off all faults, and abort the connections that have lost bytes."""
        self.to_server, self.to_client = Direction(), Direction()
        self.refuses, self.repeats = False, 0.0
        for connection in [each for each in self._connections if each.has_gap]:
            self._abort(connection)

    async def close(self) -> None:
        """Abort all connections and repetitions, and wait until they have ended."""
        self.refuses = True
        running = [*self._repeating, *self._accepting]
        for task in self._repeating:
            task.cancel()
        self.cut()
        await asyncio.gather(*running, return_exceptions=True)

    def _abort(self, connection: _Connection) -> None:
        for writer in [each for each in connection.writers if not each.is_closing()]:
            # Without lingering, the peer gets a reset and not an orderly end.
            of = writer.get_extra_info("socket")
            of.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, task = _Connection([writer]), asyncio.current_task()
        assert task is not None
        self._accepting.add(task)
        self._connections.add(connection)
        try:
            if not self.refuses:
                await self._connect(connection, reader, writer)
        except OSError:
            pass  # the server refuses connections, and so does the proxy
        finally:
            self._connections.discard(connection)
            self._accepting.discard(task)
            for each in connection.writers:
                each.close()

    async def _connect(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        from_server, to_server = await self._open()
        connection.writers.append(to_server)
        there = self._pump(connection, reader, to_server, lambda: self.to_server, connection.request.extend)
        answered = partial(self._answered, connection)
        back = self._pump(connection, from_server, writer, lambda: self.to_client, answered)
        pumps = [asyncio.create_task(there), asyncio.create_task(back)]
        _, pending = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pending:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        target = self._target()
        if isinstance(target, str):
            return await asyncio.open_unix_connection(target)
        return await asyncio.open_connection("127.0.0.1", target)

    async def _pump(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: Callable[[], Direction],
        seen: Callable[[bytes], None],
    ) -> None:
        lost = False
        while chunk := await reader.read(CHUNK):
            seen(chunk)
            faults = direction()
            if faults.drops:
                lost = connection.has_gap = True
            if lost:
                continue
            if faults.delay_s:
                await asyncio.sleep(self._rng.uniform(0, faults.delay_s))
            writer.write(chunk)
            await writer.drain()

    def _answered(self, connection: _Connection, chunk: bytes) -> None:
        """Process the bytes of an answer. The first bytes of an answer end the request."""
        request = bytes(connection.request)
        connection.request.clear()
        if request and self._rng.random() < self.repeats:
            self._start(partial(self._repeat, request, self._rng.uniform(0, 0.5)))

    def _start(self, action: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            with suppress(OSError, TimeoutError):  # the server may be down
                await action()

        task = asyncio.create_task(run())
        self._repeating.add(task)
        task.add_done_callback(self._repeating.discard)

    async def _repeat(self, request: bytes, delay_s: float) -> None:
        """Send a request again on another connection, and discard the answer."""
        await asyncio.sleep(delay_s)
        reader, writer = await self._open()
        try:
            writer.write(request)
            await asyncio.wait_for(reader.read(CHUNK), REPEAT_TIMEOUT_S)
            self.repeated += 1
        finally:
            writer.transport.abort()


class Proxies:
    """Proxies in a thread of their own.

    Args:
        seed: Draws delays and repetitions.
    """

    def __init__(self, seed: int | str) -> None:
        self._rng = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._servers: list[asyncio.Server] = []
        self.proxies: list[Proxy] = []

    def to(self, target: Callable[[], int | str]) -> Proxy:
        """Return a new proxy. ``target`` returns the port of the server, or the path of its socket."""
        proxy = Proxy(target, random.Random(self._rng.random()))
        self._servers.append(asyncio.run_coroutine_threadsafe(proxy.listen(), self._loop).result())
        self.proxies.append(proxy)
        return proxy

    def call(self, action: Callable[[], None]) -> None:
        """Call a method of a proxy in the thread of the proxies."""

        async def run() -> None:
            action()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for proxy in self.proxies:
            await proxy.close()
