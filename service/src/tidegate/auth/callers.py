"""Callers of requests, their permissions, and and the errors about them.

::

    CallerError
    ├── KeyRequired       no key was sent
    ├── KeyUnknown        the key does not exist, or was revoked
    ├── KeyExpired        the key has expired
    ├── RoleNotAllowed    the role of the key does not allow the call
    ├── JobNotAllowed     the prefix of the key does not match the job
    ├── QuotaExceeded     the call exceeds a quota of the key
    └── RateLimited       the key makes too many calls per second
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from tidegate.auth.keyring import Keyring
from tidegate.auth.keys import NO_QUOTAS, Key, Quotas
from tidegate.auth.roles import Role
from tidegate.domain.errors import TooManyJobs, TooManySubstreams
from tidegate.domain.history import AuditInfo

CHALLENGE = 'Bearer realm="tidegate"'
INVALID_TOKEN = f'{CHALLENGE}, error="invalid_token"'


class CallerError(Exception):
    """Base class of the errors about the caller of a call: its key, role, quota or rate.

    Attributes:
        code: Stable code of the error.
        challenge: Value of the ``WWW-Authenticate`` header. Empty if the key itself is valid.
        details: Further members of the problem document.
    """

    code: ClassVar[str]
    challenge: ClassVar[str] = ""

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.details = details


class KeyRequired(CallerError):
    """Raised when a call has no key."""

    code = "key_required"
    challenge = CHALLENGE


class KeyUnknown(CallerError):
    """Raised when the key of a call does not exist or was revoked."""

    code = "key_unknown"
    challenge = INVALID_TOKEN

    def __init__(self) -> None:
        super().__init__("This key does not exist, or was revoked; use another key.")


class KeyExpired(CallerError):
    """Raised when the key of a call has expired."""

    code = "key_expired"
    challenge = INVALID_TOKEN


class RoleNotAllowed(CallerError):
    """Raised when the role of the key does not allow the call."""

    code = "role_not_allowed"


class JobNotAllowed(CallerError):
    """Raised when the name of the job does not begin with the prefix of the key."""

    code = "job_not_allowed"


class QuotaExceeded(CallerError):
    """Raised when a call exceeds a quota of the key."""

    code = "quota_exceeded"

    def __init__(self, key: str, quota: str, limit: int) -> None:
        message = (
            f"The key {key} has reached its quota {quota!r} ({limit}); reduce the use, or create a key with a higher "
            "quota."
        )
        super().__init__(message, quota=quota, limit=limit, key=key)


class RateLimited(CallerError):
    """Raised when a key makes too many calls per second."""

    code = "rate_limited"

    def __init__(self, key: str, limit: int, burst: int) -> None:
        message = (
            f"The key {key} has reached its limit of {limit} calls per second; send fewer calls, or raise its quota "
            "requests_per_s or TIDEGATE_MAX_CALLS_PER_S."
        )
        super().__init__(message, limit=limit, burst=burst, key=key)


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
