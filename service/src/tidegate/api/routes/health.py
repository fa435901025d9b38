"""Probes of a replica."""

from fastapi import APIRouter, Response

from tidegate.api.schemas.health import Liveness, Readiness
from tidegate.store import shared
from tidegate.web.access import allowed
from tidegate.web.bodies import json_answer
from tidegate.web.context import ContextOf

router = APIRouter(tags=["health"])


@router.get("/livez", response_model=Liveness, summary="Check that the process is alive")
@allowed()
async def livez() -> Response:
    """Answer without a check of Redis, because a restart of the replica would not repair Redis."""
    return json_answer(Liveness())


@router.get("/readyz", response_model=Readiness, summary="Check that the replica can serve calls")
@allowed()
async def readyz(context: ContextOf) -> Response:
    """Check that Redis answers, runs scripts and takes writes."""
    await shared.check(context.store.redis)
    return json_answer(Readiness())
