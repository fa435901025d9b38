"""What can be read of a job, as records: the same for those who call the API and for the page."""

from collections.abc import AsyncIterator, Collection
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import TypeVar

from tidegate.api.context import Context
from tidegate.api.problems import Problem
from tidegate.api.schemas.batches import QueryRecord, QueryTable, SubstreamRecord, SubstreamTable
from tidegate.api.schemas.completeness import CompletenessRecord, PointRecord, QuantileRecord
from tidegate.api.schemas.config import JobDocument
from tidegate.api.schemas.explain import ExplainedHolderRecord, Explanation
from tidegate.api.schemas.history import HistoryPage, HistoryRecord
from tidegate.api.schemas.jobs import CountsRecord, JobRecord
from tidegate.api.schemas.late import HourRecord, LateRecord, SpanRecord
from tidegate.api.tables import Column, Place
from tidegate.domain.completeness import curve, least_lag
from tidegate.domain.errors import SubstreamNotFound
from tidegate.domain.explain import explain
from tidegate.domain.health import health
from tidegate.domain.journal import MOVEMENTS, RECORDS_KEPT
from tidegate.domain.ledger import spans
from tidegate.domain.names import SubstreamKey
from tidegate.domain.pattern import matches
from tidegate.domain.policy import TargetCompleteness
from tidegate.domain.results import SubstreamRow, SubstreamState
from tidegate.domain.rows import HourCounts, RowCounts
from tidegate.domain.sketch import RELATIVE_ERROR, Sketch
from tidegate.domain.throttle import FrameThrottle
from tidegate.store.reads import Status
from tidegate.store.replies import order

Item = TypeVar("Item")

PAGES_KEPT = 4
LARGE_JOB = 1000
"""Jobs with more substreams are read one at a time."""


def job_record(ctx: Context, job: str, status: Status) -> JobRecord:
    summary = status.summary
    return JobRecord.model_validate(
        {
            **ctx.watermark(job, status.state),
            "health": health(status.state, summary, ctx.stale_after_ms),
            "config": status.config,
            "revision": status.revision,
            "created_ms": status.created_ms,
            "max_event_time": summary.max_event_time,
            "max_watermark": summary.max_watermark,
            "substreams": {
                "active": summary.active,
                "idle": summary.idle,
                "done": summary.done,
                "all_idle": summary.all_idle,
            },
            "rows": summary.counts,
            "holds": summary.holds,
            "missing_queries": summary.missing_queries,
            "limits": summary.limits,
            "future_rows": summary.future_rows,
            "tokens_ignored": summary.tokens_ignored,
            "emissions": summary.emissions,
            "throttled": summary.throttled,
            "last_contact_ms": summary.last_contact_ms,
            "open_batches": summary.open_batches,
        }
    )


async def explanation(ctx: Context, job: str, most: int) -> Explanation:
    """Of the first ``most`` who hold the watermark."""
    found = await ctx.store.reads.held(job, most)
    machine = found.job(JobDocument.model_validate(found.config).config())
    explained = explain(machine, machine.now_ms, most)
    return Explanation(
        **ctx.watermark(job, explained.state),
        holders=[
            ExplainedHolderRecord.model_validate({**asdict(one), **asdict(one.holder)}) for one in explained.holders
        ],
        next_step=explained.next_step,
    )


@dataclass(frozen=True, slots=True)
class Selection:
    """Which substreams, in which order, and of these which page: see the parameters of the call."""

    name: str = "*"
    query: str | None = None
    states: Collection[SubstreamState] | None = None
    sort: Column = "name"
    descending: bool = False
    after: str = ""
    limit: int = 1000


async def substream_table(ctx: Context, job: str, of: Selection) -> SubstreamTable:
    """Return a page of the table. Of a large job, one table is read at a time."""
    large = await ctx.store.reads.count_substreams(job) > LARGE_JOB
    async with ctx.bulk_reads if large else nullcontext():
        if of.sort == "name" and of.states is None:  # only the rows of the page are read
            places = await _page(of, _places_by_name(ctx, job, of))
            table = await ctx.store.reads.substreams(job, [key for _, key in places])
            known = {(row.query, row.substream): row for row in table.rows}
            rows = [(place, known[key]) for place, key in places if key in known]
        else:
            rows = await _page(of, _places_by_value(ctx, job, of))
            table = await ctx.store.reads.substreams(job, [])
    config = JobDocument.model_validate(await ctx.store.reads.config(job)).config()
    return SubstreamTable(
        **ctx.watermark(job, table.state),
        substreams=[SubstreamRecord.of(row, table.max_watermark, config) for _, row in rows[: of.limit]],
        next=rows[of.limit - 1][0].text if len(rows) > of.limit else None,
    )


async def _places_by_name(ctx: Context, job: str, of: Selection) -> AsyncIterator[list[tuple[Place, SubstreamKey]]]:
    async for keys in _selected(ctx, job, of):
        yield [(Place.by_name(*key), key) for key in keys]


async def _places_by_value(ctx: Context, job: str, of: Selection) -> AsyncIterator[list[tuple[Place, SubstreamRow]]]:
    async for keys in _selected(ctx, job, of):
        rows = (await ctx.store.reads.substreams(job, keys)).rows
        yield [(Place.of(row, of.sort), row) for row in rows if of.states is None or row.state in of.states]


async def _selected(ctx: Context, job: str, of: Selection) -> AsyncIterator[list[SubstreamKey]]:
    async for keys in ctx.store.reads.substream_keys(job):
        yield [key for key in keys if of.query in (None, key[0]) and matches(of.name, key[1])]


