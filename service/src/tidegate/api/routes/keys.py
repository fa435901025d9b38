"""The keys of a coordinator."""

from fastapi import APIRouter, Response

from tidegate.api.access import ADMINS, Who, allowed
from tidegate.api.bodies import answer
from tidegate.api.context import Ctx
from tidegate.api.schemas.keys import KeyList, KeyRecord
from tidegate.store import shared

router = APIRouter(prefix="/v1", tags=["keys"])


@router.get("/keys", response_model=KeyList)
@allowed(*ADMINS)
async def list_keys(ctx: Ctx, who: Who) -> Response:
    """The keys, without anything secret, and when each was last used."""
    keys = [] if ctx.keyring is None else ctx.keyring.keys()
    last_used = await shared.last_uses(ctx.store.redis)
    listed = [
        KeyRecord(**key.model_dump(exclude={"sha256"}), last_used_s=last_used.get(key.id))
        for key in keys
        if key.prefix.startswith(who.prefix)
    ]
    return answer(KeyList(keys=listed))
