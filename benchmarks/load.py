"""A closed loop of HTTP requests over several connections, on one thread.

Each connection sends its next request when it has received the answer to the last one. The requests are prepared
before the clock starts, because preparing them costs more than sending them.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import uvloop


@dataclass(slots=True)
class Load:
    """The results of a load.

    Attributes:
        seconds: Duration of the measurement.
        latencies_s: Time from each request to the end of its answer.
        statuses: Number of answers by status.
        last_body: Body of the last answer.
        error: The error that ended the load.
    """

    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    last_body: bytes = b""
    error: BaseException | None = None

    @property
    def count(self) -> int:
        """Number of answers."""
        return len(self.latencies_s)

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.count / self.seconds

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the latencies in milliseconds."""
        ordered = sorted(self.latencies_s)
        return 1000 * ordered[min(self.count - 1, int(self.count * percent / 100))]


class _Connection(asyncio.Protocol):
    """One connection: it sends a request after each answer until the end of the load."""

    def __init__(self, requests: Iterator[bytes], load: Load, until: float, ended: "asyncio.Future[None]") -> None:
        self._requests, self._load, self._until, self._ended = requests, load, until, ended
        self._parser = httptools.HttpResponseParser(self)
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def _next(self) -> None:
        request = next(self._requests, None) if time.perf_counter() < self._until else None
        if request is None:
            self._transport.close()
            return
        self._body: list[bytes] = []
        self._sent = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body of an answer."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Count the answer, and send the next request."""
        status, load = self._parser.get_status_code(), self._load
        load.latencies_s.append(time.perf_counter() - self._sent)
        load.statuses[status] = load.statuses.get(status, 0) + 1
        load.last_body = b"".join(self._body)
        self._next()

    def connection_lost(self, error: Exception | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)


def request_bytes(url: str, path: str, body: bytes, headers: str = "") -> bytes:
    """Return a POST request with a JSON body."""
    host = urlsplit(url).netloc
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n{headers}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def send(url: str, requests: Iterator[bytes], connections: int, seconds: float, answers: int = 2) -> Load:
    """Send requests for ``seconds``, and return the results. ``answers`` is the first digit of the expected statuses.

    Raises:
        RuntimeError: If an answer has another status.
        ConnectionError: If a connection is lost.
    """
    load = Load()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()

        def fail(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            load.error = context.get("exception") or RuntimeError(context["message"])
            assert task is not None
            task.cancel()

        loop.set_exception_handler(fail)
        host, _, port = urlsplit(url).netloc.rpartition(":")
        began = time.perf_counter()
        ends: list[asyncio.Future[None]] = [loop.create_future() for _ in range(connections)]
        # All at once, because the first connections already send while the others are opened.
        await asyncio.gather(
            *(
                loop.create_connection(partial(_Connection, requests, load, began + seconds, ended), host, int(port))
                for ended in ends
            )
        )
        await asyncio.gather(*ends)
        load.seconds = time.perf_counter() - began

    try:
        uvloop.run(run())
    except asyncio.CancelledError:
        raise load.error or RuntimeError("The load was cancelled.") from None
    if failed := {status: count for status, count in load.statuses.items() if status // 100 != answers}:
        raise RuntimeError(f"Answers other than {answers}xx: {failed}; the last body is {load.last_body[:300]!r}.")
    return load
