"""Callers of requests, and their permissions."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tidegate.auth.errors import JobNotAllowed, KeyExpired, KeyRequired, KeyUnknown, RoleNotAllowed
from tidegate.auth.keyring import Keyring
from tidegate.auth.keys import NO_QUOTAS, Key, Quotas
from tidegate.auth.roles import Role
from tidegate.auth.usage import QuotaExceeded
from tidegate.domain.errors import DomainError, TooManyJobs, TooManySubstreams
from tidegate.domain.journal import AuditInfo


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request.

    Attributes:
        key: Key of the caller. None: the service has no keys, and every caller has every role.
    """

    key: Key | None

    @property
    def prefix(self) -> str:
        """Prefix of the names of the jobs that the caller has access to."""
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
            RoleNotAllowed: If it has none of them.
        """
        if self.key is not None and self.key.role not in roles:
            message = f"The key {self.key.name} has the role {self.key.role}; this call needs {' or '.join(roles)}."
            raise RoleNotAllowed(message, role=self.key.role, roles=roles)

    def require_job(self, job: str) -> None:
        """Check that the caller has access to a job, whether the job exists or not.

        Raises:
            JobNotAllowed: If the name does not begin with the prefix of the key.
        """
        if self.key is not None and not job.startswith(self.prefix):
            message = f"The key {self.key.name} is for jobs whose names begin with {self.prefix}."
            raise JobNotAllowed(message, prefix=self.prefix)

    def audit_info(self, reason: str = "") -> AuditInfo:
        """Return actor and reason of an action, for the history."""
        return AuditInfo(self.key.name if self.key else "", reason)

    @contextmanager
    def within_quotas(self) -> Iterator[Quotas]:
        """Pass the quotas of the key to a command of the store.

        Raises:
            QuotaExceeded: In place of the store's error, if the limit was a quota of the key.
        """
        try:
            yield self.quotas
        except TooManyJobs as error:
            self._raise_quota_exceeded("jobs", self.quotas.jobs, error)
            raise
        except TooManySubstreams as error:
            self._raise_quota_exceeded("substreams", self.quotas.substreams, error)
            raise

    def _raise_quota_exceeded(self, quota: str, limit: int | None, error: DomainError) -> None:
        if self.key is not None and limit is not None and error.details["limit"] == limit:
            raise QuotaExceeded(self.key, quota, limit) from error


def authenticate(authorization: str, keyring: Keyring | None) -> Caller:
    """Return the caller of a request.

    Args:
        authorization: Value of the ``Authorization`` header, or an empty text.
        keyring: The keys; None if the service has no keys.

    Raises:
        KeyRequired: If there is no key.
        KeyUnknown: If the key does not exist.
        KeyExpired: If the key has expired.
    """
    if keyring is None:
        return Caller(None)
    scheme, _, presented = authorization.partition(" ")
    if scheme.lower() != "bearer" or not presented:
        raise KeyRequired("Send a key: Authorization: Bearer tdg_... (create one with tidegate keys create).")
    key = keyring.key(presented.strip())
    if key is None:
        raise KeyUnknown
    if key.has_expired():
        raise KeyExpired(f"The key {key.name} expired on {key.expires}; get a new one (tidegate keys rotate).")
    return Caller(key)
