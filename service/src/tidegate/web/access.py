"""Authorisation: the roles that may make each call, and the jobs that a key may access.

A service without keys gives every role to every caller. It serves only loopback, unless it was started with
``--insecure``.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from starlette.types import Scope

from tidegate.auth.callers import Caller
from tidegate.auth.roles import Role
from tidegate.runtime.logs import identify

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


def caller_of(scope: Scope) -> Caller:
    """Return the caller of a request."""
    caller: Caller = scope["caller"]
    return caller


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
