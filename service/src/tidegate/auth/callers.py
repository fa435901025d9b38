"""Callers of requests, and their permissions."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tidegate.auth.errors import JobNotAllowed, KeyExpired, KeyRequired, KeyUnknown, QuotaExceeded, RoleNotAllowed
from tidegate.auth.keyring import Keyring
from tidegate.auth.keys import NO_QUOTAS, Key, Quotas
from tidegate.auth.roles import Role
from tidegate.domain.errors import TooManyJobs, TooManySubstreams
from tidegate.domain.history import AuditInfo


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request.

    Attributes:
        key: Key of the caller, or None if the service has no keys. Without keys, every caller has every role.
    """

    key: Key | None

    @property
    def prefix(self) -> str:
        """Name prefix of the jobs that the caller may access."""
        return self.key.prefix if self.key else ""

    @property
    def quotas(self) -> Quotas:
        """Quotas of the caller's key."""
        return self.key.quotas if self.key else NO_QUOTAS

    def has_role(self, *roles: Role) -> bool:
        """Return whether the caller has one of these roles."""
        return self.key is None or self.key.role in roles

    def require_role(self, *roles: Role) -> None:
        """Check that the caller has one of these roles.

        Raises:
            RoleNotAllowed: If the caller has none of the roles.
        """
        if self.key is not None and not self.has_role(*roles):
            message = f"The key {self.key.name} has the role {self.key.role}; this call needs {' or '.join(roles)}."
            raise RoleNotAllowed(message, role=self.key.role, roles=roles)

    def require_job(self, job: str) -> None:
        """Check that the caller may access a job, even if the job does not exist.

        Raises:
            JobNotAllowed: If the job's name does not begin with the prefix of the key.
        """
        if self.key is not None and not job.startswith(self.prefix):
            message = f"The key {self.key.name} is for jobs whose names begin with {self.prefix!r}; use another key."
            raise JobNotAllowed(message, prefix=self.prefix)

    def audit_info(self, reason: str = "") -> AuditInfo:
        """Return the actor and the reason of an action, for the history."""
        return AuditInfo(self.key.name if self.key else "", reason)

    @contextmanager
    def within_quotas(self) -> Iterator[Quotas]:
        """Yield the quotas of the key for the command in the block.

        Raises:
            QuotaExceeded: If the command exceeds a quota of the key. This error replaces the error of the store.
        """
        try:
            yield self.quotas
        except (TooManyJobs, TooManySubstreams) as error:
            quota = "jobs" if isinstance(error, TooManyJobs) else "substreams"
            limit = getattr(self.quotas, quota)
            if self.key is not None and limit is not None and limit == error.details["limit"]:
                raise QuotaExceeded(self.key.name, quota, limit) from error
            raise


def authenticate(authorization: str, keyring: Keyring | None) -> Caller:
    """Return the caller of a request.

    Args:
        authorization: Value of the ``Authorization`` header, or an empty string.
        keyring: The keys, or None if the service has no keys.

    Raises:
        KeyRequired: If the request has no key.
        KeyUnknown: If the key does not exist.
        KeyExpired: If the key has expired.
    """
    if keyring is None:
        return Caller(None)
    scheme, _, presented = authorization.partition(" ")
    if scheme.lower() != "bearer" or not presented:
        raise KeyRequired(
            "This call needs a key; send the header Authorization: Bearer tdg_... (create a key: tidegate keys create)."
        )
    key = keyring.key(presented.strip())
    if key is None:
        raise KeyUnknown
    if keyring.has_expired(key):
        raise KeyExpired(f"The key {key.name} expired on {key.expires}; create a new key (tidegate keys rotate).")
    return Caller(key)
