"""Errors for calls that the caller may not make.

::

    AccessDenied
    ├── KeyRequired       no key was sent
    ├── KeyUnknown        the key does not exist, or was revoked
    ├── KeyExpired        the key has expired
    ├── RoleNotAllowed    the role of the key does not allow the call
    ├── JobNotAllowed     the prefix of the key does not match the job
    ├── QuotaExceeded     the call exceeds a quota of the key
    └── RateLimited       the key makes too many calls per second
"""

from typing import ClassVar

CHALLENGE = 'Bearer realm="tidegate"'
INVALID_TOKEN = f'{CHALLENGE}, error="invalid_token"'


class AccessDenied(Exception):
    """Base class of the errors for calls that the caller may not make.

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


class KeyRequired(AccessDenied):
    """Raised when a call has no key."""

    code = "key_required"
    challenge = CHALLENGE


class KeyUnknown(AccessDenied):
    """Raised when the key of a call does not exist or was revoked."""

    code = "key_unknown"
    challenge = INVALID_TOKEN

    def __init__(self) -> None:
        super().__init__("This key does not exist, or was revoked; use another key.")


class KeyExpired(AccessDenied):
    """Raised when the key of a call has expired."""

    code = "key_expired"
    challenge = INVALID_TOKEN


class RoleNotAllowed(AccessDenied):
    """Raised when the role of the key does not allow the call."""

    code = "role_not_allowed"


class JobNotAllowed(AccessDenied):
    """Raised when the name of the job does not begin with the prefix of the key."""

    code = "job_not_allowed"


class QuotaExceeded(AccessDenied):
    """Raised when a call exceeds a quota of the key."""

    code = "quota_exceeded"

    def __init__(self, key: str, quota: str, limit: int) -> None:
        message = (
            f"The key {key} has reached its quota {quota!r} ({limit}); reduce the use, or create a key with a higher "
            "quota."
        )
        super().__init__(message, quota=quota, limit=limit, key=key)


class RateLimited(AccessDenied):
    """Raised when a key makes too many calls per second."""

    code = "rate_limited"

    def __init__(self, key: str, limit: int, burst: int) -> None:
        message = (
            f"The key {key} has reached its limit of {limit} calls per second; send fewer calls, or raise its quota "
            "requests_per_s or TIDEGATE_MAX_CALLS_PER_S."
        )
        super().__init__(message, limit=limit, burst=burst, key=key)