async def _page(of: Selection, parts: AsyncIterator[list[tuple[Place, Item]]]) -> list[tuple[Place, Item]]:
    """Return the first ``of.limit + 1`` items after ``of.after``, sorted; no more than a few pages are kept."""
    last, items = Place.after(of.after), list[tuple[Place, Item]]()
    async for part in parts:
        items += [item for item in part if last is None or (item[0] < last if of.descending else item[0] > last)]
        if len(items) > PAGES_KEPT * of.limit:
            items.sort(key=itemgetter(0), reverse=of.descending)
            del items[of.limit + 1 :]
    items.sort(key=itemgetter(0), reverse=of.descending)
    return items[: of.limit + 1]


QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999, 0.9999)


async def completeness(
    ctx: Context,
    job: str,
    of: SubstreamKey | None = None,
    window: int = 0,
    target: float | None = None,
    lags: Collection[int] | None = None,
) -> CompletenessRecord:
    """Of the job, or of the substream ``of``.

    :raises SubstreamNotFound: where that is not known.
    """
    status = await ctx.store.reads.status(job)
    config, held_by = JobDocument.model_validate(status.config).config(), status.state.held_by
    if window and isinstance(config.throttle, FrameThrottle):
        detail = "window_ms: this job has a frame, and its rows are judged, and measured, by that; leave it out."
        raise Problem(409, "frame_in_force", detail, members={"field": "window_ms"})
    waited_for = None if held_by is None or held_by.substream is None else (held_by.query, held_by.substream)
    asked = of or waited_for
    known = await ctx.store.reads.delays(job, [asked] if asked else [])
    if of is not None and of not in known.substreams:
        raise SubstreamNotFound(of[0], [of[1]])
    lag, own = known.substreams[asked] if asked in known.substreams else (config.policy.initial_lag, Sketch())
    seen, wait, rows = known.statistics.merged, known.statistics.wait, status.summary.counts
    policy = config.policy
    if of is not None:
        seen, policy = own, config.policy_of(of[1])
        table = await ctx.store.reads.substreams(job, [of])
        if not table.rows:  # evicted since
            raise SubstreamNotFound(of[0], [of[1]])
        rows = table.rows[0].counts
    if target is None and isinstance(policy, TargetCompleteness):
        target = policy.target
    judged = rows.on_time + rows.updated + rows.late
    return CompletenessRecord(
        **ctx.watermark(job, known.state),
        rows=round(seen.rows),
        relative_error=RELATIVE_ERROR,
        lag_ms=lag,
        wait_ms=wait,
        target=target,
        recommended_lag_ms=None if target is None or not seen.weight else least_lag(seen, target, window),
        achieved=1 - rows.late / judged if judged else None,
        quantiles=[QuantileRecord(share=share, delay_ms=seen.quantile(share)) for share in QUANTILES if seen.weight],
        points=[PointRecord.of(point) for point in (curve(seen, wait, window, lags) if seen.weight else ())],
    )


async def late(ctx: Context, job: str, of: SubstreamKey | None = None, most_spans: int = 20) -> LateRecord:
    """Of the job, or of the substream ``of``, which may have been evicted since.

    :raises SubstreamNotFound: where nothing is known of that.
    """
    status = await ctx.store.reads.status(job)
    known = await ctx.store.reads.late(job, of)
    rows, diverted = known.counts, known.diverted
    if of is not None and not (await ctx.store.reads.substreams(job, [of])).rows:
        if not known.hours:
            raise SubstreamNotFound(of[0], [of[1]])
        together = sum(known.hours.values(), HourCounts())
        in_time = together.rows - together.updated - together.late
        rows, diverted = RowCounts(in_time, together.updated, together.late), together.diverted
    entries = (entry for entry in known.entries if of in (None, entry[0]))
    return LateRecord(
        **ctx.watermark(job, status.state),
        rows=CountsRecord.model_validate(rows),
        dropped=rows.late - diverted,
        diverted=diverted,
        hours=[
            HourRecord.of(hour, counts, of is None or hour not in known.unattributed)
            for hour, counts in sorted(known.hours.items())
        ],
        spans=[SpanRecord.of(span) for span in spans(entries, known.unattributed)[:most_spans]],
    )


async def query_table(ctx: Context, job: str) -> QueryTable:
    found, rows = await ctx.store.reads.queries(job)
    return QueryTable(**ctx.watermark(job, found), queries=[QueryRecord.model_validate(row) for row in rows])


async def history_page(
    ctx: Context,
    job: str,
    *,
    as_of: int | None = None,
    from_ms: int = 0,
    kinds: Collection[str] = (),
    before: str | None = None,
    limit: int = 100,
) -> HistoryPage:
    status = await ctx.store.reads.status(job)
    found = await ctx.store.reads.history(job, before, from_ms, as_of, kinds, limit + 1)
    page = [HistoryRecord.of(*entry) for entry in found[:limit]]
    first = await ctx.store.reads.records(job, limit=1)
    return HistoryPage(
        **ctx.watermark(job, status.state),
        as_of=await _in_force(ctx, job, as_of),
        kept_from_ms=first[0][1].at_ms if first else None,
        records=page,
        next=page[-1].id if len(found) > limit else None,
    )


async def _in_force(ctx: Context, job: str, at_ms: int | None) -> HistoryRecord | None:
    """Return the last movement by then, unless the job was reset after it: a new incarnation has no watermark."""
    for entry in await ctx.store.reads.history(job, to_ms=at_ms, kinds=MOVEMENTS, limit=1):
        moved = HistoryRecord.of(*entry)
        after = await ctx.store.reads.history(
            job, from_ms=moved.at_ms, to_ms=at_ms, kinds=("action",), limit=RECORDS_KEPT
        )
        later = (record for entry_id, record in after if order(entry_id) > order(moved.id))
        return None if any(record.details["action"] == "reset" for record in later) else moved
    return None
