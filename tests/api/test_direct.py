"""Calls that a middleware serves directly: the answers equal those of the routes in FastAPI."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.support.api import CONFIG, RUN, problem
from tests.support.clock import VirtualClock
from tests.support.local import LocalCoordinator
from tidegate import app
from tidegate.store.embedded import EmbeddedValkey
from tidegate.views.reader import Reader

REPORT = {"substreams": ["a"], "max_event_times": [100]}
BATCH = {"query": "q", "batch_id": 0, "partition": 0, **RUN}
ROWS = {"substreams": ["a"], "on_time": [1], "late": [0], "null_event_time": [0]}
JSON = {"content-type": "application/json"}
FLOAT = b'{"substreams": ["a"], "max_event_times": [1.5e2]}'
LARGE = b" " * 5000 + FLOAT


class Chunked:
    """A body without Content-Length. It can be sent several times."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._body), 1000):
            yield self._body[start : start + 1000]


REQUESTS: dict[str, dict[str, Any]] = {
    "report": {"json": REPORT},
    "repeated report": {"json": REPORT},
    "staged report of no batch": {"json": REPORT | {"batch": BATCH}},
    "integer as a float": {"content": FLOAT, "headers": JSON},
    "not an integer": {"json": REPORT | {"max_event_times": [1.5]}},
    "not JSON": {"content": b"{", "headers": JSON},
    "no body": {},
    "empty body": {"content": b"", "headers": JSON},
    "other content type": {"content": FLOAT, "headers": {"content-type": "text/plain"}},
    "unknown member": {"json": REPORT | {"more": 1}},
    "columns of unequal length": {"json": REPORT | {"watermarks": []}},
    "watermark without event time": {"json": {"substreams": ["a"], "watermarks": [5]}},
    "forged token": {"json": REPORT | {"watermark_token": "1.5.x"}},
    "too large": {"content": LARGE, "headers": JSON},
    "too large, in chunks": {"content": Chunked(LARGE), "headers": JSON},
    "foreign site": {"json": REPORT, "headers": {"origin": "http://other.example"}},
    "foreign host": {"json": REPORT, "headers": {"host": "other.example"}},
    "invalid request id": {"json": REPORT, "headers": {"x-request-id": "?"}},
    "query parameter": {"json": REPORT, "params": {"more": 1}},
    "other method": {"method": "GET"},
    "unknown job": {"json": REPORT, "job": "none"},
    "invalid job": {"json": REPORT, "job": "a b"},
    "long job": {"json": REPORT, "job": "j" * 129},
    "job with a line end": {"json": REPORT, "job": "j%0A"},
    "complete job": {"json": REPORT, "job": "complete"},
    "too many substreams": {"json": {"substreams": ["b", "c"], "max_event_times": [1, 2]}},
    "begin": {"method": "PUT", "path": "/queries/q/batches/0", "json": RUN},
    "begin with a pinned watermark": {
        "method": "PUT",
        "path": "/queries/q/batches/0",
        "json": RUN | {"pinned_watermark": 7},
    },
    "begin without a run": {"method": "PUT", "path": "/queries/q/batches/0", "json": {}},
    "begin with leading zeros": {"method": "PUT", "path": "/queries/q/batches/00", "json": RUN},
    "begin of a negative batch": {"method": "PUT", "path": "/queries/q/batches/-1", "json": RUN},
    "begin of a batch beyond exact numbers": {"method": "PUT", "path": f"/queries/q/batches/{2**53}", "json": RUN},
    "begin of no number": {"method": "PUT", "path": "/queries/q/batches/x", "json": RUN},
    "begin of an invalid query": {"method": "PUT", "path": "/queries/a b/batches/0", "json": RUN},
    "begin with a query parameter": {
        "method": "PUT",
        "path": "/queries/q/batches/0",
        "json": RUN,
        "params": {"more": 1},
    },
    "staged report": {"json": REPORT | {"batch": BATCH}},
    "commit": {"path": "/queries/q/batches/0:commit", "json": RUN | {"rows": ROWS, "reported": 0}},
    "commit of a batch that did not begin": {"path": "/queries/q/batches/9:commit", "json": RUN},
    "commit of columns of unequal length": {
        "path": "/queries/q/batches/0:commit",
        "json": RUN | {"rows": ROWS | {"late": []}},
    },
    "other verb": {"path": "/queries/q/batches/0:other", "json": RUN},
}


class NotDirect:
    """A middleware that serves no calls."""

    def __init__(self, app: ASGIApp, routes: object, context: object, document: object) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


@pytest.fixture(scope="module")
def both(valkey: EmbeddedValkey) -> Iterator[list[httpx.Client]]:
    """Yield clients of two coordinators with one clock: the first serves calls directly, the second does not."""
    clock = VirtualClock()
    first, second = (
        LocalCoordinator(valkey, clock, max_body_bytes=4096, max_substreams=2, sweep_interval_ms=60_000)
        for _ in range(2)
    )
    second.token_key = first.token_key
    with pytest.MonkeyPatch.context() as patch, first:
        patch.setattr(app, "DirectCalls", NotDirect)
        with second, httpx.Client(base_url=first.url) as one, httpx.Client(base_url=second.url) as two:
            for http in (one, two):
                for job in ("j", "complete"):
                    http.put(f"/v1/jobs/{job}", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
                http.post("/v1/jobs/complete:complete", json={}).raise_for_status()
            yield [one, two]


def comparable(answer: httpx.Response) -> tuple[Any, ...]:
    """Return what must be equal: all but the time of the answer, random ids, and the random epoch of the state."""
    headers = {name: value for name, value in answer.headers.items() if name not in ("date", "x-request-id")}
    document = answer.json() if answer.content else None
    if isinstance(document, dict):
        document.pop("state_epoch", None)
    return answer.status_code, headers, document


@pytest.mark.parametrize("name", REQUESTS)
def test_the_answers_are_equal(both: list[httpx.Client], name: str) -> None:
    """Bodies, headers and statuses are equal, for accepted and refused requests."""
    request = {"method": "POST", "headers": {}, **REQUESTS[name]}
    method, path = request.pop("method"), request.pop("job", "j") + request.pop("path", ":report")
    answers = [http.request(method, f"/v1/jobs/{path}", **request) for http in both]
    assert comparable(answers[0]) == comparable(answers[1])


def test_an_unexpected_error_is_answered_and_logged(
    both: list[httpx.Client], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer is a problem with a request id. The server logs the error, and the metrics count the answer."""

    def fail(*_: object) -> bytes:
        raise ArithmeticError("injected")

    monkeypatch.setattr(Reader, "command_json", fail)
    for http in both:
        caplog.clear()
        answer = http.post("/v1/jobs/j:report", json=REPORT)
        assert problem(answer, 500, "internal") and answer.headers["x-request-id"]
        # The server logs the error and closes the connection before it serves the next request.
        assert 'call="report",status="500"' in httpx.get(f"{http.base_url}/metrics").text
        [error] = [record.exc_info for record in caplog.records if record.exc_info]
        assert isinstance(error[1], ArithmeticError)


def test_the_metrics_are_equal(both: list[httpx.Client]) -> None:
    """Both count reports, and requests by call and status."""
    pattern = r'^(tidegate_(?:reports_total|http_request_duration_seconds_count)\{[^}]*(?:job_name|call="report").*)$'
    for http in both:
        http.post("/v1/jobs/j:report", json=REPORT)
        http.post("/v1/jobs/j:report", json={})
    one, two = (set(re.findall(pattern, http.get("/metrics").text, re.MULTILINE)) for http in both)
    assert one == two and len(one) >= 3
