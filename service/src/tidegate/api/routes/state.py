"""What may be relied on, and who holds it: the watermark, the substreams, the queries."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from tidegate.api import views
from tidegate.api.access import READERS, Who, allowed, unknown_key
from tidegate.api.bodies import answer
from tidegate.api.context import Ctx, JobId
from tidegate.api.disconnects import to_nobody, while_there
from tidegate.api.schemas.batches import QueryTable, SubstreamTable
from tidegate.api.schemas.completeness import CompletenessRecord
from tidegate.api.schemas.jobs import WaitRecord
from tidegate.api.schemas.late import LateRecord
from tidegate.api.schemas.types import ID
from tidegate.api.tables import PLACE, Column
from tidegate.domain.numbers import EXACT_DOUBLE
from tidegate.domain.policy.target_completeness import HIGHEST_TARGET, LOWEST_TARGET
from tidegate.domain.results import SubstreamState, WatermarkState

router = APIRouter(prefix="/v1/jobs", tags=["state"])
Lag = Annotated[int, Field(ge=0, le=EXACT_DOUBLE.highest)]
OneSubstream = Annotated[
    str | None, Query(min_length=1, max_length=200, description="of this substream, not of the job")
]
ItsQuery = Annotated[str, Query(pattern=rf"^$|{ID}", description="whose it is")]


@router.get("/{job:id}/watermark", response_model=WaitRecord)
@allowed(*READERS)
async def watermark(
    job: JobId,
    request: Request,
    ctx: Ctx,
    who: Who,
    at_least: Annotated[int | None, Query(ge=EXACT_DOUBLE.lowest, le=EXACT_DOUBLE.highest)] = None,
    timeout_s: Annotated[float, Query(ge=0, le=300)] = 30,
) -> Response:
    """The watermark now; with `at_least`, as soon as it is there, or with `reached: false` after `timeout_s`."""
    waiting = ctx.wakeups.wait(job, at_least, timeout_s)
    if at_least is None:
        found: WatermarkState | None = await waiting
    else:
        with ctx.usage.waiting(who.key):
            found = await while_there(request, waiting)
    if found is None:
        return to_nobody()
    if not ctx.stands(who):
        raise unknown_key()
    reached = at_least is None or (found.watermark is not None and found.watermark >= at_least)
    return answer(WaitRecord(**ctx.watermark(job, found), reached=reached))


@router.get("/{job:id}/substreams", response_model=SubstreamTable)
@allowed(*READERS)
async def substreams(
    job: JobId,
    request: Request,
    ctx: Ctx,
    name: Annotated[str, Query(max_length=200, description="those of this name; `*` stands for any characters")] = "*",
    query: Annotated[
        str | None, Query(pattern=rf"^$|{ID}", description='those of this query; "": of reports without batches')
    ] = None,
    state: Annotated[list[SubstreamState] | None, Query(description="those in one of these states")] = None,
    sort: Annotated[Column, Query(description="by which column; equals by query and name")] = "name",
    descending: bool = False,
    after: Annotated[str, Query(pattern=PLACE, max_length=400, description="the `next` of the page before")] = "",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Response:
    """The table of substreams, a page at a time."""
    of = views.Selection(name, query, state, sort, descending, after, limit)
    table = await while_there(request, views.substream_table(ctx, job, of))
    return answer(table) if table is not None else to_nobody()


@router.get("/{job:id}/completeness", response_model=CompletenessRecord)
@allowed(*READERS)
async def completeness(
    job: JobId,
    ctx: Ctx,
    substream: OneSubstream = None,
    query: ItsQuery = "",
    window_ms: Annotated[
        int,
        Query(ge=0, le=EXACT_DOUBLE.highest, description="rows are judged by windows of this size; 0: by themselves"),
    ] = 0,
    target: Annotated[
        float | None, Query(ge=LOWEST_TARGET, le=HIGHEST_TARGET, description="to recommend a lag for")
    ] = None,
    lag_ms: Annotated[
        list[Lag] | None, Query(max_length=200, description="the curve at these lags, not at all that differ")
    ] = None,
) -> Response:
    """How far rows come out of order; what share of them a lag has on time, and what it costs."""
    of = None if substream is None else (query, substream)
    return answer(await views.completeness(ctx, job, of, window_ms, target, lag_ms))


@router.get("/{job:id}/late", response_model=LateRecord)
@allowed(*READERS)
async def late(
    job: JobId,
    ctx: Ctx,
    substream: OneSubstream = None,
    query: ItsQuery = "",
    limit: Annotated[int, Query(ge=1, le=1000, description="so many spans at the most")] = 20,
) -> Response:
    """What became of rows that came too late, and of which hours of event time they were."""
    return answer(await views.late(ctx, job, None if substream is None else (query, substream), limit))


@router.get("/{job:id}/queries", response_model=QueryTable)
@allowed(*READERS)
async def queries(job: JobId, ctx: Ctx) -> Response:
    """The queries that feed the job, with their latest batches and since when those are open."""
    return answer(await views.query_table(ctx, job))
