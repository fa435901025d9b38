"""Keys, as the API lists them."""

from datetime import datetime

from pydantic import Field

from tidegate.api.schemas.types import Record
from tidegate.auth.keyring import Quotas
from tidegate.auth.roles import Role


class KeyRecord(Record):
    """A key, without anything secret."""

    name: str
    id: str = Field(description="the part of the key between tdg_ and the secret")
    role: Role
    prefix: str = Field(description="the key is for jobs whose names begin so")
    created: datetime
    expires: datetime | None = Field(description="null: never")
    quotas: Quotas
    last_used_s: int | None = Field(description="Unix time in seconds, to the minute; null: never")


class KeyList(Record):
    """The keys of this coordinator that are for jobs within the caller's prefix; none if it has no keys."""

    keys: list[KeyRecord]
