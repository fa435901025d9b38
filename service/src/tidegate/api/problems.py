"""Errors as ``application/problem+json`` (RFC 9457): the only module that knows HTTP status codes.

``type`` is ``urn:tidegate:problem:<code>`` and stable; ``detail`` says what to change; further members carry what a
program needs to react (the current run, the stored pin, the offending field).
"""

import json
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException

from tidegate.auth.usage import QuotaExceeded
from tidegate.domain import errors
from tidegate.runtime.wakeups import TooManyWait
from tidegate.store.connection import is_failed_script, is_full, is_read_only

log = logging.getLogger(__name__)

STATUS_OF: dict[type[errors.DomainError], int] = {
    errors.InvalidConfig: 422,
    errors.JobNotFound: 404,
    errors.JobExists: 412,
    errors.JobDeleted: 410,
    errors.JobComplete: 409,
    errors.RevisionMismatch: 412,
    errors.BatchOpen: 409,
    errors.BatchNotBegun: 409,
    errors.ReportsMissing: 409,
    errors.BatchForgotten: 409,
    errors.PinnedWatermarkConflict: 409,
    errors.QueryFenced: 409,
    errors.CheckpointConflict: 409,
    errors.QueryRetired: 409,
    errors.QueryNotFound: 404,
    errors.SubstreamNotFound: 404,
    errors.SubstreamDone: 409,
    errors.EventTimeMissing: 409,
    errors.HoldActive: 409,
    errors.HoldExists: 409,
    errors.HoldNotFound: 404,
    errors.TooManyJobs: 429,
    errors.TooManySubstreams: 429,
    errors.ClockJumped: 503,
}

STARLETTE_PROBLEMS = {
    404: ("no_such_path", "There is no such path; GET /v1/openapi.json lists them all."),
    405: ("method_not_allowed", "This path does not take this method; GET /v1/openapi.json lists what it takes."),
}


class Problem(Exception):
    """A request that cannot be served, before it reaches the machine."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.headers = status, code, detail, headers
        self.members = members or {}

    def body(self) -> bytes:
        return json.dumps(
            {
                "type": f"urn:tidegate:problem:{self.code}",
                "title": HTTPStatus(self.status).phrase,
                "status": self.status,
                "code": self.code,
                "detail": self.detail,
                **self.members,
            }
        ).encode()

    def response(self) -> Response:
        return Response(self.body(), self.status, dict(self.headers or {}), "application/problem+json")


def of_domain(error: errors.DomainError) -> Problem:
    members = {name: value for name, value in error.details.items() if name != "problem"}  # which is the detail itself
    if isinstance(error, errors.EventTimeMissing):
        members["field"] = "max_event_times"
    status = STATUS_OF[type(error)]
    # What may pass without the client: somebody sets the clock right, or makes room.
    headers = {"Retry-After": "5"} if status in (429, 503) else None
    return Problem(status, error.code, str(error), headers, members)


def register(app: FastAPI, calls: Sequence[APIRoute]) -> None:
    """Makes every way in which a request can fail end in a problem; ``calls`` are all that there are."""

    @app.exception_handler(Problem)
    async def problem(request: Request, error: Problem) -> Response:
        return refuse(request, error)

    @app.exception_handler(errors.DomainError)
    async def refused(request: Request, error: errors.DomainError) -> Response:
        return refuse(request, of_domain(error))

    @app.exception_handler(RedisError)
    async def store_failed(request: Request, error: RedisError) -> Response:
        return refuse(request, of_store(error))

    @app.exception_handler(QuotaExceeded)
    async def quota_exceeded(request: Request, error: QuotaExceeded) -> Response:
        return refuse(request, of_quota(error))

    @app.exception_handler(TooManyWait)
    async def no_place(_request: Request, error: TooManyWait) -> Response:
        return too_many_wait(error).response()

    @app.exception_handler(RequestValidationError)
    async def invalid_parameter(request: Request, error: RequestValidationError) -> Response:
        return refuse(request, bad_parameter(error))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        code, detail = STARLETTE_PROBLEMS.get(error.status_code, ("http_error", str(error.detail)))
        headers = dict(error.headers or {})
        if error.status_code == 405:
            methods = {
                method for call in calls if call.path_regex.match(request.url.path) for method in call.methods or ()
            }
            headers["Allow"] = ", ".join(sorted(methods))
        return Problem(error.status_code, code, detail, headers).response()

    @app.exception_handler(Exception)
    async def internal(_request: Request, _error: Exception) -> Response:
        # Starlette hands the error on to the server's log after this.
        return broken().response()


def refuse(request: Request, problem: Problem) -> Response:
    """The answer; what was wrong is noted with the request, for the log."""
    request.scope["problem"] = problem.code
    return problem.response()


def of_quota(error: QuotaExceeded) -> Problem:
    """Return the problem of a key that has used up a quota."""
    members = {"quota": error.quota, "limit": error.limit, "key": error.key.name}
    return Problem(429, "quota_exceeded", str(error), {"Retry-After": "1"}, members)


def too_many_wait(error: TooManyWait) -> Problem:
    detail = f"{error.most} clients wait here already; come back later, or raise TIDEGATE_MAX_WAITING."
    return Problem(429, "too_many_waiting", detail, {"Retry-After": "5"})


def bad_parameter(error: RequestValidationError) -> Problem:
    """A parameter in the path, the query string or the headers."""
    first = error.errors()[0]
    field = str(first["loc"][-1])
    return Problem(422, "invalid_request", f"{field}: {first['msg']}", members={"field": field})


def broken() -> Problem:
    return Problem(500, "internal", "The coordinator failed at this request; its log says where.")


def of_store(error: RedisError) -> Problem:
    """Return the problem of a call that the store did not carry out, and log why."""
    if is_failed_script(error):
        log.error("A script failed.", exc_info=error)
        return broken()
    log.error("Redis: %s", error or type(error).__name__)
    if is_full(error):
        detail = (
            "The coordinator's Redis has reached its maxmemory and takes no writes. Nothing was changed; raise "
            "maxmemory, or delete jobs, and send the call again."
        )
        return Problem(503, "store_full", detail, {"Retry-After": "5"})
    if is_read_only(error):
        detail = (
            "The coordinator's Redis takes no writes: it is a replica, misses replicas, or cannot write to its disk. "
            "Nothing was changed; its log says why. Send the call again when it does."
        )
        return Problem(503, "store_read_only", detail, {"Retry-After": "5"})
    detail = "No answer from the coordinator's Redis. Send the call again: if it was carried out, that changes nothing."
    return Problem(503, "store_unavailable", detail, {"Retry-After": "1"})
