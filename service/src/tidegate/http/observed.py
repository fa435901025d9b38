"""The outermost middleware, which measures, traces and logs every call. It is plain ASGI."""

import logging
import random
import re
import time
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate.auth.usage import Limit, network
from tidegate.domain.values import ID_CHARACTERS
from tidegate.http.call import call_of
from tidegate.http.problems import ACCESS_DENIED, ERRORS, REFUSALS, is_error, is_refusal, is_server_error
from tidegate.runtime.logs import AUDIT, begin_request
from tidegate.runtime.metrics import Metrics
from tidegate.runtime.traces import Traces

log = logging.getLogger(__name__)

audit = logging.getLogger(AUDIT)

REQUEST_ID = b"x-request-id"
SAFE_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
"""Default headers of every answer. Browsers must not guess content types, and proxies must not cache."""
_VALID_REQUEST_ID = re.compile(rf"[{ID_CHARACTERS}]{{1,128}}")
NO_CALL = "none"
"""Name of the call, in metrics and logs, for requests that match no route."""
WRITES = ("POST", "PUT", "PATCH", "DELETE")
LOGIN_CALLS = ("log_in", "log_out")
MAX_PATH = 200
REFUSALS_PER_S = 5
REFUSALS_AT_ONCE = 50
"""Number of refusals of one client that a replica logs at once. Then ``REFUSALS_PER_S`` limits the rate."""


class Observed:
    """A middleware that gives each request an id, and measures, traces and logs it.

    The id is the client's ``X-Request-ID``, or a random id if the header is missing or invalid.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, traces: Traces) -> None:
        self.app, self.metrics, self.traces = app, metrics, traces
        metrics.observe_refused_calls(REFUSALS)
        self._refusals, self._not_logged = Limit(REFUSALS_PER_S, REFUSALS_AT_ONCE), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(scope)
        begin_request(request_id)
        began, status = time.perf_counter(), 0

        async def begin(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                call_of(scope).end_turn()
                _add_headers(message, request_id)
                self.metrics.answered(_call(scope), status, time.perf_counter() - began)
                if is_refusal(status) and call_of(scope).problem:
                    self.metrics.refused(call_of(scope).problem)
            await send(message)

        with self.traces.call(scope["method"], scope["headers"]) as trace:
            try:
                await self.app(scope, receive, begin)
            except Exception:
                if not status:  # the server sends the answer
                    self.metrics.answered(_call(scope), ERRORS["internal"].status, time.perf_counter() - began)
                raise
            if trace is not None:
                name = f"{scope['method']} {_path(scope)}"
                trace.finish(name, _attributes(scope, status), failed=is_server_error(status))
        if status in ACCESS_DENIED or (scope["method"] in WRITES and not _is_routine(scope, status)):
            self._log(scope, status)

    def _log(self, scope: Scope, status: int) -> None:
        """Log refused calls, logins and actions."""
        address = scope["client"][0] if scope.get("client") else ""
        members: dict[str, Any] = {"call": _call(scope), "status": status, "client": address}
        is_login = members["call"] in LOGIN_CALLS
        if not is_error(status):
            audit.info("Logged in or out." if is_login else "Call completed.", extra=members)
            return
        if is_server_error(status) or not self._may_log(scope, address):
            return
        not_logged, self._not_logged = self._not_logged, 0
        members |= {"code": call_of(scope).problem} | ({"not_logged": not_logged} if not_logged else {})
        if is_login:
            audit.info("Login refused.", extra=members)
        elif status in ACCESS_DENIED:
            audit.warning("Access refused.", extra=members | {"path": scope["path"][:MAX_PATH]})
        else:
            log.info("Call refused.", extra={name: value for name, value in members.items() if name != "client"})

    def _may_log(self, scope: Scope, address: str) -> bool:
        """Return whether a refusal may be logged. Without this limit, one client could fill the disk."""
        caller = call_of(scope).caller
        client = network(address) if caller is None or caller.key is None else f"key {caller.key.name}"
        if self._refusals.take(client):
            return True
        self._not_logged += 1
        return False


def _is_routine(scope: Scope, status: int) -> bool:
    """Return whether a call is too frequent to log: a successful report, begin, commit or heartbeat."""
    return not is_error(status) and "reports" in getattr(scope.get("route"), "tags", ())


def _request_id(scope: Scope) -> str:
    sent = next((value for name, value in scope["headers"] if name == REQUEST_ID), b"").decode("latin-1")
    if sent and _VALID_REQUEST_ID.fullmatch(sent):
        return sent
    return f"{random.getrandbits(64):016x}"  # an id must be unique, not secret


def _add_headers(message: Message, request_id: str) -> None:
    names = {name for name, _ in message["headers"]}  # in lower case, as ASGI requires
    missing = [header for header in SAFE_HEADERS if header[0] not in names]
    message["headers"] = [*message["headers"], *missing, (REQUEST_ID, request_id.encode())]


def _call(scope: Scope) -> str:
    return getattr(scope.get("route"), "name", None) or NO_CALL


def _path(scope: Scope) -> str:
    path: str = getattr(scope.get("route"), "path_format", "")
    return path or NO_CALL


def _attributes(scope: Scope, status: int) -> Mapping[str, str | int]:
    attributes: dict[str, str | int] = {
        "http.request.method": scope["method"],
        "http.route": _path(scope),
        "http.response.status_code": status,
    }
    parts = scope.get("path_params", {}).items()
    return attributes | {f"tidegate.{name}": value for name, value in parts if isinstance(value, str | int)}
