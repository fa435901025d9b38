"""Who may call what: the role that each call needs, and the jobs that a key is for.

Without keys anybody may do anything: that is why such a service stays on loopback.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from structlog.contextvars import bind_contextvars

from tidegate.api.problems import Problem
from tidegate.auth.keyring import NO_QUOTAS, Key, Keyring, Quotas
from tidegate.auth.roles import Role
from tidegate.auth.usage import QuotaExceeded
from tidegate.domain.errors import DomainError, TooManyJobs, TooManySubstreams
from tidegate.domain.journal import AuditInfo

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

READERS = (Role.READ, Role.REPORT, Role.OPERATE, Role.ADMIN)
REPORTERS = (Role.REPORT, Role.ADMIN)
OPERATORS = (Role.OPERATE, Role.ADMIN)
REPORTERS_AND_OPERATORS = (Role.REPORT, Role.OPERATE, Role.ADMIN)
ADMINS = (Role.ADMIN,)

ROLES: dict[Callable[..., Any], tuple[Role, ...]] = {}
"""For each endpoint the roles that may call it; an empty one: anybody, without a key."""


def allowed(*roles: Role) -> Callable[[Endpoint], Endpoint]:
    """Every endpoint says so of itself; the service does not start with one that doesn't."""

    def register(endpoint: Endpoint) -> Endpoint:
        ROLES[endpoint] = roles
        return endpoint

    return register


def check_roles(calls: Iterable[APIRoute]) -> None:
    """:raises TypeError: for an endpoint that does not say who may call it."""
    for call in calls:
        if call.endpoint not in ROLES:
            raise TypeError(f"{call.name} does not say who may call it")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls; ``key`` is None where there are no keys."""

    key: Key | None

    @property
    def prefix(self) -> str:
        """The jobs it may know of have names that begin so."""
        return self.key.prefix if self.key else ""

    @property
    def quotas(self) -> Quotas:
        """The quotas of its key."""
        return self.key.quotas if self.key else NO_QUOTAS

    @contextmanager
    def within_quotas(self) -> Iterator[Quotas]:
        """Pass the quotas of the key to the store; name the quota if it refuses by one.

        Raises:
            QuotaExceeded: In place of the store's error, if the limit was that of the key.
        """
        try:
            yield self.quotas
        except TooManyJobs as error:
            self._name_quota("jobs", self.quotas.jobs, error)
            raise
        except TooManySubstreams as error:
            self._name_quota("substreams", self.quotas.substreams, error)
            raise

    def _name_quota(self, quota: str, limit: int | None, error: DomainError) -> None:
        if self.key is not None and limit is not None and error.details["limit"] == limit:
            raise QuotaExceeded(self.key, quota, limit) from error

    def has(self, *roles: Role) -> bool:
        return self.key is None or self.key.role in roles

    def why(self, reason: str = "") -> AuditInfo:
        """For the record: the name of its key, and the reason it gave."""
        return AuditInfo(self.key.name if self.key else "", reason)

    def check(self, *roles: Role) -> None:
        """:raises Problem: 403, where its role is none of these."""
        if not self.has(*roles):
            assert self.key is not None
            detail = f"The key {self.key.name} has the role {self.key.role}; this needs {' or '.join(roles)}."
            raise Problem(403, "role_not_allowed", detail, members={"role": self.key.role, "roles": roles})


def who(request: Request) -> Caller:
    caller: Caller = request.scope["caller"]
    return caller


Who = Annotated[Caller, Depends(who)]


async def authorised(request: Request) -> None:
    """Of every call, before anything else of it is looked at.

    :raises Problem: 403, where the key is not for this call, or not for this job, whether there is one or not.
    """
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    roles = ROLES[route.endpoint]
    if not roles:
        return
    caller = who(request)
    told = {name: value for name, value in request.path_params.items() if isinstance(value, str | int)}
    bind_contextvars(**told, **({"key": caller.key.name} if caller.key else {}))
    job = request.path_params.get("job")
    if job is not None and not job.startswith(caller.prefix):
        assert caller.key is not None
        raise Problem(
            403,
            "job_not_allowed",
            f"The key {caller.key.name} is for jobs whose names begin with {caller.prefix}.",
            members={"prefix": caller.prefix},
        )
    caller.check(*roles)


def identified(authorization: str, keyring: Keyring | None) -> Caller:
    """:raises Problem: 401, where there is no key, or none that is known."""
    if keyring is None:
        return Caller(None)
    scheme, _, presented = authorization.partition(" ")
    if scheme.lower() != "bearer" or not presented:
        raise Problem(
            401,
            "key_required",
            "Send a key: Authorization: Bearer tdg_... (tidegate keys create makes one).",
            {"WWW-Authenticate": 'Bearer realm="tidegate"'},
        )
    key = keyring.key(presented.strip())
    if key is None:
        raise unknown_key()
    if key.has_expired():
        raise Problem(
            401,
            "key_expired",
            f"The key {key.name} expired on {key.expires}; get a new one (tidegate keys rotate).",
            {"WWW-Authenticate": 'Bearer realm="tidegate", error="invalid_token"'},
        )
    return Caller(key)


def unknown_key() -> Problem:
    return Problem(
        401,
        "key_unknown",
        "This key is not known, or was revoked.",
        {"WWW-Authenticate": 'Bearer realm="tidegate", error="invalid_token"'},
    )
