"""The keys of a coordinator."""

from fastapi import APIRouter, Response

from tidegate.api.schemas.keys import ApiKey, ApiKeyList
from tidegate.auth.roles import ADMINS
from tidegate.store import shared
from tidegate.web.access import CallerOf, allowed
from tidegate.web.bodies import json_answer
from tidegate.web.context import ContextOf

router = APIRouter(prefix="/v1", tags=["keys"])


@router.get("/keys", response_model=ApiKeyList, summary="List keys")
@allowed(*ADMINS)
async def list_keys(context: ContextOf, caller: CallerOf) -> Response:
    """Return the keys without their secrets, and when each was last used."""
    keys = [] if context.keyring is None else context.keyring.keys()
    last_used = await shared.last_uses(context.store.redis)
    listed = [
        ApiKey(**key.model_dump(exclude={"sha256"}), last_used_s=last_used.get(key.id))
        for key in keys
        if key.prefix.startswith(caller.prefix)
    ]
    return json_answer(ApiKeyList(keys=listed))
