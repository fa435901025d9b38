"""Errors as ``application/problem+json`` (RFC 9457).

``type`` is ``urn:tidegate:problem:<code>`` and stable. ``detail`` says what to change. Further members contain values
for programs, such as the invalid field or the current run.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from tidegate.auth.callers import CallerError
from tidegate.domain.errors import MAX_LISTED, DomainError, EventTimeMissing, StateDamaged
from tidegate.http.call import call_of
from tidegate.runtime.wakeups import TooManyWaiting
from tidegate.store.connection import WRONG_TYPE, is_failed_function, is_full, is_read_only
from tidegate.store.pipelining import NotReplicated


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """The HTTP status and title of an error code.

    Attributes:
        status: HTTP status.
        title: Title of the problem document. Every occurrence of the error has the same title.
        retry_after_s: Value of the ``Retry-After`` header, for calls that the client may repeat unchanged.
    """

    status: int
    title: str
    retry_after_s: int | None = None


ERRORS: dict[str, ErrorKind] = {
    "malformed": ErrorKind(400, "Malformed request"),
    "incomplete_body": ErrorKind(400, "Incomplete body"),
    "key_required": ErrorKind(401, "Key required"),
    "key_unknown": ErrorKind(401, "Key unknown"),
    "key_expired": ErrorKind(401, "Key expired"),
    "role_not_allowed": ErrorKind(403, "Role not allowed"),
    "job_not_allowed": ErrorKind(403, "Job not allowed"),
    "foreign_origin": ErrorKind(403, "Foreign origin"),
    "form_expired": ErrorKind(403, "Form expired"),
    "job_not_found": ErrorKind(404, "Job not found"),
    "query_not_found": ErrorKind(404, "Query not found"),
    "substream_not_found": ErrorKind(404, "Substream not found"),
    "batch_not_found": ErrorKind(404, "Batch not found"),
    "hold_not_found": ErrorKind(404, "Hold not found"),
    "frame_not_found": ErrorKind(404, "Frame not found"),
    "consumer_not_found": ErrorKind(404, "Consumer not found"),
    "no_such_path": ErrorKind(404, "No such path"),
    "method_not_allowed": ErrorKind(405, "Method not allowed"),
    "request_timeout": ErrorKind(408, "Request timeout"),
    "job_complete": ErrorKind(409, "Job complete"),
    "batch_open": ErrorKind(409, "Batch open"),
    "batch_not_begun": ErrorKind(409, "Batch not begun"),
    "reports_missing": ErrorKind(409, "Reports missing"),
    "batch_forgotten": ErrorKind(409, "Batch forgotten"),
    "pinned_watermark_conflict": ErrorKind(409, "Pinned watermark conflict"),
    "query_fenced": ErrorKind(409, "Query fenced"),
    "checkpoint_conflict": ErrorKind(409, "Checkpoint conflict"),
    "query_retired": ErrorKind(409, "Query retired"),
    "substream_done": ErrorKind(409, "Substream done"),
    "event_time_missing": ErrorKind(409, "Event time missing"),
    "hold_active": ErrorKind(409, "Hold active"),
    "hold_exists": ErrorKind(409, "Hold exists"),
    "frame_in_force": ErrorKind(409, "Frame in force"),
    "frames_not_declared": ErrorKind(409, "Frames not declared"),
    "consumer_held": ErrorKind(409, "Consumer held"),
    "consumer_taken_over": ErrorKind(409, "Consumer taken over"),
    "consumer_ahead": ErrorKind(409, "Consumer ahead"),
    "job_deleted": ErrorKind(410, "Job deleted"),
    "job_exists": ErrorKind(412, "Job exists"),
    "revision_mismatch": ErrorKind(412, "Revision mismatch"),
    "body_too_large": ErrorKind(413, "Body too large"),
    "url_too_long": ErrorKind(414, "URL too long"),
    "not_json": ErrorKind(415, "Not JSON"),
    "foreign_host": ErrorKind(421, "Foreign host"),
    "invalid_request": ErrorKind(422, "Invalid request"),
    "invalid_config": ErrorKind(422, "Invalid configuration"),
    "too_many_rows": ErrorKind(422, "Too many rows"),
    "precondition_required": ErrorKind(428, "Precondition required"),
    "too_many_waiting": ErrorKind(429, "Too many waiting clients", 5),
    "too_many_queued": ErrorKind(429, "Too many queued calls", 1),
    "too_many_jobs": ErrorKind(429, "Too many jobs", 5),
    "too_many_substreams": ErrorKind(429, "Too many substreams", 5),
    "too_many_consumers": ErrorKind(429, "Too many consumers", 5),
    "too_many_logins": ErrorKind(429, "Too many failed logins", 6),
    "quota_exceeded": ErrorKind(429, "Quota exceeded", 1),
    "rate_limited": ErrorKind(429, "Rate limited", 1),
    "head_too_large": ErrorKind(431, "Request head too large"),
    "internal": ErrorKind(500, "Internal error"),
    "state_damaged": ErrorKind(500, "State damaged"),
    "store_unavailable": ErrorKind(503, "Store unavailable", 1),
    "store_full": ErrorKind(503, "Store full", 5),
    "store_read_only": ErrorKind(503, "Store read-only", 5),
    "not_replicated": ErrorKind(503, "Not replicated", 1),
    "clock_jumped": ErrorKind(503, "Clock jumped", 5),
    "state_too_new": ErrorKind(503, "State too new", 5),
    "overloaded": ErrorKind(503, "Overloaded", 1),
    "too_many_connections": ErrorKind(503, "Too many connections", 5),
    "too_many_from_address": ErrorKind(503, "Too many connections from one address", 5),
}

CLIENT_DISCONNECTED = 499
"""Status of an answer to a client that has disconnected. The status appears only in metrics."""

ACCESS_DENIED = frozenset({401, 403})
"""Statuses of calls that the caller may not make."""

_REFUSED = frozenset({429, 503})
_OF_CONNECTIONS = frozenset({"too_many_connections", "too_many_from_address"})
REFUSALS = tuple(code for code, kind in ERRORS.items() if kind.status in _REFUSED and code not in _OF_CONNECTIONS)
"""Codes of the errors for calls that the client may repeat later, except those for connections."""


def is_refusal(status: int) -> bool:
    """Return whether a status means that the client may repeat the call later."""
    return status in _REFUSED


def is_error(status: int) -> bool:
    """Return whether a status reports an error."""
    return status >= 400


def is_server_error(status: int) -> bool:
    """Return whether a status reports an error of the service."""
    return status >= 500


log = logging.getLogger(__name__)

ROUTING_ERRORS = {
    "no_such_path": "This path does not exist; GET /v1/openapi.json lists all paths.",
    "method_not_allowed": "This path does not support this method; GET /v1/openapi.json lists its methods.",
}
"""Details of the errors that Starlette raises, by code."""

STORE_ERRORS = {
    "store_full": "The coordinator's Redis has reached its maxmemory and accepts no writes. Nothing was changed. Raise "
    "maxmemory, or delete jobs, and send the call again.",
    "store_read_only": "The coordinator's Redis accepts no writes, because it is a replica, lacks replicas, or cannot "
    "write to its disk. Nothing was changed. See the log of Redis, and send the call again when Redis accepts writes.",
    "not_replicated": "Fewer Redis replicas than TIDEGATE_MIN_REPLICAS confirmed the state of the job in time, so a "
    "failover could lose it. If the call is a change, it was applied. Send the call again; a repetition changes "
    "nothing.",
    "store_unavailable": "The coordinator's Redis does not answer; send the call again.",
    "internal": "The coordinator failed to serve this request; see its log for the cause.",
}


class Problem(Exception):
    """Raised to answer a request with a problem document.

    Args:
        code: Code of the error, one of :data:`~tidegate.http.problems.ERRORS`.
        detail: The error, and what to change.
        headers: Further headers of the answer.
        members: Further members of the problem document.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(detail)
        kind = ERRORS[code]
        self.code, self.detail, self.members = code, detail, members or {}
        self.status, self.title = kind.status, kind.title
        retry = {} if kind.retry_after_s is None else {"Retry-After": str(kind.retry_after_s)}
        self.headers = retry | dict(headers or {})

    @classmethod
    def of_field(cls, field: str, message: str) -> "Problem":
        """Return the problem for an invalid member or parameter of a request."""
        return cls("invalid_request", f"{field}: {message}" if field else message, members={"field": field})

    def body(self) -> bytes:
        """Return the problem document."""
        document = {
            "type": f"urn:tidegate:problem:{self.code}",
            "title": self.title,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            **self.members,
        }
        return json.dumps(document).encode()

    def response(self) -> Response:
        """Return the answer to the request."""
        return Response(self.body(), self.status, self.headers, "application/problem+json")


