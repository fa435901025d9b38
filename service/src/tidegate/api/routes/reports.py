"""What reporters and Spark's batches say."""

from fastapi import APIRouter, Request, Response
from structlog.contextvars import bind_contextvars

from tidegate.api.access import READERS, REPORTERS, Who, allowed
from tidegate.api.bodies import answer, body_of, read
from tidegate.api.context import BatchId, Ctx, JobId, QueryId
from tidegate.api.problems import Problem
from tidegate.api.schemas.batches import BatchRecord, Begin, BeginRecord, Commit, Heartbeat, Report
from tidegate.api.schemas.jobs import EffectRecord
from tidegate.domain.errors import QueryNotFound
from tidegate.domain.state import Run

router = APIRouter(prefix="/v1/jobs", tags=["reports"])
BATCH = "/{job:id}/queries/{query:id}/batches/{batch:id}"


@router.post("/{job:id}:report", response_model=EffectRecord, openapi_extra=body_of(Report))
@allowed(*REPORTERS)
async def report(job: JobId, request: Request, ctx: Ctx, who: Who) -> Response:
    """Reports highest event times by substream, staged under a batch or at once."""
    body = await read(request, Report)
    claim = ctx.tokens.claim(job, body.watermark_token)
    delays = body.delayed_rows()
    max_event_times, watermarks = body.column(body.max_event_times), body.column(body.watermarks)
    with who.within_quotas() as quotas:
        if body.batch is None:
            effect = await ctx.store.report(
                job,
                max_event_times,
                min_event_times=body.column(body.min_event_times),
                watermarks=watermarks,
                delays=delays,
                token=claim,
                quota=quotas.substreams,
            )
        else:
            at = body.batch
            bind_contextvars(query=at.query, batch=at.batch_id)
            effect = await ctx.store.stage(
                job,
                Run(at.query, at.query_id, at.run_id),
                at.batch_id,
                at.partition,
                max_event_times,
                body.column(body.counts),
                watermarks=watermarks,
                future_rows=body.column(body.future_counts),
                delays=delays,
                token=claim,
                quota=quotas.substreams,
            )
    ctx.metrics.reported(job)
    return answer(EffectRecord(**ctx.watermark(job, effect.state), applied=effect.applied))


@router.put(BATCH, response_model=BeginRecord, openapi_extra=body_of(Begin))
@allowed(*REPORTERS)
async def begin(job: JobId, query: QueryId, batch: BatchId, request: Request, ctx: Ctx) -> Response:
    """Begins a batch and pins it; a batch that was begun before gets the pin it had."""
    body = await read(request, Begin)
    run = Run(query, body.query_id, body.run_id)
    claim = ctx.tokens.claim(job, body.watermark_token)
    begun = await ctx.store.begin(
        job,
        run,
        batch,
        body.known_pinned_watermark,
        body.pinned_watermarks_to_keep,
        body.waited_ms,
        body.input_age_ms,
        claim,
    )
    return answer(
        BeginRecord(
            **ctx.watermark(job, begun.state),
            pinned_watermark=begun.pinned_watermark,
            latest_event_time=begun.latest_event_time,
            replayed=begun.replayed,
            joined=begun.joined,
            previous_batch_id=begun.previous_batch_id,
            previous_open=begun.previous_open,
            revision=begun.revision,
        )
    )


@router.get(BATCH, response_model=BatchRecord)
@allowed(*READERS)
async def get_batch(job: JobId, query: QueryId, batch: BatchId, ctx: Ctx) -> Response:
    """A batch that was begun: its pin, and whether it is open. Those older than the pins kept are forgotten."""
    found, rows = await ctx.store.reads.queries(job)
    row = next((row for row in rows if row.query == query), None)
    if row is None:
        raise QueryNotFound(query)
    pinned_watermark = await ctx.store.reads.pinned_watermark(job, query, batch)
    if pinned_watermark is None:
        raise Problem(404, "batch_not_found", "This batch was not begun, or so long ago that its pin is not kept.")
    latest = row.batch_id == batch
    return answer(
        BatchRecord(
            **ctx.watermark(job, found),
            query=query,
            query_id=row.query_id,
            batch_id=batch,
            pinned_watermark=pinned_watermark.value,
            open=latest and row.batch_open,
            released=latest and row.batch_released,
            begun_ms=row.begun_ms if latest else None,
        )
    )


@router.post(BATCH + ":commit", response_model=EffectRecord, openapi_extra=body_of(Commit))
@allowed(*REPORTERS)
async def commit(job: JobId, query: QueryId, batch: BatchId, request: Request, ctx: Ctx) -> Response:
    """Commits a batch: what it staged takes effect, its rows are accounted for. Committing again changes nothing."""
    body = await read(request, Commit)
    run = Run(query, body.query_id, body.run_id)
    accounting = None if body.rows is None else body.rows.accounting()
    claim = ctx.tokens.claim(job, body.watermark_token)
    effect = await ctx.store.commit(job, run, batch, accounting, body.waited_ms, body.reported, claim)
    return answer(EffectRecord(**ctx.watermark(job, effect.state), applied=effect.applied))


@router.post("/{job:id}/queries/{query:id}:heartbeat", response_model=EffectRecord, openapi_extra=body_of(Heartbeat))
@allowed(*REPORTERS)
async def heartbeat(job: JobId, query: QueryId, request: Request, ctx: Ctx) -> Response:
    """Caught up, no new data: the only way in which a query's silence comes to count."""
    body = await read(request, Heartbeat)
    run = Run(query, body.query_id, body.run_id)
    claim = ctx.tokens.claim(job, body.watermark_token)
    effect = await ctx.store.heartbeat(job, run, body.observed_ms, body.waited_ms, body.after_batch, claim)
    return answer(EffectRecord(**ctx.watermark(job, effect.state), applied=effect.applied))
