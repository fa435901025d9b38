"""The watermark of a job, and the state that determines it."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from tidegate.auth.callers import KeyUnknown
from tidegate.auth.roles import READERS
from tidegate.domain.frames import FrameState
from tidegate.domain.history import HolderRange
from tidegate.domain.job import SubstreamState
from tidegate.domain.policies import HIGHEST_TARGET, LOWEST_TARGET
from tidegate.domain.values import EXACT_DOUBLE, NAME_OR_EMPTY
from tidegate.domain.views import MAX_HOLDERS
from tidegate.http import actions
from tidegate.http.bodies import json_answer
from tidegate.http.call import call_of
from tidegate.http.request import (
    CallerOf,
    ContextOf,
    JobId,
    QueryId,
    SubstreamName,
    SubstreamQuery,
    allowed,
    while_connected,
)
from tidegate.runtime.feed import Goal
from tidegate.views.completeness import Completeness, CurveSelection, read_completeness
from tidegate.views.frames import FrameList, FrameResult, found_frame, read_frame, read_frames, read_prediction
from tidegate.views.holders import Holders, read_holders
from tidegate.views.late import LateRows, read_late
from tidegate.views.status import Explanation, WhatIf, read_explanation
from tidegate.views.substreams import (
    CURSOR,
    Column,
    OffsetsTable,
    QueryTable,
    Selection,
    SubstreamTable,
    read_offsets,
    read_queries,
    read_substreams,
)
from tidegate.views.watermark import WaitResult

router = APIRouter(prefix="/v1/jobs", tags=["state"])
Lag = Annotated[int, Field(ge=0, le=EXACT_DOUBLE.highest)]
Time = Annotated[int, Field(ge=EXACT_DOUBLE.lowest, le=EXACT_DOUBLE.highest)]


@router.get("/{job:id}/watermark", response_model=WaitResult, summary="Get or wait for a watermark")
@allowed(*READERS)
async def watermark(
    job: JobId,
    request: Request,
    context: ContextOf,
    caller: CallerOf,
    at_least: Annotated[
        Time | None,
        Query(
            description="Watermark to wait for. If omitted, the call answers at once.",
            examples=[1357552800000],
        ),
    ] = None,
    timeout_s: Annotated[
        float,
        Query(ge=0, le=300, description="Maximum wait in seconds. After a timeout, `reached` is false.", examples=[30]),
    ] = 30,
    read: Annotated[
        bool,
        Query(
            description="Whether to wait for the watermark in place of the written watermark. The queries of the job "
            "have then read the rows, but may not have written their windows.",
            examples=[False],
        ),
    ] = False,
    force: Annotated[bool, Query(description=actions.FORCE_TEXT, examples=[False])] = False,
) -> Response:
    """Return the watermarks now, or wait until the written watermark reaches `at_least`."""
    goal = None if at_least is None else Goal(at_least, read)
    if at_least is not None:
        await actions.check_times(context.store, job, "at_least", [at_least], force)
    waiting = context.wakeups.wait(job, goal, timeout_s, call_of(request.scope).end_turn)
    if goal is None:
        answer = await waiting
    else:
        with context.usage.waiting(caller.key):
            answer = await while_connected(request, waiting)
    if not context.revocation.is_valid(caller.key):
        raise KeyUnknown
    reached = goal is None or goal.reached_by(answer)
    return json_answer(WaitResult(**context.reader.members(job, answer), reached=reached))


SortColumn = Annotated[
    Column,
    Query(
        description="Column to sort by. Rows with equal values are sorted by query and name.",
        examples=["watermark"],
    ),
]


@router.get("/{job:id}/substreams", response_model=SubstreamTable, summary="List substreams")
@allowed(*READERS)
async def substreams(
    job: JobId,
    request: Request,
    context: ContextOf,
    name: Annotated[
        str,
        Query(max_length=200, description="Pattern of names. `*` stands for any characters.", examples=["HN*"]),
    ] = "*",
    query: Annotated[
        str | None,
        Query(
            pattern=NAME_OR_EMPTY,
            description="Query of the substreams. Empty for reports without batches.",
            examples=["departures"],
        ),
    ] = None,
    state: Annotated[
        list[SubstreamState] | None, Query(description="States of the substreams.", examples=[["active", "blocked"]])
    ] = None,
    sort: SortColumn = "name",
    descending: Annotated[bool, Query(description="Whether the highest value comes first.", examples=[False])] = False,
    after: Annotated[
        str,
        Query(
            pattern=CURSOR,
            max_length=400,
            description="The `next` of the previous page.",
            examples=["1357552800000:departures/HNL"],
        ),
    ] = "",
    limit: Annotated[
        int, Query(ge=1, le=10_000, description="Maximum number of substreams in a page.", examples=[100])
    ] = 1000,
) -> Response:
    """Return a page of the table of substreams."""
    selection = Selection(name, query, state, sort, descending, after, limit)
    found = await while_connected(request, read_substreams(context.reader, job, selection))
    return json_answer(found.table)


@router.get("/{job:id}/completeness", response_model=Completeness, summary="Get the completeness curve")
@allowed(*READERS)
async def completeness(
    job: JobId,
    context: ContextOf,
    substream: SubstreamName = None,
    query: SubstreamQuery = "",
    window_ms: Annotated[
        int,
        Query(
            ge=0,
            le=EXACT_DOUBLE.highest,
            description="Size of the windows by which rows are classified. With 0, each row is classified by its own "
            "event time. Not allowed with a frame.",
            examples=[3600000],
        ),
    ] = 0,
    target: Annotated[
        float | None,
        Query(
            ge=LOWEST_TARGET,
            le=HIGHEST_TARGET,
            description="Share of rows on time for which to recommend a lag.",
            examples=[0.99],
        ),
    ] = None,
    lag_ms: Annotated[
        list[Lag] | None,
        Query(
            max_length=200,
            description="Lags of the curve in milliseconds. If omitted, all lags at which the curve changes.",
            examples=[[0, 1800000, 3600000]],
        ),
    ] = None,
) -> Response:
    """Return the delays of rows, and the share of rows on time and the latency for each lag."""
    key = None if substream is None else (query, substream)
    return json_answer(await read_completeness(context.reader, job, CurveSelection(key, window_ms, target, lag_ms)))


@router.get("/{job:id}/late", response_model=LateRows, summary="Get late rows")
@allowed(*READERS)
async def late(
    job: JobId,
    context: ContextOf,
    substream: SubstreamName = None,
    query: SubstreamQuery = "",
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of spans to list.", examples=[20])] = 20,
) -> Response:
    """Return updated, dropped and diverted rows, by hour of event time and by substream."""
    key = None if substream is None else (query, substream)
    return json_answer(await read_late(context.reader, job, key, limit))


@router.get("/{job:id}/frames", response_model=FrameList, summary="List frames")
@allowed(*READERS)
async def frames(
    job: JobId,
    context: ContextOf,
    first: Annotated[
        Time | None,
        Query(
            alias="from",
            description="A time in the first frame. If omitted, the first frame that the job keeps.",
            examples=[1357516800000],
        ),
    ] = None,
    to: Annotated[
        Time | None,
        Query(
            description="Time before which the frames start. If omitted, the last frame that has begun.",
            examples=[1357603200000],
        ),
    ] = None,
    state: Annotated[
        list[FrameState] | None, Query(description="States of the frames.", examples=[["complete"]])
    ] = None,
    limit: Annotated[
        int, Query(ge=1, le=1000, description="Maximum number of frames in a page.", examples=[100])
    ] = 100,
) -> Response:
    """Return the frames of a job, latest first: which are complete, what was left out, and what has changed since."""
    return json_answer(await read_frames(context.reader, job, first, to, state or (), limit))


@router.get("/{job:id}/frames/{start}", response_model=FrameResult, summary="Get or wait for a frame")
@allowed(*READERS)
async def frame(
    job: JobId,
    start: Annotated[
        Time,
        Path(
            description="Start of the frame, or another time in it.",
            examples=[1357552800000],
        ),
    ],
    request: Request,
    context: ContextOf,
    caller: CallerOf,
    wait_s: Annotated[
        float,
        Query(
            ge=0,
            le=300,
            description="Maximum wait in seconds for the frame to be finished. After a timeout, its state is `open`.",
            examples=[30],
        ),
    ] = 0,
    force: Annotated[bool, Query(description=actions.FORCE_TEXT, examples=[False])] = False,
) -> Response:
    """Return the frame that contains a time, now or when it is finished."""
    await actions.check_times(context.store, job, "start", [start], force)
    if wait_s == 0:
        found = await read_frame(context.reader, job, start)
    else:
        waiting = context.wakeups.wait_for_frame(job, start, wait_s, call_of(request.scope).end_turn)
        with context.usage.waiting(caller.key):
            found = found_frame(await while_connected(request, waiting))
        if not context.revocation.is_valid(caller.key):
            raise KeyUnknown
    # A client that has waited will wait again.
    shown = found.frames[0] if wait_s else await read_prediction(context.reader, job, found.frames[0])
    return json_answer(FrameResult(**context.reader.members(job, found.state), frame=shown))


@router.get("/{job:id}/queries", response_model=QueryTable, summary="List queries")
@allowed(*READERS)
async def queries(job: JobId, context: ContextOf) -> Response:
    """Return the queries of a job with their latest batches."""
    return json_answer(await read_queries(context.reader, job))


@router.get("/{job:id}/queries/{query:id}/offsets", response_model=OffsetsTable, summary="Get offsets")
@allowed(*READERS)
async def offsets(job: JobId, query: QueryId, context: ContextOf) -> Response:
    """Return how far the committed batches of a query have read each partition of Kafka.

    A query that has not begun has no partitions yet.
    """
    return json_answer(await read_offsets(context.reader, job, query))


@router.get("/{job:id}/holders", response_model=Holders, summary="Get who held a watermark")
@allowed(*READERS)
async def holders(
    job: JobId,
    context: ContextOf,
    within: Annotated[
        HolderRange, Query(alias="range", description="Range of processing time before now.", examples=["1d"])
    ] = "1h",
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum number of holders to list.", examples=[10])] = 10,
) -> Response:
    """Return for how long each substream, query and hold has held the watermark, in total and by hour."""
    return json_answer(await read_holders(context.reader, job, within, limit))


@router.get("/{job:id}:explain", response_model=Explanation, summary="Explain a watermark")
@allowed(*READERS)
async def explain(
    job: JobId,
    context: ContextOf,
    limit: Annotated[int, Query(ge=1, le=MAX_HOLDERS, description="Number of holders to list.", examples=[3])] = 3,
    what_if_max_skew_ms: Annotated[
        int | None,
        Query(
            ge=1,
            le=EXACT_DOUBLE.highest,
            description="Another `max_skew_ms`, whose effect the answer includes.",
            examples=[21_600_000],
        ),
    ] = None,
    what_if_arrival_target: Annotated[
        float | None,
        Query(
            ge=LOWEST_TARGET,
            le=HIGHEST_TARGET,
            description="Another `arrival_target`, whose effect the answer includes.",
            examples=[0.998],
        ),
    ] = None,
) -> Response:
    """Return the holders of the watermark, the limits that can let it pass them, and the watermark without them."""
    what_if = WhatIf(what_if_max_skew_ms, what_if_arrival_target)
    return json_answer(await read_explanation(context.reader, job, limit, what_if))
