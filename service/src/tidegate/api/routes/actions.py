"""Actions of operators and clients on a job. A repetition changes nothing."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from tidegate.api.parameters import QueryId
from tidegate.auth.roles import ADMINS, OPERATORS, REPORTERS_AND_OPERATORS
from tidegate.reads.types import ID, Text
from tidegate.reads.watermark import CommandResult, HoldResult, WatermarkState
from tidegate.web import actions
from tidegate.web.access import CallerOf, allowed
from tidegate.web.actions import (
    ActionRequest,
    CompleteRequest,
    DeclareRequest,
    HoldRequest,
    RestoreRequest,
    RetireRequest,
    SubstreamActionRequest,
)
from tidegate.web.bodies import body_of, json_answer, read_body
from tidegate.web.context import ContextOf, JobId

router = APIRouter(prefix="/v1/jobs", tags=["actions"])
HoldName = Annotated[str, Path(pattern=ID, description="Name of the hold.", examples=["audit"])]


@router.post(
    "/{job:id}:declare",
    response_model=CommandResult,
    openapi_extra=body_of(DeclareRequest),
    summary="Declare substreams",
)
@allowed(*REPORTERS_AND_OPERATORS)
async def declare(job: JobId, request: Request, context: ContextOf, caller: CallerOf) -> Response:
    """Declare substreams before their first event, so that they hold the watermark from the start."""
    body = await read_body(request, DeclareRequest)
    with caller.within_quotas() as quotas:
        effect = await context.store.declare(
            job,
            body.query,
            body.names,
            body.known_event_times,
            caller.audit_info(body.reason),
            quota=quotas.substreams,
        )
    return json_answer(context.reader.command_result(job, effect))


@router.post(
    "/{job:id}:restore",
    response_model=CommandResult,
    openapi_extra=body_of(RestoreRequest),
    summary="Restore watermarks of substreams",
)
@allowed(*OPERATORS)
async def restore(job: JobId, request: Request, context: ContextOf, caller: CallerOf) -> Response:
    """Set the watermarks of known substreams from another system. If one is unknown, nothing changes."""
    body = await read_body(request, RestoreRequest)
    audit = caller.audit_info(body.reason)
    effect = await context.store.restore(job, body.query, body.watermark_of, audit)
    return json_answer(context.reader.command_result(job, effect))


@router.post(
    "/{job:id}/substreams:idle",
    response_model=CommandResult,
    openapi_extra=body_of(SubstreamActionRequest),
    summary="Declare substreams idle",
)
@allowed(*REPORTERS_AND_OPERATORS)
async def idle(job: JobId, request: Request, context: ContextOf, caller: CallerOf) -> Response:
    """Exclude substreams from the minimum until their next event. If one is unknown, nothing changes."""
    body = await read_body(request, SubstreamActionRequest)
    effect = await context.store.idle(job, body.query, body.names, caller.audit_info(body.reason))
    return json_answer(context.reader.command_result(job, effect))


@router.post(
    "/{job:id}/substreams:done",
    response_model=CommandResult,
    openapi_extra=body_of(SubstreamActionRequest),
    summary="Mark substreams as done",
)
@allowed(*REPORTERS_AND_OPERATORS)
async def done(job: JobId, request: Request, context: ContextOf, caller: CallerOf) -> Response:
    """Mark substreams as permanently ended. If one is unknown, nothing changes."""
    body = await read_body(request, SubstreamActionRequest)
    effect = await context.store.done(job, body.query, body.names, caller.audit_info(body.reason))
    return json_answer(context.reader.command_result(job, effect))


@router.post(
    "/{job:id}/substreams:evict",
    response_model=CommandResult,
    openapi_extra=body_of(SubstreamActionRequest),
    summary="Evict substreams",
)
@allowed(*OPERATORS)
async def evict(job: JobId, request: Request, context: ContextOf, caller: CallerOf) -> Response:
    """Remove substreams from the job. The watermark does not move back, and they can return as new substreams."""
    body = await read_body(request, SubstreamActionRequest)
    effect = await context.store.evict(job, body.query, body.names, caller.audit_info(body.reason))
    return json_answer(context.reader.command_result(job, effect))


@router.post(
    "/{job:id}/queries/{query:id}:retire",
    response_model=CommandResult,
    openapi_extra=body_of(RetireRequest),
    summary="Retire a query",
)
@allowed(*OPERATORS)
async def retire(job: JobId, query: QueryId, request: Request, context: ContextOf, caller: CallerOf) -> Response:
    """End a query and abandon its open batch. A successor takes over its substreams, or they are evicted."""
    body = await read_body(request, RetireRequest)
    effect = await context.store.retire(job, query, body.successor, caller.audit_info(body.reason))
    return json_answer(context.reader.command_result(job, effect))


@router.post(
    "/{job:id}:complete",
    response_model=CommandResult,
    openapi_extra=body_of(CompleteRequest),
    summary="Complete a job",
)
@allowed(*OPERATORS)
async def complete(job: JobId, request: Request, context: ContextOf, caller: CallerOf) -> Response:
    """Declare the end of the input: all substreams are done, and the watermark passes the max event time."""
    body = await read_body(request, CompleteRequest)
    effect = await context.store.complete(job, caller.audit_info(body.reason), up_to=body.up_to)
    return json_answer(context.reader.command_result(job, effect))


@router.post(
    "/{job:id}:reopen",
    response_model=CommandResult,
    openapi_extra=body_of(ActionRequest),
    summary="Reopen a job",
)
@allowed(*OPERATORS)
async def reopen(job: JobId, request: Request, context: ContextOf, caller: CallerOf) -> Response:
    """Accept reports again after the end of the input. The watermark stays, so earlier rows are late."""
    body = await read_body(request, ActionRequest)
    effect = await context.store.reopen(job, caller.audit_info(body.reason))
    return json_answer(context.reader.command_result(job, effect))


@router.post(
    "/{job:id}:reset",
    response_model=WatermarkState,
    openapi_extra=body_of(ActionRequest),
    summary="Reset a job",
)
@allowed(*ADMINS)
async def reset(job: JobId, request: Request, context: ContextOf, caller: CallerOf) -> Response:
    """Start a new incarnation with the same configuration. It is the only way to move a watermark back.

    All state is deleted, the watermark included. A repetition resets the job again.
    """
    body = await read_body(request, ActionRequest)
    answer = await context.store.reset(job, caller.audit_info(body.reason))
    return json_answer(context.reader.watermark(job, answer))


@router.post(
    "/{job:id}/holds", response_model=HoldResult, openapi_extra=body_of(HoldRequest), summary="Hold a watermark"
)
@allowed(*OPERATORS)
async def hold(job: JobId, request: Request, context: ContextOf, caller: CallerOf) -> Response:
    """Keep the watermark at or below a value. If it is higher already, it stays where it is."""
    body = await read_body(request, HoldRequest)
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
        Query(max_length=1000, description="Reason of the action. The history keeps it.", examples=["Audit finished"]),
    ] = "",
) -> Response:
    """Release a hold before it expires."""
    answer = await context.store.release(job, hold, caller.audit_info(reason))
    return json_answer(context.reader.watermark(job, answer))
