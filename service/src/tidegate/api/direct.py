"""A middleware that serves reports without FastAPI, because FastAPI takes longer than the rest of a call.

The middleware uses the endpoint, authorisation and problems of the route in FastAPI. The route still serves the
requests that this middleware passes on, and is the source of the OpenAPI document.
"""

import re
from collections.abc import Sequence

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from tidegate.api.routes.reports import report
from tidegate.api.schemas.reports import Report
from tidegate.reads.types import ID
from tidegate.web.access import authorise, caller_of
from tidegate.web.bodies import read_body
from tidegate.web.context import context_of
from tidegate.web.problems import HANDLED, problem_of, refuse

_PATH = re.compile(rf"/v1/jobs/({ID.strip('^$')}):report")


class DirectReports:
    """A middleware that serves reports without query parameters.

    Args:
        app: The application, which serves all other requests.
        calls: All calls of the application, including the report.
    """

    def __init__(self, app: ASGIApp, calls: Sequence[APIRoute]) -> None:
        self._app = app
        [self._route] = [call for call in calls if call.endpoint is report]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        job = _job_of(scope)
        if job is None:
            await self._app(scope, receive, send)
            return
        # Authorisation, metrics, logs and traces read the call and the job from the scope.
        scope["route"], scope["path_params"] = self._route, {"job": job}
        request = Request(scope, receive)
        try:
            await authorise(request)
            body = await read_body(request, Report)
            response = await report(job, body, context_of(request), caller_of(request))
        except HANDLED as error:
            response = refuse(request, problem_of(error))
        await response(scope, receive, send)


def _job_of(scope: Scope) -> str | None:
    """Return the job of a report without query parameters; None for another request."""
    if scope["type"] != "http" or scope["method"] != "POST" or scope["query_string"]:
        return None
    found = _PATH.fullmatch(scope["path"])
    return found and found[1]
