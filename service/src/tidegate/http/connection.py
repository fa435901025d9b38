"""HTTP/1.1 for one connection, with limits on the size and the duration of a request.

uvicorn limits neither the head of a request nor the time in which a client must send it, nor the number of requests
that wait for the answer to an earlier one. A client needs no key to open a connection, so this module limits them.

A proxy and this service must read the same requests from the same bytes. Otherwise a client could hide a request from
the rules of the proxy. This module therefore refuses requests that servers read in different ways, and ignores
upgrades, because llhttp takes the bytes after an upgrade for another protocol.
"""

import asyncio
import logging
import socket
import sys
from collections import Counter, defaultdict
from typing import Any, Protocol

import httptools
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tidegate.auth.usage import network, parsed_address
from tidegate.http.call import call_of
from tidegate.http.problems import Problem
from tidegate.runtime.metrics import Metrics
from tidegate.settings import Settings

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
MAX_PIPELINED = 100
"""Maximum number of requests of one connection that wait for the answer to an earlier request."""
LOG_INTERVAL_S = 10.0
ADDRESSES_LOGGED = 3
REASONS = {
    "malformed": "invalid or ambiguous HTTP",
    "head_too_large": f"request head over {MAX_HEAD_BYTES // 1024} KiB or {MAX_HEADERS} headers",
    "url_too_long": "URL too long",
    "too_many_pipelined": f"over {MAX_PIPELINED} requests before an answer",
    "request_timeout": "request not complete within TIDEGATE_REQUEST_TIMEOUT_S",
    "response_timeout": "answer not read within TIDEGATE_REQUEST_TIMEOUT_S",
    "too_many_connections": "over TIDEGATE_MAX_CONNECTIONS",
    "too_many_from_address": "over TIDEGATE_MAX_CONNECTIONS_PER_ADDRESS",
}
"""Reasons to refuse or close a connection, as text for the log, by label of the metric."""


class Timed(Protocol):
    """A connection with a timeout for its client."""

    def check(self, now: float, timeout_s: float) -> None:
        """Close the connection if its client is slower than ``timeout_s``. ``now`` is monotonic time in seconds."""

    def stop_waiting(self) -> None:
        """Close the connection if its client has not sent its request or read its answer."""


