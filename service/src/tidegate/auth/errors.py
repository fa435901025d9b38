"""Errors of callers that are not allowed to make a call.

::

    AccessDenied
    ├── KeyRequired       no key was sent
    ├── KeyUnknown        the key does not exist, or was revoked
    ├── KeyExpired        the key has expired
    ├── RoleNotAllowed    the role of the key does not allow the call
    └── JobNotAllowed     the prefix of the key does not match the job
"""

from typing import ClassVar

CHALLENGE = 'Bearer realm="tidegate"'
INVALID_TOKEN = f'{CHALLENGE}, error="invalid_token"'


class AccessDenied(Exception):
    """A call that the caller is not allowed to make.

    Attributes:
        code: Stable code of the error.
        challenge: Value of the ``WWW-Authenticate`` header; empty if another key would not help.
        details: Further members of the problem document.
    """

    code: ClassVar[str]
    challenge: ClassVar[str] = ""

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.details = details


class KeyRequired(AccessDenied):
    """A call without a key."""

    code = "key_required"
    challenge = CHALLENGE


class KeyUnknown(AccessDenied):
    """A call with a key that does not exist, or was revoked."""

    code = "key_unknown"
    challenge = INVALID_TOKEN

    def __init__(self) -> None:
        super().__init__("This key is not known, or was revoked.")


class KeyExpired(AccessDenied):
    """A call with a key that has expired."""

    code = "key_expired"
    challenge = INVALID_TOKEN


class RoleNotAllowed(AccessDenied):
    """A call that the role of the key does not allow."""

    code = "role_not_allowed"


class JobNotAllowed(AccessDenied):
    """A call for a job whose name does not begin with the prefix of the key."""

    code = "job_not_allowed"
