"""What is known of every call afterwards: how long it took, what came of it, and in the log which one it was.

Pure ASGI, and around everything else.
"""

import logging
import re
import secrets
import time
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars, clear_contextvars

from tidegate.auth.usage import Limit, network
from tidegate.runtime.logs import AUDIT
from tidegate.runtime.metrics import Metrics
from tidegate.runtime.traces import Traces

log = logging.getLogger(__name__)

audit = logging.getLogger(AUDIT)

REQUEST_ID = b"x-request-id"
SAFE_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
"""Set on each answer that does not set them itself: no answer is a page of another type, or is kept by a proxy."""
_GIVEN = re.compile(r"[A-Za-z0-9._~-]{1,128}")
NO_CALL = "none"
"""What is served by none of the calls."""
WRITES = ("POST", "PUT", "PATCH", "DELETE")
REFUSED = (401, 403)
LOGIN_CALLS = ("log_in", "log_out")
MAX_PATH = 200
REFUSALS_PER_S = 5
REFUSALS_AT_ONCE = 50
"""Refusals that one client may log at once, before ``REFUSALS_PER_S`` applies."""


class Observed:
    """Each call has an id, its client's (``X-Request-ID``) or a new one, which the answer and the log name."""

    def __init__(self, app: ASGIApp, metrics: Metrics, traces: Traces) -> None:
        self.app, self.metrics, self.traces = app, metrics, traces
        self._refusals, self._not_logged = Limit(REFUSALS_PER_S, REFUSALS_AT_ONCE), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == REQUEST_ID), b"").decode("latin-1")
        request_id = given if _GIVEN.fullmatch(given) else secrets.token_hex(8)
        clear_contextvars()
        bind_contextvars(request=request_id)
        began, status = time.perf_counter(), 0

        async def begin(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given_names = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(header for header in SAFE_HEADERS if header[0] not in given_names),
                    (REQUEST_ID, request_id.encode()),
                ]
                self.metrics.answered(_call(scope), status, time.perf_counter() - began)
            await send(message)

        with self.traces.call(scope["method"], scope["headers"]) as traced:
            try:
                await self.app(scope, receive, begin)
            except Exception:
                if not status:  # whoever is around this one answers it
                    self.metrics.answered(_call(scope), 500, time.perf_counter() - began)
                raise
            traced.named(f"{scope['method']} {_path(scope)}", _attributes(scope, status))
        if status in REFUSED or scope["method"] in WRITES:
            self._note(scope, status)

    def _note(self, scope: Scope, status: int) -> None:
        """Log what was refused, and what was done to a job. Reports are not logged: there are too many of them."""
        address = scope["client"][0] if scope.get("client") else ""
        told = {"call": _call(scope), "status": status, "client": address}
        if status < 400:
            if told["call"] in LOGIN_CALLS:
                audit.info("Logged in or out.", extra=told)
            elif "reports" not in getattr(scope.get("route"), "tags", ()):
                audit.info("Done.", extra=told)
            return
        if status >= 500 or not self._may_log(scope, address):
            return
        missed, self._not_logged = self._not_logged, 0
        told |= {"code": scope.get("problem", "")} | ({"not_logged": missed} if missed else {})
        if told["call"] in LOGIN_CALLS:
            audit.info("Login refused.", extra=told)
        elif status in REFUSED:
            audit.warning("Access refused.", extra=told | {"path": scope["path"][:MAX_PATH]})
        else:
            log.info("Refused.", extra={name: value for name, value in told.items() if name != "client"})

    def _may_log(self, scope: Scope, address: str) -> bool:
        """Return whether a refusal may be logged: without a limit, one client could fill the disk."""
        key = getattr(scope.get("caller"), "key", None)
        if self._refusals.take(network(address) if key is None else f"key {key.name}"):
            return True
        self._not_logged += 1
        return False


def _call(scope: Scope) -> str:
    return getattr(scope.get("route"), "name", None) or NO_CALL


def _path(scope: Scope) -> str:
    path: str = getattr(scope.get("route"), "path_format", "")
    return path or NO_CALL


def _attributes(scope: Scope, status: int) -> Mapping[str, str | int]:
    told: dict[str, str | int] = {
        "http.request.method": scope["method"],
        "http.route": _path(scope),
        "http.response.status_code": status,
    }
    parts = scope.get("path_params", {}).items()
    return told | {f"tidegate.{name}": value for name, value in parts if isinstance(value, str | int)}