HANDLED = (Problem, DomainError, CallerError, TooManyWaiting, RequestValidationError, RedisError)
"""Exceptions that :func:`problem_of` turns into problems."""


def problem_of(error: Exception) -> Problem:
    """Return the problem for an exception in :data:`HANDLED`, and log errors of the store. Raise other exceptions."""
    match error:
        case Problem():
            return error
        case DomainError():
            # The detail already contains `problem`.
            members = {name: _listed(value) for name, value in error.details.items() if name != "problem"}
            if isinstance(error, EventTimeMissing):
                members["field"] = "max_event_times"
            return Problem(error.code, str(error), members=members)
        case CallerError():
            headers = {"WWW-Authenticate": error.challenge} if error.challenge else None
            return Problem(error.code, str(error), headers, error.details)
        case TooManyWaiting():
            return Problem(error.code, str(error))
        case RequestValidationError():
            first = error.errors()[0]
            names = [part for part in first["loc"] if isinstance(part, str)]  # a number is a place in a list
            return Problem.of_field(names[-1], first["msg"].removeprefix("Value error, "))
        case RedisError():
            return _store_problem(error)
        case _:
            raise error


def _listed(value: object) -> object:
    return value[:MAX_LISTED] if isinstance(value, list) else value


def _store_problem(error: RedisError) -> Problem:
    if str(error).startswith(WRONG_TYPE):
        log.error("A key of a job has a wrong type.", exc_info=error)
        return problem_of(StateDamaged())
    if is_failed_function(error):
        log.error("A function of the store failed.", exc_info=error)
        code = "internal"
    else:
        log.error("A call to Redis failed: %s", error or type(error).__name__)
        code = _code_of(error)
    return Problem(code, STORE_ERRORS[code])


