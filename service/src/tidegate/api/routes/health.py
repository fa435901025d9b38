"""Probes of a replica."""

from typing import Literal

from fastapi import APIRouter, Response
from pydantic import Field

from tidegate.views.types import Answer
from tidegate.web.access import allowed
from tidegate.web.bodies import json_answer
from tidegate.web.context import ContextOf

router = APIRouter(tags=["health"])


class Liveness(Answer):
    """The answer of a live process."""

    status: Literal["alive"] = Field(default="alive", description="Always `alive`.", examples=["alive"])


class Readiness(Answer):
    """The answer of a replica that can serve calls."""

    status: Literal["ready"] = Field(default="ready", description="Always `ready`.", examples=["ready"])


@router.get("/livez", response_model=Liveness, summary="Check that the process is alive")
@allowed()
async def livez() -> Response:
    """Answer without checking Redis, because a restart of the replica would not repair Redis."""
    return json_answer(Liveness())


@router.get("/readyz", response_model=Readiness, summary="Check that the replica can serve calls")
@allowed()
async def readyz(context: ContextOf) -> Response:
    """Check that Redis answers, runs functions and accepts writes."""
    await context.store.check()
    return json_answer(Readiness())
