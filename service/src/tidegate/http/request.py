"""What an endpoint knows of its request: the components of the replica, the caller, and the parameters.

Authorisation: each endpoint declares the roles that may call it. A service without keys gives every role to every
caller. It serves only loopback, unless it was started with ``--insecure``.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Path, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from tidegate.auth.callers import Caller
from tidegate.auth.keyring import Keyring, Revocation
from tidegate.auth.roles import Role
from tidegate.auth.sessions import Sessions
from tidegate.auth.usage import KeyUsage
from tidegate.auth.watermark_tokens import Tokens
from tidegate.domain.values import EXACT_DOUBLE, ID, ID_RULE, NAME_OR_EMPTY
from tidegate.http.bodies import BodyReader
from tidegate.http.call import caller_of
from tidegate.http.problems import Problem
from tidegate.runtime.background import end
from tidegate.runtime.logs import identify
from tidegate.runtime.metrics import Metrics
from tidegate.runtime.wakeups import WakeUps
from tidegate.store.jobs import JobStore
from tidegate.views.reader import Overview, Reader
from tidegate.views.types import MAX_NAME_BYTES, Id


class _IdConvertor(StringConvertor):
    """A converter for a part of a path that ends before a slash or before the colon of a verb."""

    regex = "[^/:]+"


register_url_convertor("id", _IdConvertor())

JobId = Annotated[
    Id, Path(json_schema_extra={"pattern": ID}, description=f"Name of the job: {ID_RULE}.", examples=["flights"])
]


@dataclass(frozen=True, slots=True)
class Context:
    """Components of a replica that its HTTP calls use.

    Attributes:
        max_scraped_substreams: Maximum number of substreams in one answer of ``/metrics``.
    """

    store: JobStore
    bodies: BodyReader
    reader: Reader
    tokens: Tokens
    wakeups: WakeUps
    keyring: Keyring | None
    sessions: Sessions
    overview: Overview
    metrics: Metrics
    usage: KeyUsage
    revocation: Revocation
    max_scraped_substreams: int


def context_of(request: Request) -> Context:
    """Return the context of the replica that serves a request."""
    context: Context = request.app.state.context
    return context


async def _context(request: Request) -> Context:
    return context_of(request)


ContextOf = Annotated[Context, Depends(_context)]


Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

ROLES: dict[Callable[..., Any], tuple[Role, ...]] = {}
"""Roles that may call each endpoint. An endpoint with an empty tuple needs no key."""


def allowed(*roles: Role) -> Callable[[Endpoint], Endpoint]:
    """Declare the roles that may call an endpoint. Without arguments, the endpoint needs no key."""

    def register(endpoint: Endpoint) -> Endpoint:
        ROLES[endpoint] = roles
        return endpoint

    return register


def check_roles(calls: Iterable[APIRoute]) -> None:
    """Check that every call declares its roles.

    Raises:
        TypeError: If a call declares no roles.
    """
    for call in calls:
        if call.endpoint not in ROLES:
            raise TypeError(f"{call.name} does not declare its roles; add @allowed(...)")


async def _caller(request: Request) -> Caller:
    return caller_of(request.scope)


CallerOf = Annotated[Caller, Depends(_caller)]


async def authorise(request: Request) -> None:
    """Check that the caller of a request may make the call; see :func:`require_access`."""
    require_access(request.scope)


def require_access(scope: Scope) -> None:
    """Check that the caller of a request may make the call.

    Raises:
        RoleNotAllowed: If the role of the key does not allow the call.
        JobNotAllowed: If the key does not give access to the job.
    """
    route, parameters = scope["route"], scope["path_params"]
    assert isinstance(route, APIRoute)
    roles = ROLES[route.endpoint]
    if not roles:
        return
    caller = caller_of(scope)
    identify(**parameters)
    if caller.key is not None:
        identify(key=caller.key.name)
    job = parameters.get("job")
    if job is not None:
        caller.require_job(job)
    caller.require_role(*roles)


Result = TypeVar("Result")


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of ``work``. Cancel ``work`` if the client disconnects first.

    Raises:
        ClientDisconnect: If the client disconnects before ``work`` ends.
    """
    working, disconnecting = asyncio.create_task(work), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((working, disconnecting), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        disconnecting.result()  # raises the error of a body that is too large
        raise ClientDisconnect
    finally:
        await end((working, disconnecting))
        for task in (working, disconnecting):
            if not task.cancelled():
                task.exception()  # asyncio logs an exception that is never read


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


QueryId = Annotated[
    Id, Path(json_schema_extra={"pattern": ID}, description="Name of the query.", examples=["departures"])
]
BatchId = Annotated[int, Path(ge=0, le=EXACT_DOUBLE.highest, description="Number of the batch.", examples=[41])]
SubstreamName = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=MAX_NAME_BYTES,
        description="Name of a substream. Omit it for the whole job.",
        examples=["HNL"],
    ),
]
SubstreamQuery = Annotated[
    str,
    Query(
        pattern=NAME_OR_EMPTY,
        description="Query of the substream. Empty for reports without batches.",
        examples=["departures"],
    ),
]


async def refuse_unknown(request: Request) -> None:
    """Refuse unknown parameters, so that a misspelled parameter is not ignored.

    Raises:
        Problem: If a parameter is unknown. The problem names the first such parameter.
    """
    if not request.scope["query_string"]:
        return
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    known = _parameters(route.dependant)
    for name in request.query_params:
        if name not in known:
            detail = f"unknown parameter; this call accepts: {', '.join(known) or 'none'}."
            raise Problem.of_field(name, detail)


def _parameters(dependant: Dependant) -> list[str]:
    """Return the query parameters of a call and of its dependencies."""
    names = [parameter.alias for parameter in dependant.query_params]
    return names + [name for dependency in dependant.dependencies for name in _parameters(dependency)]
