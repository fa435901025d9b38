"""Limits on HTTP connections: how many a replica serves, and how large and how slow a request may be.

uvicorn bounds neither the head of a request nor the time that a client takes to send it. No key is needed to open a
connection, so both are bounded here, before a request is read.
"""

import ipaddress
import logging
from asyncio import AbstractEventLoop, Transport
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tidegate.api.problems import Problem
from tidegate.runtime.metrics import Metrics

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
LOG_INTERVAL_S = 10.0
ADDRESSES_LOGGED = 3
REASONS = {
    "malformed": "no valid HTTP",
    "head_too_large": f"request head over {MAX_HEAD_BYTES // 1024} KiB or {MAX_HEADERS} headers",
    "url_too_long": "URL too long",
    "request_timeout": "request not complete within TIDEGATE_REQUEST_TIMEOUT_S",
    "response_timeout": "answer not read within TIDEGATE_REQUEST_TIMEOUT_S",
    "too_many_connections": "over TIDEGATE_MAX_CONNECTIONS",
    "too_many_from_address": "over TIDEGATE_MAX_CONNECTIONS_PER_ADDRESS",
}
"""Why a connection is refused or cut off, by the code of the problem and the label of the metric."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one replica.

    Attributes:
        connections: Open connections.
        per_address: Open connections from one client address.
        request_timeout_s: Seconds in which a client must send a request, or take some of its answer.
        trusted_proxies: Networks to which ``per_address`` does not apply, because many clients share their addresses.
    """

    connections: int
    per_address: int
    request_timeout_s: float
    trusted_proxies: Sequence[Network] = ()


