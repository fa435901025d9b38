"""Requests that can be changed and encoded, and cases: the bytes that one connection sends."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

Headers = list[tuple[bytes, bytes]]


@dataclass
class Request:
    """A request. Nothing checks that it is valid HTTP.

    Attributes:
        operation: Id of the operation that the request calls, or a description.
        target: Path and query, as sent.
        body: The body. ``None`` sends no ``Content-Length``.
        document: The JSON value of the body, for mutations. :meth:`encode` does not use it.
    """

    operation: str
    method: bytes
    target: bytes
    headers: Headers
    body: bytes | None = None
    document: Any = None

    def encode(self) -> bytes:
        """Return the bytes of the request."""
        lines = [b"%b %b HTTP/1.1" % (self.method, self.target)]
        lines += [b"%b: %b" % header for header in self.headers]
        if self.body is not None and not self.has(b"content-length") and not self.has(b"transfer-encoding"):
            lines.append(b"content-length: %d" % len(self.body))
        return b"\r\n".join(lines) + b"\r\n\r\n" + (self.body or b"")

    def has(self, name: bytes) -> bool:
        """Return whether the request has a header."""
        return any(each.lower() == name for each, _ in self.headers)

    def set(self, name: bytes, value: bytes) -> None:
        """Replace a header."""
        self.headers = [each for each in self.headers if each[0].lower() != name]
        self.headers.append((name, value))


@dataclass
class Case:
    """What one connection sends, and what must come back.

    Attributes:
        kind: Kind of the case, for the summary.
        operation: Id of the operation, or a description.
        wire: The bytes to send.
        methods: Methods of the requests, in order. There is no answer beyond their number.
        must_answer: Whether every request must be answered. Otherwise the coordinator may also close the connection.
        piece: Number of bytes to send at once; 0 sends all of them.
        pause_s: Pause between two pieces.
        leaves: Whether the client closes the connection after it has sent everything, without reading.
    """

    kind: str
    operation: str
    wire: bytes
    methods: list[bytes] = field(default_factory=lambda: [b"GET"])
    must_answer: bool = True
    piece: int = 0
    pause_s: float = 0.0
    leaves: bool = False


def target_of(path: str, query: Mapping[str, Any]) -> bytes:
    """Return a path with query parameters, which may be lists."""
    pairs = [(name, each) for name, value in query.items() for each in (value if isinstance(value, list) else [value])]
    encoded = "&".join(f"{quote(name, safe='')}={quote(_text(value), safe='')}" for name, value in pairs)
    return f"{path}?{encoded}".encode() if encoded else path.encode()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
