"""What clients and operators do to a job from outside the stream. Repeating any of these is 200 and changes nothing."""

import secrets
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from tidegate.api.access import ADMINS, OPERATORS, REPORTERS_AND_OPERATORS, Who, allowed
from tidegate.api.bodies import answer, body_of, read
from tidegate.api.context import Context, Ctx, JobId, QueryId
from tidegate.api.schemas.actions import (
    Action,
    Completion,
    Declaration,
    HoldRequest,
    Restoration,
    Retirement,
    SubstreamAction,
)
from tidegate.api.schemas.jobs import EffectRecord, HoldEffectRecord, WatermarkRecord
from tidegate.api.schemas.types import ID, Text
from tidegate.domain.results import CommandResult

router = APIRouter(prefix="/v1/jobs", tags=["actions"])
HoldId = Annotated[str, Path(pattern=ID)]


def _effect(ctx: Context, job: str, effect: CommandResult) -> Response:
    return answer(EffectRecord(**ctx.watermark(job, effect.state), applied=effect.applied))


@router.post("/{job:id}:declare", response_model=EffectRecord, openapi_extra=body_of(Declaration))
@allowed(*REPORTERS_AND_OPERATORS)
async def declare(job: JobId, request: Request, ctx: Ctx, who: Who) -> Response:
    """Makes substreams known before their first event, so that they hold the watermark back from the start."""
    body = await read(request, Declaration)
    with who.within_quotas() as quotas:
        effect = await ctx.store.declare(
            job, body.query, body.names, body.known_event_times, who.why(body.reason), quota=quotas.substreams
        )
    return _effect(ctx, job, effect)


@router.post("/{job:id}:restore", response_model=EffectRecord, openapi_extra=body_of(Restoration))
@allowed(*OPERATORS)
async def restore(job: JobId, request: Request, ctx: Ctx, who: Who) -> Response:
    """Takes over watermarks from elsewhere, for substreams that are known; all of those named, or none."""
    body = await read(request, Restoration)
    return _effect(ctx, job, await ctx.store.restore(job, body.query, body.values, who.why(body.reason)))


@router.post("/{job:id}/substreams:idle", response_model=EffectRecord, openapi_extra=body_of(SubstreamAction))
@allowed(*REPORTERS_AND_OPERATORS)
async def idle(job: JobId, request: Request, ctx: Ctx, who: Who) -> Response:
    """Declares substreams idle: the rest no longer waits for them until something comes of them. All, or none."""
    body = await read(request, SubstreamAction)
    return _effect(ctx, job, await ctx.store.idle(job, body.query, body.names, who.why(body.reason)))


@router.post("/{job:id}/substreams:done", response_model=EffectRecord, openapi_extra=body_of(SubstreamAction))
@allowed(*REPORTERS_AND_OPERATORS)
async def done(job: JobId, request: Request, ctx: Ctx, who: Who) -> Response:
    """Marks substreams as ended, for good; all of those named, or none where one is not known."""
    body = await read(request, SubstreamAction)
    return _effect(ctx, job, await ctx.store.done(job, body.query, body.names, who.why(body.reason)))


@router.post("/{job:id}/substreams:evict", response_model=EffectRecord, openapi_extra=body_of(SubstreamAction))
@allowed(*OPERATORS)
async def evict(job: JobId, request: Request, ctx: Ctx, who: Who) -> Response:
    """Forgets substreams; what they led to goes on counting. They may come back, as new ones."""
    body = await read(request, SubstreamAction)
    return _effect(ctx, job, await ctx.store.evict(job, body.query, body.names, who.why(body.reason)))


@router.post("/{job:id}/queries/{query:id}:retire", response_model=EffectRecord, openapi_extra=body_of(Retirement))
@allowed(*OPERATORS)
async def retire(job: JobId, query: QueryId, request: Request, ctx: Ctx, who: Who) -> Response:
    """Ends a query and gives up its open batch. Its substreams go to the successor, or are evicted. Its own successor,
    it keeps them, and may begin on another checkpoint.
    """
    body = await read(request, Retirement)
    return _effect(ctx, job, await ctx.store.retire(job, query, body.successor, who.why(body.reason)))


@router.post("/{job:id}:complete", response_model=EffectRecord, openapi_extra=body_of(Completion))
@allowed(*OPERATORS)
async def complete(job: JobId, request: Request, ctx: Ctx, who: Who) -> Response:
    """End of input: all substreams are done, the watermark goes to the first frame boundary above the job's top."""
    body = await read(request, Completion)
    return _effect(ctx, job, await ctx.store.complete(job, who.why(body.reason), up_to=body.up_to))


@router.post("/{job:id}:reopen", response_model=EffectRecord, openapi_extra=body_of(Action))
@allowed(*OPERATORS)
async def reopen(job: JobId, request: Request, ctx: Ctx, who: Who) -> Response:
    """Takes an end of input back, but not the watermark: what comes from below it is late."""
    body = await read(request, Action)
    return _effect(ctx, job, await ctx.store.reopen(job, who.why(body.reason)))


@router.post("/{job:id}:reset", response_model=WatermarkRecord, openapi_extra=body_of(Action))
@allowed(*ADMINS)
async def reset(job: JobId, request: Request, ctx: Ctx, who: Who) -> Response:
    """Begins a new incarnation under the same rules: all that was known is forgotten, the watermark too. The only way
    back from a watermark that is wrong; a repetition resets again.
    """
    body = await read(request, Action)
    found = await ctx.store.reset(job, who.why(body.reason))
    return answer(WatermarkRecord(**ctx.watermark(job, found)))


@router.post("/{job:id}/holds", response_model=HoldEffectRecord, openapi_extra=body_of(HoldRequest))
@allowed(*OPERATORS)
async def hold(job: JobId, request: Request, ctx: Ctx, who: Who) -> Response:
    """Keeps the watermark at or below a value; where it is beyond already, where it is."""
    body = await read(request, HoldRequest)
    name = body.hold or secrets.token_hex(4)
    effect = await ctx.store.hold(job, name, body.at_most, body.duration_ms, who.why(body.reason))
    return answer(HoldEffectRecord(**ctx.watermark(job, effect.state), applied=effect.applied, hold=name))


@router.delete("/{job:id}/holds/{hold:id}", response_model=WatermarkRecord)
@allowed(*OPERATORS)
async def release(
    job: JobId, hold: HoldId, ctx: Ctx, who: Who, reason: Annotated[Text, Query(max_length=1000)] = ""
) -> Response:
    """Ends a hold."""
    found = await ctx.store.release(job, hold, who.why(reason))
    return answer(WatermarkRecord(**ctx.watermark(job, found)))
