"""HTTP/1.1 for one connection, with limits on the size and the duration of a request.

uvicorn limits neither the head of a request nor the time in which a client must send it, nor the number of requests
that wait for the answer to an earlier one. A client needs no key to open a connection, so this module limits them.
"""

from asyncio import Transport
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tidegate.web.connections import MAX_HEAD_BYTES, MAX_HEADERS, MAX_PIPELINED, Connections
from tidegate.web.problems import Problem


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
        self._connections = connections
        self._address = ""
        self._problem: Problem | None = None
        self._serving: RequestResponseCycle | None = None  # uvicorn's `cycle` may be a queued request
        self._head_open = self._head_split = False
        self._head_bytes = 0  # lower bound for a head that arrives in several pieces
        self._piece_bytes = 0
        self._progress = False
        self._stalled_bytes = 0
        self._closing_since: float | None = None
        self._requests = 0
        # The next step of the client (see `_owed`), and the monotonic time since which it is due.
        self._owed_before: tuple[object, ...] | None = None
        self._owed_since = 0.0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # the type in uvicorn
        """Admit the connection, or refuse it with a problem document."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        problem = self._connections.admit(self, self._address)
        if problem is not None:
            self._refuse(problem)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection, and notify its current request."""
        self._connections.remove(self, self._address)
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
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return  # upgrades are not supported: the request is served without an upgrade
        except httptools.HttpParserError:
            if self.transport.is_closing():
                return
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
        """Start counting the bytes of the head of a request."""
        self._head_open, self._head_split, self._head_bytes = True, False, 0
        self._requests += 1
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        """Record that a part of a body has arrived."""
        self._progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Record the end of a request."""
        self._progress = True
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        """Serve a request whose head is within the limits.

        Raises:
            ValueError: If the head is too large. The parser stops, and :meth:`data_received` answers. Or if too many
                requests wait. The connection then ends without an answer, because earlier answers are due.
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
            raise ValueError(self._problem.code)
        super().on_headers_complete()
        self.headers = _Trailers()  # further headers are trailers

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._serving = cycle
        super()._start_asgi_task(cycle, app)

    def check(self, now: float, timeout_s: float) -> None:
        """Close the connection if the client does not send its request or read its answer within ``timeout_s``."""
        if self.transport.is_closing():  # still open, because the client has not read the last answer
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
                detail = f"The request did not arrive within {timeout_s:g} s; send it again."
                self._refuse(Problem("request_timeout", detail))
            else:
                self._connections.closed(self._address, "response_timeout")
                self.transport.abort()

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
