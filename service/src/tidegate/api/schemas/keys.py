"""Keys, without their secrets."""

from datetime import datetime

from pydantic import Field

from tidegate.auth.keys import Quotas
from tidegate.auth.roles import Role
from tidegate.reads.types import Record


class ApiKey(Record):
    """A key, without its secret."""

    name: str = Field(description="Name of the key. The history names it with every action.", examples=["operations"])
    id: str = Field(description="Part of the key between `tdg_` and the secret.", examples=["4f0c2a9be771"])
    role: Role = Field(description="Role of the key.", examples=["operate"])
    prefix: str = Field(description="The key is for jobs whose names begin with this prefix.", examples=["flights"])
    created: datetime = Field(description="Time at which the key was created.", examples=["2013-01-01T00:00:00Z"])
    expires: datetime | None = Field(
        description="Time at which the key expires. Null: never.", examples=["2013-04-01T00:00:00Z"]
    )
    quotas: Quotas = Field(description="Limits of the key.")
    last_used_s: int | None = Field(
        description="Unix time of its last use in seconds. Null: never.", examples=[1357554630]
    )


class ApiKeyList(Record):
    """The keys for jobs within the caller's prefix; none if the coordinator has no keys."""

    keys: list[ApiKey] = Field(description="Keys in the order of the file.")
