"""Answers of a connection, and what is wrong with them."""

import json
from dataclasses import dataclass, field
from typing import Any

import httptools

from tests.fuzz.messages import Case
from tidegate.http.problems import ERRORS

UNHEALTHY = {"internal", "store_unavailable", "store_full", "store_read_only", "clock_jumped"}
"""Errors that no request may cause."""
RETRY = (429, 503)


@dataclass
class Answer:
    """An answer. It is complete when its body is, or, for an event stream and for HEAD, when its head is."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False
    is_head: bool = False

    @property
    def is_stream(self) -> bool:
        """Whether the answer is an event stream, which does not end."""
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def problem(self) -> str | None:
        """Return what is wrong with the answer, or None."""
        kind = self.headers.get("content-type", "")
        if self.status >= 500 and self.status != 503:
            return f"status {self.status}"
        if self.status in RETRY and "retry-after" not in self.headers:
            return f"status {self.status} without Retry-After"
        if kind == "application/problem+json":
            return self._wrong_document()
        if kind.startswith("text/html") or self.status < 300:
            return self._wrong_json() if kind == "application/json" else None
        return None if self.status in (303, 304, 307) or "/static" in kind else self._unknown(kind)

    def _unknown(self, kind: str) -> str | None:
        return f"status {self.status} with content type {kind!r}"

    def _wrong_json(self) -> str | None:
        try:
            if not self.is_head:
                json.loads(self.body, parse_constant=_refuse)
        except ValueError as error:
            return f"invalid JSON in an answer ({error})"
        return None

    def _wrong_document(self) -> str | None:
        if self.is_head:
            return None
        try:
            document: dict[str, Any] = json.loads(self.body, parse_constant=_refuse)
            code = document["type"].removeprefix("urn:tidegate:problem:")
        except (ValueError, KeyError, TypeError) as error:
            return f"invalid problem document ({error!r})"
        if code not in ERRORS or ERRORS[code].status != self.status:
            return f"undocumented problem {document['type']!r} with status {self.status}"
        if len(self.body) > 20_000:
            return f"a problem document of {len(self.body)} bytes"
        return f"problem {code}" if code in UNHEALTHY else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


class Reader:
    """The answers that arrive on a connection.

    Args:
        case: What the connection sends.
    """

    def __init__(self, case: Case) -> None:
        self.answers: list[Answer] = []
        self._case = case
        self._parser = httptools.HttpResponseParser(self)
        self.invalid: str | None = None

    def feed(self, data: bytes) -> None:
        """Parse received bytes."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not (self.answers and self.answers[-1].complete):
                self.invalid = f"the answer is not HTTP ({error!r}): {data[:200]!r}"

    @property
    def complete(self) -> bool:
        """Whether all expected answers are complete, or no further answer can follow."""
        done = [answer for answer in self.answers if answer.complete]
        last = bool(done) and (done[-1].headers.get("connection") == "close" or done[-1].is_stream)
        return len(done) >= len(self._case.methods) or last or self.invalid is not None

    def wrong(self, ended: bool) -> str | None:
        """Return what is wrong with the answers, or None.

        Args:
            ended: Whether the coordinator has closed the connection. Otherwise, the time is over.
        """
        if self.invalid is not None:
            return self.invalid
        for answer in self.answers:
            if answer.status and (problem := answer.problem()) is not None and answer.complete:
                return problem
        if self.complete or self._case.leaves:
            return None
        if not ended:
            return "no complete answer in time"
        return "the connection ended without an answer" if self._case.must_answer else None

    # -- callbacks of the parser ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin an answer."""
        if not self.answers or self.answers[-1].complete:
            self.answers.append(Answer())

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header."""
        self.answers[-1].headers[name.decode().lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """End the head of an answer."""
        answer = self.answers[-1]
        answer.status = self._parser.get_status_code()
        place = len(self.answers) - 1
        answer.is_head = place < len(self._case.methods) and self._case.methods[place] == b"HEAD"
        if answer.is_head or answer.is_stream:
            answer.complete = True

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        self.answers[-1].body += body

    def on_message_complete(self) -> None:
        """End an answer. ``100 Continue`` is not one."""
        answer = self.answers[-1]
        if answer.status == 100:
            self.answers.pop()
        else:
            answer.complete = True
