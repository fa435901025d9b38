"""Whether this replica lives, and whether it can serve."""

from fastapi import APIRouter, Response
from redis.exceptions import RedisError

from tidegate.api.access import allowed
from tidegate.api.context import Ctx
from tidegate.api.problems import of_store
from tidegate.store import shared

router = APIRouter(tags=["health"])


@router.get("/livez")
@allowed()
async def livez() -> dict[str, str]:
    """The process answers. Says nothing of Redis: restarting this replica would not mend that."""
    return {"status": "alive"}


@router.get("/readyz")
@allowed()
async def readyz(ctx: Ctx) -> Response:
    """Redis answers, runs scripts and takes writes."""
    try:
        await shared.check(ctx.store.redis)
    except RedisError as error:
        raise of_store(error) from None
    return Response('{"status":"ready"}', media_type="application/json")