class Connections:
    """The open connections of a replica.

    An address is one IPv4 address or one IPv6 /64 network. The limit per address does not apply to trusted proxies,
    because many clients share a proxy.

    Args:
        settings: Settings of the service.
        max_connections: Maximum number of open connections. It is lower than the setting if the process may open only
            few files.
        metrics: Metrics of the replica.
    """

    def __init__(self, settings: Settings, max_connections: int, metrics: Metrics) -> None:
        self._settings, self._max_connections, self._metrics = settings, max_connections, metrics
        self._max_per_address = min(settings.max_connections_per_address, max_connections // 2)
        self._open: set[Timed] = set()
        self._by_network: Counter[str] = Counter()
        self._closed: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by reason and address
        self._next_log = 0.0
        metrics.observe_connections(lambda: len(self._open), max_connections, REASONS)

    def admit(self, connection: Timed, address: str) -> Problem | None:
        """Count a new connection and return None, or return the problem with which to refuse it."""
        if len(self._open) >= self._max_connections:
            detail = f"This replica has reached its limit of {len(self._open)} connections; try again later."
            return Problem("too_many_connections", detail)
        of = network(address)
        if self._by_network[of] >= self._max_per_address and not self._is_trusted(address):
            number = self._by_network[of]
            detail = f"{of} has reached the limit of {number} connections from one address; use fewer connections."
            return Problem("too_many_from_address", detail)
        self._open.add(connection)
        self._by_network[of] += 1
        return None

    def remove(self, connection: Timed, address: str) -> None:
        """Stop counting a connection that has ended."""
        if connection in self._open:
            self._open.remove(connection)
            of = network(address)
            self._by_network[of] -= 1
            if not self._by_network[of]:
                del self._by_network[of]

    def closed(self, address: str, reason: str) -> None:
        """Count a connection that this replica refused or closed."""
        self._metrics.refused_connections.labels(reason).inc()
        self._closed[reason][address] += 1

    def check(self, now: float) -> None:
        """Close the connections of clients that are too slow, and log the connections closed since the last log line.

        Args:
            now: Monotonic time in seconds.
        """
        for connection in list(self._open):
            connection.check(now, self._settings.request_timeout_s)
        if self._closed and now >= self._next_log:
            self._next_log = now + LOG_INTERVAL_S
            log.warning("Closed connections: %s.", self._summary())
            self._closed.clear()

    def stop_waiting(self) -> None:
        """Close the connections of clients that have not sent their requests or read their answers."""
        for connection in list(self._open):
            connection.stop_waiting()

    def _summary(self) -> str:
        """Return the closed connections by reason, with the most frequent addresses."""
        texts = []
        for reason, addresses in sorted(self._closed.items()):
            named = ", ".join(f"{number} from {address}" for address, number in addresses.most_common(ADDRESSES_LOGGED))
            more = len(addresses) - ADDRESSES_LOGGED
            texts.append(f"{REASONS[reason]} ({named}{f', {more} more addresses' if more > 0 else ''})")
        return "; ".join(texts)

    def _is_trusted(self, address: str) -> bool:
        parsed = parsed_address(address)
        return parsed is not None and any(parsed in proxies for proxies in self._settings.trusted_proxies)


SINGLE = (
    b"host",
    b"transfer-encoding",
    b"content-length",
    b"content-type",
    b"expect",
    b"authorization",
    b"cookie",
    b"origin",
    b"sec-fetch-site",
    b"sec-fetch-mode",
    b"sec-fetch-dest",
    b"if-match",
    b"if-none-match",
    b"last-event-id",
)
"""Headers that the service reads and a request may contain once."""
PROCESSING = b"HTTP/1.1 102 Processing\r\n\r\n"
TCP_CLOSE = 7
"""State in ``TCP_INFO`` of a connection that the client has reset."""


class _Trailers(list[tuple[bytes, bytes]]):
    """Trailers of a request. The service limits their number, and ignores their values."""

    def append(self, trailer: tuple[bytes, bytes]) -> None:
        if len(self) >= MAX_HEADERS:
            raise ValueError("too many trailers")
        super().append(trailer)


class Connection(HttpToolsProtocol):
    """A connection with limits on the size and the duration of requests.

    Args:
        connections: The open connections of the replica.
        options: Arguments of uvicorn's ``HttpToolsProtocol``.
    """

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self.url, self.headers = b"", []
        self._connections = connections
        self._address = ""
        self._problem: Problem | None = None
        self._serving: RequestResponseCycle | None = None  # uvicorn's `cycle` may be a queued request
        self._head_open = self._head_split = False
        self._head_bytes = 0  # lower bound for a head that arrives in several pieces
        self._piece_bytes = 0
        self._progress = False
        self._stalled_bytes = 0
        self._ignoring_upgrade = False
        self._half_closed = self._probed = False
        self._closing_since: float | None = None
        self._requests = 0
        # The next step of the client (see `_owed`), and the monotonic time since which it is due.
        self._owed_before: tuple[object, ...] | None = None
        self._owed_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # the type in uvicorn
        """Admit the connection, or refuse it with a problem document."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        problem = self._connections.admit(self, self._address)
        if problem is not None:
            self._refuse(problem)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection, and notify its current request."""
        self._connections.remove(self, self._address)
        if isinstance(exc, TimeoutError):  # the kernel has ended the connection; see `TCP_USER_TIMEOUT` in server.py
            self._connections.closed(self._address, "response_timeout")
        serving = self._serving
        super().connection_lost(exc)
        if serving is not None and not serving.response_complete:
            serving.disconnected = True
            serving.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes. Refuse a head or trailers over the limit, even if incomplete."""
        self._piece_bytes, self._progress = len(data), False
        self._unset_keepalive_if_required()
        try:
            self._parse(memoryview(data))
        except httptools.HttpParserError:
            if self.transport.is_closing():
                return
            self._refuse(self._problem or Problem("malformed", "The request is not valid HTTP/1.1."))
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

    def _parse(self, data: memoryview) -> None:
        """Parse received bytes, and ignore upgrades (RFC 9110, section 7.8).

        llhttp ends a request with an upgrade after its head, and httptools offers no way to change this. A new parser
        therefore gets the same head without the header ``Upgrade``, and then the bytes that follow the head.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as pause:
                data = data[pause.args[0] :]
                version = self.parser.get_http_version().encode()
                lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
                lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
                self._ignoring_upgrade = False
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn
                self.parser.feed_data(b"\r\n".join(lines) + b"\r\n\r\n")

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn always closes the connection
        """Answer the complete requests of a client that has stopped sending, then close the connection.

        A client that has gone looks the same, see :meth:`_end_if_reset`. An event stream ends, because it may send
        nothing for many seconds.

        Returns:
            Whether the connection stays open for the answers.
        """
        serving = self._served()
        if serving is None or serving.more_body or call_of(serving.scope).is_endless:  # type: ignore[arg-type]  # a TypedDict
            return False
        if not self._half_closed:
            self._half_closed = True
            if self.pipeline and self.cycle.more_body:
                self.pipeline.popleft()  # the last request is incomplete
        return True

    def on_response_complete(self) -> None:
        """Start the next request, or close the connection if the client has stopped sending."""
        super().on_response_complete()
        if self._half_closed and self._served() is None:
            self.transport.close()

    def on_message_begin(self) -> None:
        """Start counting the bytes of the head of a request."""
        self._head_open, self._head_split, self._head_bytes = True, False, 0
        self._requests += 1
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. The space after a value is not part of the value (RFC 9112, section 5)."""
        super().on_header(name, value.rstrip(b" \t"))

    def on_body(self, body: bytes) -> None:
        """Record that a part of a body has arrived."""
        self._progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Record the end of a request."""
        if self._ignoring_upgrade:
            return  # only the head is complete
        self._progress = True
        if not self.parser.should_keep_alive():  # llhttp ignores all further bytes, also after a trailer
            self.cycle.keep_alive = False
            if self.cycle.response_complete:
                self.transport.close()
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        """Serve a request whose head is within the limits and unambiguous.

        Raises:
            ValueError: If the head is too large or ambiguous. The parser stops, and :meth:`data_received` answers. Or
                if too many requests wait. The connection then ends without an answer, because earlier answers are due.
        """
        if len(self.pipeline) >= MAX_PIPELINED:
            self._connections.closed(self._address, "too_many_pipelined")
            self.transport.abort()
            raise ValueError("too many pipelined requests")
        self._head_open, self._progress = False, True
        # The exact size is computed only if it can be over the limit.
        may_be_large = self._head_split or self._piece_bytes > MAX_HEAD_BYTES
        if len(self.headers) > MAX_HEADERS or (may_be_large and self._head_size() > MAX_HEAD_BYTES):
            self._problem = self._head_too_large()
        elif (detail := self._ambiguity()) is not None:
            self._problem = Problem("malformed", detail)
        if self._problem is not None:
            raise ValueError(self._problem.code)
        if self.parser.should_upgrade():
            self._ignoring_upgrade = True
            return
        super().on_headers_complete()
        self.headers = _Trailers()  # further headers are trailers

    def _ambiguity(self) -> str | None:
        """Return why a proxy could read another request from the same head, or None."""
        headers = dict(self.headers)
        if len(headers) < len(self.headers):
            names = [name for name, _ in self.headers]
            for name in SINGLE:
                if names.count(name) > 1:
                    return f"The request has {names.count(name)} headers {name.decode()!r}; send one."
        version, method = self.parser.get_http_version(), self.parser.get_method()
        if version not in ("1.0", "1.1"):
            return f"The request has the version HTTP/{version}; send HTTP/1.1."
        host = headers.get(b"host")
        if host is None and version == "1.1":
            return "The request has no header 'host'; send it."
        if headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            return "The request has a transfer encoding that the service does not support; send 'chunked'."
        if method == b"CONNECT":
            return "The service is not a proxy, so it does not support CONNECT."
        if not self.url.startswith(b"/") and self.url != b"*":
            origin = b"://%b/" % (host or b"").lower()
            if not self.url.lower().startswith((b"http" + origin, b"https" + origin)):
                return "The target of the request is neither a path nor a URL of the host in the header 'host'."
        if b"#" in self.url:
            return "The target of the request has a fragment; send the target without '#'."
        return None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._serving = cycle
        if cycle.scope["http_version"] == "1.0":
            cycle.waiting_for_100_continue = False  # HTTP/1.0 has no interim answers

        async def until_stop(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            try:
                await app(scope, receive, send)
            except asyncio.CancelledError:  # uvicorn logs the number of the requests that it cancels when it stops
                cycle.disconnected = True
                self.transport.abort()

        super()._start_asgi_task(cycle, until_stop)

    def check(self, now: float, timeout_s: float) -> None:
        """Close the connection if the client does not send its request or read its answer within ``timeout_s``."""
        if self.transport.is_closing():  # still open, because the client has not read the last answer
            if self._closing_since is None:
                self._closing_since = now
            elif now - self._closing_since >= timeout_s:
                self.transport.abort()
            return
        if self._half_closed and sys.platform == "linux":
            self._end_if_reset()
        owed = self._owed()
        if owed is None or owed != self._owed_before:
            self._owed_before, self._owed_since = owed, now
        elif now - self._owed_since >= timeout_s:
            if owed[0] == "request":
                detail = f"The request did not arrive within {timeout_s:g} s; send it again."
                self._refuse(Problem("request_timeout", detail))
            else:
                self._connections.closed(self._address, "response_timeout")
                self.transport.abort()

    def stop_waiting(self) -> None:
        """Close the connection if its client has not sent its request or read its answer."""
        owed = self._owed()
        if self.transport.is_closing() or (owed is not None and owed[0] == "response"):
            self.transport.abort()
        elif owed is not None:
            detail = "The request did not arrive before the coordinator stopped; send it again."
            self._refuse(Problem("request_timeout", detail))

    def _owed(self) -> tuple[object, ...] | None:
        """Return what the client must do next, with its progress, or None while the client waits for this replica."""
        if self.flow.write_paused:
            return "response", self._requests, self.transport.get_write_buffer_size()
        serving = self._served()
        if serving is not None and not (serving.more_body and not self.flow.read_paused):
            return None
        return "request", self._requests

    def _served(self) -> RequestResponseCycle | None:
        """Return the request in progress, or None if the connection is idle."""
        serving = self._serving
        return None if serving is None or serving.response_complete else serving

    def _end_if_reset(self) -> None:
        """End a half-closed connection whose client has gone.

        The host of such a client resets the connection when this replica sends something, so a call that takes long
        sends an interim answer. The event loop no longer reads from the connection, so it does not notice the reset.
        """
        info = self.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        serving = self._served()
        if info[0] == TCP_CLOSE:
            self.transport.abort()
        elif serving is not None and not (self._probed or serving.response_started):
            self._probed = True
            if serving.scope["http_version"] == "1.1":
                self.transport.write(PROCESSING)

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _head_too_large(self) -> Problem:
        if len(self.url) > MAX_HEAD_BYTES // 2:
            return Problem("url_too_long", f"The URL is too long; send at most {MAX_HEAD_BYTES // 2048} KiB.")
        size = f"{MAX_HEAD_BYTES // 1024} KiB of URL and headers"
        detail = f"The head of the request is too large; send at most {MAX_HEADERS} headers, and {size}."
        return Problem("head_too_large", detail)

    def _refuse(self, problem: Problem) -> None:
        """Close the connection. Send a problem document first, unless the request is complete or has an answer."""
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
            **problem.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[problem.status] + lines.encode() + b"\r\n" + body)
        self.transport.close()
        if serving is not None:
            serving.disconnected = True
            serving.message_event.set()
