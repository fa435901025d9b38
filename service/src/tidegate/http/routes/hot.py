"""A middleware that serves the calls of each batch and the OpenAPI document without FastAPI.

FastAPI takes longer than the rest of a small call. The middleware uses the endpoints, authorisation and problems of the
routes in FastAPI. The routes still serve the requests that this middleware passes on, and are the source of the OpenAPI
document.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import signature

from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tidegate.domain.values import ID
from tidegate.http.call import caller_of
from tidegate.http.problems import HANDLED, internal_error, problem_of, refuse
from tidegate.http.request import Context, require_access
from tidegate.http.routes.reports import begin, commit, report
from tidegate.http.schemas import BeginRequest, CommitRequest, Report

_ID = ID.strip("^$")
_JOB = rf"/v1/jobs/(?P<job>{_ID})"
# FastAPI serves longer numbers, which may be out of range.
_BATCH = rf"{_JOB}/queries/(?P<query>{_ID})/batches/(?P<batch>[0-9]{{1,15}})"


@dataclass(frozen=True)
class _HotCall:
    """A call that is served directly: its method and path, its endpoint, and the model of its body."""

    method: str
    path: "re.Pattern[str]"
    endpoint: Callable[..., Awaitable[Response]]
    body: type[BaseModel]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters of the endpoint."""
        return tuple(signature(self.endpoint).parameters)


_CALLS = (
    _HotCall("POST", re.compile(f"{_JOB}:report"), report, Report),
    _HotCall("PUT", re.compile(_BATCH), begin, BeginRequest),
    _HotCall("POST", re.compile(f"{_BATCH}:commit"), commit, CommitRequest),
)


DOCUMENT = "/v1/openapi.json"
"""Path of the OpenAPI document."""


class DirectCalls:
    """A middleware that serves reports, begins and commits without query parameters, and the OpenAPI document.

    Args:
        app: The application, which serves all other requests.
        routes: The routes of all calls.
        context: Function that returns the context of the replica.
        document: Function that returns the answer with the OpenAPI document, which is the same for all requests.
    """

    def __init__(
        self,
        app: ASGIApp,
        routes: Sequence[APIRoute],
        context: Callable[[], Context],
        document: Callable[[], Response],
    ) -> None:
        self._app, self._read_context, self._document = app, context, document
        self._routes = {route.endpoint: route for route in routes}

    @cached_property
    def _context(self) -> Context:
        return self._read_context()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] == "http" and scope["path"] == DOCUMENT and scope["method"] in ("GET", "HEAD"):
            await self._document()(scope, receive, send)
            return
        found = _call_of(scope)
        if found is None:
            await self._app(scope, receive, send)
            return
        call, parameters = found
        # Authorisation, metrics, logs and traces read the route and its parameters from the scope.
        scope["route"], scope["path_params"] = self._routes[call.endpoint], parameters
        try:
            require_access(scope)
            body = await self._context.bodies.read(receive, call.body, parameters.get("query", ""))
            given = {**parameters, "body": body, "context": self._context, "caller": caller_of(scope)}
            if "batch" in parameters:
                given["batch"] = int(parameters["batch"])
            response = await call.endpoint(**{name: given[name] for name in call.names})
        except HANDLED as error:
            response = refuse(scope, problem_of(error))
        except Exception:
            await internal_error().response()(scope, receive, send)
            raise  # the server logs the error
        await response(scope, receive, send)


def _call_of(scope: Scope) -> tuple[_HotCall, dict[str, str]] | None:
    """Return the call of a request, and the parameters in its path; None if FastAPI has to serve the request."""
    if scope["type"] != "http" or scope["query_string"]:
        return None
    for call in _CALLS:
        if scope["method"] == call.method and (found := call.path.fullmatch(scope["path"])):
            return call, found.groupdict()
    return None
