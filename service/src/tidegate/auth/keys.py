"""API keys: their members, quotas and hashes.

A key has the form ``tdg_<id>_<secret>``. Its secret has 256 random bits, so one round of SHA-256 protects it. Only
secrets that can be guessed need a slow hash.
"""

import hashlib
import hmac
import secrets
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from tidegate.auth.roles import Role
from tidegate.domain.values import NAME_OR_EMPTY, STORED_NAME

SCHEME = "tdg"


class KeysUnusable(Exception):
    """Raised when the key file cannot be used. The message says what is wrong and what to do."""


class Quotas(BaseModel):
    """The limits of one key. Where a limit is null, only the limit of the service applies."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests_per_s: int | None = Field(
        default=None, ge=1, description="Maximum number of calls per second at one replica.", examples=[50]
    )
    burst: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of calls at once, after a pause. By default, the calls of one second.",
        examples=[200],
    )
    waiting: int | None = Field(
        default=None, ge=1, description="Maximum number of waiting clients at one replica.", examples=[20]
    )
    jobs: int | None = Field(
        default=None, ge=1, description="Maximum number of jobs with the prefix of the key.", examples=[10]
    )
    substreams: int | None = Field(
        default=None, ge=1, description="Maximum number of substreams of one job.", examples=[1000]
    )


NO_QUOTAS = Quotas()


class Key(BaseModel):
    """A key as stored in the file, which gives access to jobs whose names begin with ``prefix``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=STORED_NAME)  # never a part of a path
    role: Role
    prefix: str = Field(default="", pattern=NAME_OR_EMPTY)
    id: str = Field(pattern=r"^[0-9a-f]{12}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    created: AwareDatetime
    expires: AwareDatetime | None = None
    quotas: Quotas = NO_QUOTAS

    def has_expired(self, now_s: float) -> bool:
        """Return whether the key has expired at a Unix time."""
        return self.expires is not None and self.expires.timestamp() <= now_s


def new_key(**members: Any) -> tuple[str, Key]:
    """Return a new key in two forms: as its user presents it, and as the file stores it."""
    key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    return f"{SCHEME}_{key_id}_{secret}", Key(id=key_id, sha256=_hash(secret), **members)


def split_key(presented: str) -> tuple[str, str, str]:
    """Return the scheme, the id and the secret of a presented key."""
    scheme, _, rest = presented.partition("_")
    key_id, _, secret = rest.partition("_")
    return scheme, key_id, secret


def has_secret(key: Key | None, secret: str) -> bool:
    """Return whether a secret belongs to a key. The duration does not depend on the secret or the key."""
    genuine = hmac.compare_digest(_hash(secret), key.sha256 if key else _hash(""))
    return genuine and key is not None


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()