def _code_of(error: RedisError) -> str:
    if isinstance(error, NotReplicated):
        return "not_replicated"
    return "store_full" if is_full(error) else "store_read_only" if is_read_only(error) else "store_unavailable"


def refuse(scope: Scope, problem: Problem) -> Response:
    """Return the answer for a problem, and store the code of the problem in the request for the log."""
    call_of(scope).problem = problem.code
    return problem.response()


def incomplete_body() -> Problem:
    """Return the problem for a request whose connection ended before its body."""
    detail = "The connection ended before the end of the body; send the request again."
    return Problem("incomplete_body", detail)


def internal_error() -> Problem:
    """Return the problem for an error of the service."""
    return Problem("internal", STORE_ERRORS["internal"])


def register(app: FastAPI, calls: Sequence[APIRoute]) -> None:
    """Answer every failed request with a problem.

    Args:
        app: The application.
        calls: All calls of the application, for the ``Allow`` header.
    """

    async def handled(request: Request, error: Exception) -> Response:
        return refuse(request.scope, problem_of(error))

    async def routing_failed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _routing_problem(request, error, calls).response()

    async def failed(_request: Request, _error: Exception) -> Response:
        # Starlette re-raises the error after this answer, so the server logs it.
        return internal_error().response()

    async def disconnected(_request: Request, _error: Exception) -> Response:
        return Response(status_code=CLIENT_DISCONNECTED)

    for kind in HANDLED:
        app.add_exception_handler(kind, handled)
    app.add_exception_handler(HTTPException, routing_failed)
    app.add_exception_handler(ClientDisconnect, disconnected)
    app.add_exception_handler(Exception, failed)


def _routing_problem(request: Request, error: HTTPException, calls: Sequence[APIRoute]) -> Problem:
    headers = dict(error.headers or {})
    if error.status_code == ERRORS["method_not_allowed"].status:
        methods = {method for call in calls if call.path_regex.match(request.url.path) for method in call.methods or ()}
        headers["Allow"] = ", ".join(sorted(methods))
        return Problem("method_not_allowed", ROUTING_ERRORS["method_not_allowed"], headers)
    if error.status_code == ERRORS["no_such_path"].status:
        return Problem("no_such_path", ROUTING_ERRORS["no_such_path"], headers)
    log.error("Unexpected HTTP error %d: %s", error.status_code, error.detail)
    return internal_error()
