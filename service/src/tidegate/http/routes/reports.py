"""Reports, batches and heartbeats of clients."""

from typing import Annotated

from fastapi import APIRouter, Response

from tidegate.auth.roles import READERS, REPORTERS
from tidegate.domain import results
from tidegate.domain.batches import CaughtUp
from tidegate.domain.job import Run
from tidegate.domain.offsets import BatchOffsets
from tidegate.http.bodies import JsonAnswer, body_of, json_answer
from tidegate.http.problems import Problem
from tidegate.http.request import BatchId, CallerOf, Context, ContextOf, JobId, QueryId, allowed
from tidegate.http.schemas import (
    BatchReference,
    BeginRequest,
    BeginResult,
    CommitRequest,
    CommitResult,
    HeartbeatRequest,
    Offsets,
    Report,
    RunReference,
)
from tidegate.runtime.logs import identify
from tidegate.views.substreams import BatchStatus, read_batch
from tidegate.views.types import attributes
from tidegate.views.watermark import CommandResult

router = APIRouter(prefix="/v1/jobs", tags=["reports"])
BATCH = "/{job:id}/queries/{query:id}/batches/{batch:id}"


def _run(query: str, body: RunReference | BatchReference) -> Run:
    return Run(query, body.query_id, body.run_id)


@router.post("/{job:id}:report", response_model=CommandResult, summary="Report event times")
@allowed(*REPORTERS)
async def report(
    job: JobId, body: Annotated[Report, body_of(Report)], context: ContextOf, caller: CallerOf
) -> Response:
    """Report the highest event times of substreams. Without a batch, the report takes effect at once."""
    with caller.within_quotas() as quotas:
        if body.batch is None:
            effect = await _report(context, job, body, quotas.substreams)
        else:
            effect = await _report_staged(context, job, body, body.batch, quotas.substreams)
    context.metrics.reported(job)
    return JsonAnswer(context.reader.command_json(job, effect))


async def _report(context: Context, job: str, body: Report, quota: int | None) -> results.Effect:
    token = context.tokens.claim(job, body.watermark_token)
    return await context.store.report(job, body.pieces(), token, quota=quota)


async def _report_staged(
    context: Context, job: str, body: Report, batch: BatchReference, quota: int | None
) -> results.Effect:
    identify(query=batch.query, batch=batch.batch_id)
    return await context.store.stage(
        job,
        _run(batch.query, batch),
        batch.batch_id,
        batch.partition,
        body.pieces(),
        token=context.tokens.claim(job, body.watermark_token),
        quota=quota,
    )


@router.put(BATCH, response_model=BeginResult, summary="Begin a batch")
@allowed(*REPORTERS)
async def begin(
    job: JobId, query: QueryId, batch: BatchId, body: Annotated[BeginRequest, body_of(BeginRequest)], context: ContextOf
) -> Response:
    """Begin a batch and pin its watermark. A batch that has already begun keeps its pinned watermark."""
    begun = await context.store.begin(
        job,
        _run(query, body),
        batch,
        body.options,
        context.tokens.claim(job, body.watermark_token),
    )
    return json_answer(BeginResult(**context.reader.members(job, begun.state), **attributes(begun)))


@router.get(BATCH, response_model=BatchStatus, summary="Get a batch")
@allowed(*READERS)
async def get_batch(job: JobId, query: QueryId, batch: BatchId, context: ContextOf) -> Response:
    """Return the pinned watermark of a batch, and whether the batch is open.

    The coordinator keeps the pinned watermarks of the latest batches only.
    """
    found = await read_batch(context.reader, job, query, batch)
    if found is None:
        raise Problem(
            "batch_not_found", "This batch never began, or the coordinator no longer keeps its pinned watermark."
        )
    return json_answer(found)


@router.post(BATCH + ":commit", response_model=CommitResult, summary="Commit a batch")
@allowed(*REPORTERS)
async def commit(
    job: JobId,
    query: QueryId,
    batch: BatchId,
    body: Annotated[CommitRequest, body_of(CommitRequest)],
    context: ContextOf,
) -> Response:
    """Commit a batch: its staged reports take effect, and its rows are counted. A repetition changes nothing."""
    token, pieces = context.tokens.claim(job, body.watermark_token), body.pieces(query)
    caught_up = None if body.caught_up is None else CaughtUp(body.caught_up, body.caught_up_age_ms)
    committed = await context.store.commit(
        job,
        _run(query, body),
        batch,
        pieces,
        body.waited_ms,
        body.reported,
        token,
        caught_up=caught_up,
        offsets=_offsets_up_to(batch, body.offsets),
        outputs=body.table_versions,
    )
    return json_answer(CommitResult(**context.reader.members(job, committed.state), **attributes(committed)))


@router.post(
    "/{job:id}/queries/{query:id}:heartbeat",
    response_model=CommandResult,
    summary="Confirm that a query is caught up",
)
@allowed(*REPORTERS)
async def heartbeat(
    job: JobId, query: QueryId, body: Annotated[HeartbeatRequest, body_of(HeartbeatRequest)], context: ContextOf
) -> Response:
    """Confirm that a query is caught up, so that its silence counts towards the idle timeout; tell its output."""
    token = context.tokens.claim(job, body.watermark_token)
    effect = await context.store.heartbeat(
        job,
        _run(query, body),
        body.observed_ms,
        body.waited_ms,
        body.after_batch,
        token,
        caught_up=body.caught_up,
        offsets=_offsets_up_to(body.after_batch, body.offsets),
        tells_output="output_watermark" in body.model_fields_set,
        output_watermark=body.output_watermark,
        outputs=body.table_versions,
    )
    return json_answer(context.reader.command_result(job, effect))


def _offsets_up_to(batch: int | None, offsets: Offsets | None) -> BatchOffsets | None:
    """Return offsets as an argument of a command about a batch; refuse those of a later batch."""
    if offsets is None:
        return None
    if batch is None:
        raise Problem("invalid_request", "offsets need a batch: set after_batch", members={"field": "after_batch"})
    if offsets.batch_id is not None and offsets.batch_id > batch:
        detail = f"offsets.batch_id is {offsets.batch_id}, but this call is about batches up to {batch}"
        raise Problem("invalid_request", detail, members={"field": "offsets.batch_id"})
    return offsets.columns