class Connections:
    """The open connections of a replica."""

    def __init__(self, limits: ConnectionLimits, metrics: Metrics) -> None:
        self._limits, self._metrics = limits, metrics
        self._open: set[Connection] = set()
        self._by_address: Counter[str] = Counter()
        self._closed: Counter[tuple[str, str]] = Counter()
        self._next_log = 0.0
        metrics.watch_connections(lambda: len(self._open), limits.connections, REASONS)

    def protocol(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
    ) -> "Connection":
        """Return the protocol of a new connection; the signature is the one that uvicorn calls."""
        return Connection(self, config, server_state, app_state, _loop)

    def admit(self, connection: "Connection", address: str) -> Problem | None:
        """Count a new connection, or return why it is refused."""
        later = {"Retry-After": "5"}
        if len(self._open) >= self._limits.connections:
            detail = f"This replica has {len(self._open)} connections, its limit. Try again later."
            return Problem(503, "too_many_connections", detail, later)
        if self._by_address[address] >= self._limits.per_address and not self._is_trusted(address):
            detail = f"{address} has {self._by_address[address]} connections here, its limit. Use fewer."
            return Problem(503, "too_many_from_address", detail, later)
        self._open.add(connection)
        self._by_address[address] += 1
        return None

    def remove(self, connection: "Connection", address: str) -> None:
        """Forget a connection that was lost."""
        if connection in self._open:
            self._open.remove(connection)
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def closed(self, address: str, reason: str) -> None:
        """Count a connection that this replica refused or cut off."""
        self._metrics.refused_connections.labels(reason).inc()
        self._closed[reason, address] += 1

    def check(self, now: float) -> None:
        """Close connections whose clients are too slow, and log what was closed; called once a second.

        Args:
            now: Monotonic time in seconds.
        """
        for connection in list(self._open):
            connection.check(now, self._limits.request_timeout_s)
        if self._closed and now >= self._next_log:
            self._next_log = now + LOG_INTERVAL_S
            log.warning("Closed connections: %s.", self._summary())
            self._closed.clear()

    def _summary(self) -> str:
        """Return the number of closed connections for each reason, with the addresses that have most of them."""
        by_reason: dict[str, Counter[str]] = {}
        for (reason, address), number in self._closed.items():
            by_reason.setdefault(reason, Counter())[address] += number
        texts = []
        for reason, addresses in sorted(by_reason.items()):
            named = ", ".join(f"{number} from {address}" for address, number in addresses.most_common(ADDRESSES_LOGGED))
            more = len(addresses) - ADDRESSES_LOGGED
            texts.append(f"{REASONS[reason]} ({named}{f', {more} more addresses' if more > 0 else ''})")
        return "; ".join(texts)

    def _is_trusted(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:  # a unix socket has no address
            return False
        return any(parsed in network for network in self._limits.trusted_proxies)


class _Trailers(list[tuple[bytes, bytes]]):
    """Trailers of a request, which nothing reads: no more than there may be headers."""

    def append(self, trailer: tuple[bytes, bytes]) -> None:
        if len(self) >= MAX_HEADERS:
            raise ValueError("too many trailers")
        super().append(trailer)


class Connection(HttpToolsProtocol):
    """A connection whose requests are bounded in size and in time."""

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: AbstractEventLoop | None,
    ) -> None:
        super().__init__(config, server_state, app_state, loop)
        self._connections = connections
        self._address = ""
        self._problem: Problem | None = None
        self._serving: RequestResponseCycle | None = None  # uvicorn's `cycle` is the newest, which may be queued
        self._head_open = self._head_split = False
        self._head_bytes = 0  # at least so many of a head that came in several pieces
        self._piece_bytes = 0
        self._progress = False
        self._stalled_bytes = 0
        self._closing_since: float | None = None
        self._requests = 0
        # When the client began to owe something: what it was (see :meth:`_owed`), and since when.
        self._owed_before: tuple[object, ...] | None = None
        self._owed_since = 0.0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Admit the connection, or refuse it with a problem document."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        problem = self._connections.admit(self, self._address)
        if problem is not None:
            self._refuse(problem)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place of the connection to another one, and tell the request that is served."""
        self._connections.remove(self, self._address)
        serving = self._serving
        super().connection_lost(exc)
        if serving is not None and not serving.response_complete:
            serving.disconnected = True
            serving.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Parse some bytes, and refuse a head, or trailers, that are too large before all of it has come."""
        self._piece_bytes, self._progress = len(data), False
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return  # there is nothing to upgrade to; the request is served as it is
        except httptools.HttpParserError:
            if self._problem is not None:
                self._refuse(self._problem)
            else:
                self._connections.closed(self._address, "malformed")
                self.send_400_response("Invalid HTTP request received.")
            return
        if self._head_open:
            # The first piece may begin with the end of another request.
            self._head_bytes += len(data) if self._head_split else self._head_size()
            self._head_split = True
            unfinished = self._head_bytes
        else:
            unfinished = self._stalled_bytes = 0 if self._progress else self._stalled_bytes + len(data)
        if unfinished > MAX_HEAD_BYTES:
            self._refuse(self._head_too_large())

    def on_message_begin(self) -> None:
        """Begin the head of a request."""
        self._head_open, self._head_split, self._head_bytes = True, False, 0
        self._requests += 1
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._progress = True
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        """Serve a request whose head is within the limits.

        Raises:
            ValueError: If it is not. The parser ends with it, and :meth:`data_received` answers.
        """
        self._head_open, self._progress = False, True
        # The exact size is only summed up where it may be over the limit.
        may_be_large = self._head_split or self._piece_bytes > MAX_HEAD_BYTES
        if len(self.headers) > MAX_HEADERS or (may_be_large and self._head_size() > MAX_HEAD_BYTES):
            self._problem = self._head_too_large()
            raise ValueError(self._problem.code)
        super().on_headers_complete()
        self.headers = _Trailers()  # what comes from now on belongs to no request

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._serving = cycle
        super()._start_asgi_task(cycle, app)

    def check(self, now: float, timeout_s: float) -> None:
        """Close the connection if its client has sent no request, or taken no answer, for too long."""
        if self.transport.is_closing():  # and what was written is not read
            if self._closing_since is None:
                self._closing_since = now
            elif now - self._closing_since >= timeout_s:
                self.transport.abort()
            return
        owed = self._owed()
        if owed is None or owed != self._owed_before:
            self._owed_before, self._owed_since = owed, now
        elif now - self._owed_since >= timeout_s:
            if owed[0] == "request":
                detail = f"The request did not arrive within {timeout_s:g} s."
                self._refuse(Problem(408, "request_timeout", detail))
            else:
                self._connections.closed(self._address, "response_timeout")
                self.transport.abort()

    def _owed(self) -> tuple[object, ...] | None:
        """Return what the client has to do next and how far it is, or None while this replica has to act."""
        if self.flow.write_paused:
            return "response", self._requests, self.transport.get_write_buffer_size()
        serving = self._served()
        if serving is not None and not (serving.more_body and not self.flow.read_paused):
            return None
        return "request", self._requests

    def _served(self) -> RequestResponseCycle | None:
        """Return the request whose answer is due."""
        serving = self._serving
        return None if serving is None or serving.response_complete else serving

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _head_too_large(self) -> Problem:
        if len(self.url) > MAX_HEAD_BYTES // 2:
            return Problem(414, "url_too_long", "Send a shorter URL.")
        detail = f"Send at most {MAX_HEADERS} headers, and {MAX_HEAD_BYTES // 1024} KiB of URL and headers."
        return Problem(431, "head_too_large", detail)

    def _refuse(self, problem: Problem) -> None:
        """Answer with a problem document unless another request's answer is due, and close the connection."""
        self._connections.closed(self._address, problem.code)
        if self.transport.is_closing():
            return
        serving = self._served()
        if serving is not None and (serving.response_started or not serving.more_body):
            self.transport.abort()
            return
        body = problem.body()
        headers = {
            "content-type": "application/problem+json",
            "content-length": str(len(body)),
            "connection": "close",
            **(problem.headers or {}),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[problem.status] + lines.encode() + b"\r\n" + body)
        self.transport.close()
        if serving is not None:
            serving.disconnected = True
            serving.message_event.set()
