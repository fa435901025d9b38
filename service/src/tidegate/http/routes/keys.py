"""The keys of a coordinator."""

from datetime import datetime

from fastapi import APIRouter, Response
from pydantic import Field

from tidegate.auth.keys import Quotas
from tidegate.auth.roles import ADMINS, Role
from tidegate.http.bodies import json_answer
from tidegate.http.request import CallerOf, ContextOf, allowed
from tidegate.store import shared
from tidegate.views.types import Answer

router = APIRouter(prefix="/v1", tags=["keys"])


class ApiKey(Answer):
    """A key, without its secret."""

    name: str = Field(description="Name of the key. The history records it with every action.", examples=["operations"])
    id: str = Field(description="Part of the key between `tdg_` and the secret.", examples=["4f0c2a9be771"])
    role: Role = Field(description="Role of the key.", examples=["operate"])
    prefix: str = Field(description="Prefix of the names of the jobs that the key can access.", examples=["flights"])
    created: datetime = Field(description="Time at which the key was created.", examples=["2013-01-01T00:00:00Z"])
    expires: datetime | None = Field(
        description="Time at which the key expires. Null if it does not expire.", examples=["2013-04-01T00:00:00Z"]
    )
    quotas: Quotas = Field(description="Limits of the key.")
    last_used_s: int | None = Field(
        description="Unix time in seconds at which the key was last used. Null before the first use.",
        examples=[1357554630],
    )


class ApiKeyList(Answer):
    """The keys for jobs within the caller's prefix. Empty if the coordinator has no keys."""

    keys: list[ApiKey] = Field(description="Keys in file order.")


@router.get("/keys", response_model=ApiKeyList, summary="List keys")
@allowed(*ADMINS)
async def list_keys(context: ContextOf, caller: CallerOf) -> Response:
    """Return the keys without their secrets, with the time of their last use."""
    keys = [] if context.keyring is None else context.keyring.keys()
    last_used = await shared.last_uses(context.store.servers)
    listed = [
        ApiKey(**key.model_dump(exclude={"sha256"}), last_used_s=last_used.get(key.id))
        for key in keys
        if key.prefix.startswith(caller.prefix)
    ]
    return json_answer(ApiKeyList(keys=listed))
