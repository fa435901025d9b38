"""What may be relied on, and who holds it: the watermark, the substreams, the queries."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from tidegate.api.access import READERS, allowed
from tidegate.api.bodies import answer
from tidegate.api.context import Ctx, JobId
from tidegate.api.schemas.batches import QueryRecord, QueryTable, SubstreamRecord, SubstreamTable
from tidegate.api.schemas.jobs import CountsRecord, WaitRecord
from tidegate.api.schemas.rules import JobDocument
from tidegate.domain.numbers import EXACT_DOUBLE, highest

router = APIRouter(prefix="/v1/jobs", tags=["state"])


@router.get("/{job}/watermark", response_model=WaitRecord)
@allowed(*READERS)
async def watermark(
    job: JobId,
    ctx: Ctx,
    at_least: Annotated[int | None, Query(ge=EXACT_DOUBLE.lowest, le=EXACT_DOUBLE.highest)] = None,
    timeout_s: Annotated[float, Query(ge=0, le=300)] = 30,
) -> Response:
    """The watermark now; with `at_least`, as soon as it is there, or with `reached: false` after `timeout_s`."""
    found = await ctx.wakeups.wait(job, at_least, timeout_s)
    reached = at_least is None or (found.watermark is not None and found.watermark >= at_least)
    return answer(WaitRecord(**ctx.watermark(job, found), reached=reached))


@router.get("/{job}/substreams", response_model=SubstreamTable)
@allowed(*READERS)
async def substreams(
    job: JobId,
    ctx: Ctx,
    after: Annotated[str, Query(max_length=400, description="the `next` of the page before")] = "",
    limit: Annotated[int, Query(ge=1, le=100_000)] = 1000,
) -> Response:
    """The table of substreams, by query and name; a page at a time."""
    found, rows = await ctx.store.substreams(job)
    config = JobDocument.model_validate(await ctx.store.document(job)).config()
    lead = highest(*(row.watermark for row in rows))
    query, _, name = after.partition("/")  # ids hold no slash
    rest = [row for row in rows if (row.query, row.substream) > (query, name)]
    page = [
        SubstreamRecord(
            query=row.query,
            substream=row.substream,
            state=row.state,
            watermark=row.watermark,
            top=row.top,
            skew=None if row.watermark is None or lead is None else lead - row.watermark,
            last_event_ms=row.last_event_ms,
            policy=config.override_of(row.substream),
            reported=row.reported,
            future_reported=row.future,
            rows=CountsRecord.model_validate(row.counts),
        )
        for row in rest[:limit]
    ]
    following = f"{page[-1].query}/{page[-1].substream}" if len(rest) > limit else None
    return answer(SubstreamTable(**ctx.watermark(job, found), substreams=page, next=following))


@router.get("/{job}/queries", response_model=QueryTable)
@allowed(*READERS)
async def queries(job: JobId, ctx: Ctx) -> Response:
    """The queries that feed the job, with their latest batches and since when those are open."""
    found, rows = await ctx.store.queries(job)
    return answer(QueryTable(**ctx.watermark(job, found), queries=[QueryRecord.model_validate(row) for row in rows]))
