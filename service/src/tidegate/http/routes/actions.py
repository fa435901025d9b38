"""Actions of operators and clients on a job."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from tidegate.auth.roles import ADMINS, OPERATORS, REPORTERS_AND_OPERATORS
from tidegate.domain.values import ID
from tidegate.http import actions
from tidegate.http.actions import (
    ActionRequest,
    CompleteRequest,
    DeclareRequest,
    HandOverRequest,
    HoldRequest,
    RestoreRequest,
    SubstreamActionRequest,
)
from tidegate.http.bodies import body_of, json_answer
from tidegate.http.request import CallerOf, ContextOf, JobId, QueryId, allowed
from tidegate.views.types import Id, Text
from tidegate.views.watermark import CommandResult, HoldResult, WatermarkState

router = APIRouter(prefix="/v1/jobs", tags=["actions"])
ActionBody = Annotated[ActionRequest, body_of(ActionRequest)]
SubstreamBody = Annotated[SubstreamActionRequest, body_of(SubstreamActionRequest)]
HoldName = Annotated[Id, Path(json_schema_extra={"pattern": ID}, description="Name of the hold.", examples=["audit"])]


@router.post("/{job:id}:declare", response_model=CommandResult, summary="Declare substreams")
@allowed(*REPORTERS_AND_OPERATORS)
async def declare(
    job: JobId, body: Annotated[DeclareRequest, body_of(DeclareRequest)], context: ContextOf, caller: CallerOf
) -> Response:
    """Declare substreams before their first event, so that they hold the watermark from the start."""
    with caller.within_quotas() as quotas:
        audit = caller.audit_info(body.reason)
        effect = await context.store.actions.declare(job, body.query, body.pieces(), audit, quota=quotas.substreams)
    return json_answer(context.reader.command_result(job, effect))


@router.post("/{job:id}:restore", response_model=CommandResult, summary="Restore watermarks of substreams")
@allowed(*OPERATORS)
async def restore(
    job: JobId, body: Annotated[RestoreRequest, body_of(RestoreRequest)], context: ContextOf, caller: CallerOf
) -> Response:
    """Set the watermarks of known substreams to values from another system.

    If any substream is unknown, nothing changes.
    """
    await actions.check_times(context.store, job, "watermarks", body.watermarks, body.force)
    audit = caller.audit_info(body.reason)
    effect = await context.store.actions.restore(job, body.query, body.pieces(), audit)
    return json_answer(context.reader.command_result(job, effect))


@router.post("/{job:id}/substreams:idle", response_model=CommandResult, summary="Declare substreams idle")
@allowed(*REPORTERS_AND_OPERATORS)
async def idle(job: JobId, body: SubstreamBody, context: ContextOf, caller: CallerOf) -> Response:
    """Exclude substreams from the minimum until their next event. If any substream is unknown, nothing changes."""
    effect = await context.store.actions.idle(job, body.query, body.pieces(), caller.audit_info(body.reason))
    return json_answer(context.reader.command_result(job, effect))


@router.post("/{job:id}/substreams:done", response_model=CommandResult, summary="Mark substreams as done")
@allowed(*REPORTERS_AND_OPERATORS)
async def done(job: JobId, body: SubstreamBody, context: ContextOf, caller: CallerOf) -> Response:
    """Mark substreams as permanently ended. If any substream is unknown, nothing changes."""
    effect = await context.store.actions.done(job, body.query, body.pieces(), caller.audit_info(body.reason))
    return json_answer(context.reader.command_result(job, effect))


@router.post("/{job:id}/substreams:evict", response_model=CommandResult, summary="Evict substreams")
@allowed(*OPERATORS)
async def evict(job: JobId, body: SubstreamBody, context: ContextOf, caller: CallerOf) -> Response:
    """Remove substreams from the job. The watermark does not move back. The substreams can return as new substreams."""
    effect = await context.store.actions.evict(job, body.query, body.pieces(), caller.audit_info(body.reason))
    return json_answer(context.reader.command_result(job, effect))


@router.post("/{job:id}/queries/{query:id}:hand_over", response_model=CommandResult, summary="Hand over a query")
@allowed(*OPERATORS)
async def hand_over(
    job: JobId,
    query: QueryId,
    body: Annotated[HandOverRequest, body_of(HandOverRequest)],
    context: ContextOf,
    caller: CallerOf,
) -> Response:
    """Retire a query whose substreams its successor takes over. The open batch of the query is abandoned."""
    effect = await context.store.actions.retire(job, query, body.successor, caller.audit_info(body.reason))
    return json_answer(context.reader.command_result(job, effect))


@router.post("/{job:id}/queries/{query:id}:retire", response_model=CommandResult, summary="Retire a query")
@allowed(*OPERATORS)
async def retire(job: JobId, query: QueryId, body: ActionBody, context: ContextOf, caller: CallerOf) -> Response:
    """End a query: abandon its open batch, and evict its substreams."""
    effect = await context.store.actions.retire(job, query, None, caller.audit_info(body.reason))
    return json_answer(context.reader.command_result(job, effect))


@router.post("/{job:id}:complete", response_model=CommandResult, summary="Complete a job")
@allowed(*OPERATORS)
async def complete(
    job: JobId, body: Annotated[CompleteRequest, body_of(CompleteRequest)], context: ContextOf, caller: CallerOf
) -> Response:
    """Declare the end of the input: all substreams are done, and the watermark passes the max event time."""
    if body.up_to is not None:
        await actions.check_times(context.store, job, "up_to", [body.up_to], body.force)
    effect = await context.store.actions.complete(job, caller.audit_info(body.reason), up_to=body.up_to)
    return json_answer(context.reader.command_result(job, effect))


@router.post("/{job:id}:reopen", response_model=CommandResult, summary="Reopen a job")
@allowed(*OPERATORS)
async def reopen(job: JobId, body: ActionBody, context: ContextOf, caller: CallerOf) -> Response:
    """Accept reports again after the end of the input. The watermark stays, so rows below it are late."""
    effect = await context.store.actions.reopen(job, caller.audit_info(body.reason))
    return json_answer(context.reader.command_result(job, effect))


@router.post("/{job:id}:reset", response_model=WatermarkState, summary="Reset a job")
@allowed(*ADMINS)
async def reset(job: JobId, body: ActionBody, context: ContextOf, caller: CallerOf) -> Response:
    """Start a new incarnation with the same configuration, to correct a watermark that is too high.

    A reset deletes all state, including the watermark. A repeated call resets the job again.
    """
    answer = await context.store.actions.reset(job, caller.audit_info(body.reason))
    return json_answer(context.reader.watermark(job, answer))


@router.post("/{job:id}/holds", response_model=HoldResult, summary="Hold a watermark")
@allowed(*OPERATORS)
async def hold(
    job: JobId, body: Annotated[HoldRequest, body_of(HoldRequest)], context: ContextOf, caller: CallerOf
) -> Response:
    """Keep the watermark at or below a value. If the watermark is already higher, it does not move."""
    name, effect = await actions.hold(context.store, job, body, caller.audit_info(body.reason))
    return json_answer(HoldResult(**context.reader.members(job, effect.state), applied=effect.applied, hold=name))


@router.delete("/{job:id}/holds/{hold:id}", response_model=WatermarkState, summary="Release a hold")
@allowed(*OPERATORS)
async def release(
    job: JobId,
    hold: HoldName,
    context: ContextOf,
    caller: CallerOf,
    reason: Annotated[
        Text,
        Query(max_length=1000, description="Reason for the action. The history keeps it.", examples=["Audit finished"]),
    ] = "",
) -> Response:
    """Release a hold before it expires."""
    answer = await context.store.actions.release(job, hold, caller.audit_info(reason))
    return json_answer(context.reader.watermark(job, answer))
