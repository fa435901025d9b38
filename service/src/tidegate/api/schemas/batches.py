"""Reports, batches, and the tables of substreams and queries."""

from collections.abc import Sequence
from operator import gt
from typing import Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from tidegate.api.schemas.jobs import CountsRecord, WatermarkRecord
from tidegate.api.schemas.types import (
    BatchNumber,
    Count,
    DelayCounts,
    DurationMs,
    EventTime,
    FieldError,
    Id,
    Names,
    Record,
    Request,
    RowsByHour,
    Text,
    WaitMs,
    equal_lengths,
)
from tidegate.domain.config import JobConfig
from tidegate.domain.ledger import ENTRIES_KEPT, sum_by_hour
from tidegate.domain.results import SubstreamRow, SubstreamState
from tidegate.domain.rows import BatchAccounting, LateDisposition, RowCounts
from tidegate.domain.state import PinnedWatermark, RowsByDelay

Token = str | None
TOKEN = Field(default=None, max_length=200, description="the last watermark_token that the client got")


class BatchReference(Request):
    """The batch a report belongs to, and the partition of it that reports."""

    query: Id
    query_id: Id
    run_id: Id
    batch_id: BatchNumber
    partition: BatchNumber


def _given(column: str) -> JsonDict:
    """As JSON Schema says that a column is there."""
    return {"properties": {column: {"type": "array"}}, "required": [column]}


class Report(Request):
    """Highest event times, by substream: columns of equal length.

    With `batch` all of it is staged and counts when the batch commits. Without, it counts at once, and `counts` and
    `future_counts` are of no effect, because nothing would tell a repetition.

    - `max_event_times`: null where nothing was seen that has one; left out beside `watermarks` alone.
    - `min_event_times`: the lowest of each, for policies that follow the clock: without a batch, no watermark of theirs
      passes the lowest of these (else of `max_event_times`) by the very report that brings them.
    - `watermarks`: ready-made ones, for substreams under the policy `reported`; one that is no advance changes nothing.
    - `counts`: rows seen; `future_counts`: rows left out because their event times are too far ahead of the clock.
      Repeating a partition's report replaces both.
    - `delays`: of each, pairs of a bucket and how many rows are in it, by how far a row came behind the highest event
      time that its substream had before (when the batch began). Where the rules have a frame, the last moment of its
      window stands for the row: the first boundary after it, less 1. Bucket 0 is for rows that were not behind; a
      delay `d` is in bucket `ceil(log(d) / log(101 / 99)) + 1`. Repeating a partition's report replaces them; without
      a batch, they count each time they are sent.
    """

    model_config = ConfigDict(json_schema_extra={"anyOf": [_given("max_event_times"), _given("watermarks")]})

    substreams: Names
    max_event_times: list[EventTime | None] | None = None
    min_event_times: list[EventTime | None] | None = None
    watermarks: list[EventTime | None] | None = None
    counts: list[Count] | None = None
    future_counts: list[Count] | None = None
    delays: list[DelayCounts | None] | None = None
    batch: BatchReference | None = None
    watermark_token: Token = TOKEN

    @model_validator(mode="after")
    def _columns(self) -> Self:
        columns: dict[str, Sequence[object] | None] = {
            "max_event_times": self.max_event_times,
            "min_event_times": self.min_event_times,
            "watermarks": self.watermarks,
            "counts": self.counts,
            "future_counts": self.future_counts,
            "delays": self.delays,
        }
        equal_lengths(columns, len(self.substreams), "substreams")
        if self.max_event_times is None and self.watermarks is None:
            raise FieldError("max_event_times", "are missing; only beside watermarks may they be left out")
        return self

    def column(self, values: Sequence[int | None] | None) -> dict[str, int]:
        """One column, by substream, without its nulls."""
        pairs = zip(self.substreams, values or [], strict=False)
        return {name: value for name, value in pairs if value is not None}

    def delayed_rows(self) -> dict[str, RowsByDelay]:
        """How rows came behind, by substream, of those of which that is said."""
        pairs = zip(self.substreams, self.delays or [], strict=False)
        return {name: tuple(rows) for name, rows in pairs if rows}


class RunReference(Request):
    """Who speaks: the query's checkpoint (``query_id``), and this start of it (``run_id``).

    ``waited_ms``: how long this run has waited for a coordinator that did not answer, in all since its start. That time
    is nobody's silence.
    """

    query_id: Id
    run_id: Id
    waited_ms: WaitMs = 0
    watermark_token: Token = TOKEN


class Begin(RunReference):
    """Opens a batch. ``pinned_watermark``: the one that the client keeps beside its checkpoint, null for "no
    watermark", left out
    where it keeps none. ``pinned_watermarks_to_keep``: over how many batches a replay must be possible.
    ``input_age_ms``: all input
    that was there so long before this call is in this batch, or in one before it; null: that is not known, for its
    source hands out only so much a batch. The silence of substreams is judged by it.
    """

    pinned_watermark: EventTime | None = None
    pinned_watermarks_to_keep: int = Field(default=100, ge=1, le=100_000)
    input_age_ms: DurationMs | None = 0

    @property
    def known_pinned_watermark(self) -> PinnedWatermark | None:
        return PinnedWatermark(self.pinned_watermark) if "pinned_watermark" in self.model_fields_set else None


class RowAccounting(Request):
    """What became of a batch's rows, by substream: columns of equal length; ``rule`` names how they were judged.

    - `late_disposition`: what became of those that were late: nobody got them, or they were `diverted` to a side
      output.
    - `hours`: of each, its rows by hour of event time (the event time divided by 3,600,000 and rounded down): the hour,
      how many rows, how many of these are `updated`, and how many `late`. Null, or the column left out: not known.
    - `all_hours`: the same of all rows of the batch, where `hours` has not all of them.
    """

    rule: Text = Field(min_length=1, max_length=100)
    substreams: Names
    on_time: list[Count]
    late: list[Count]
    null_event_time: list[Count]
    updated: list[Count] | None = None
    future: list[Count] | None = None
    late_disposition: LateDisposition = "dropped"
    hours: list[RowsByHour | None] | None = None
    all_hours: RowsByHour | None = None

    @model_validator(mode="after")
    def _columns(self) -> Self:
        names = ("on_time", "late", "null_event_time", "updated", "future", "hours")
        equal_lengths({name: getattr(self, name) for name in names}, len(self.substreams), "substreams")
        self._check_hours()
        return self

    def _check_hours(self) -> None:
        """What is said by hour must not be more than what is said without."""
        entries = sum(len(of_each or ()) for of_each in self.hours or ())
        if entries > ENTRIES_KEPT:
            raise FieldError("hours", f"has {entries} entries; the most that are taken are {ENTRIES_KEPT}")
        none = [0] * len(self.substreams)
        judged = [*zip(self.on_time, self.updated or none, self.late, strict=True)]
        for name, of_each, counts in zip(self.substreams, self.hours or (), judged, strict=False):
            if not _is_within(of_each or (), counts):
                raise FieldError("hours", f"has more rows of {name}, or more updated or late ones, than its counts")
        if not _is_within(self.all_hours or (), tuple(map(sum, zip(*judged, strict=True))) or (0, 0, 0)):
            raise FieldError("all_hours", "has more rows, or more updated or late ones, than the counts")
        of_all, none_of_hour = sum_by_hour(self.all_hours or ()), (0, 0, 0)
        if of_all:
            told = sum_by_hour(rows for of_each in self.hours or () for rows in of_each or ())
            for hour, counts in told.items():
                if any(map(gt, counts, of_all.get(hour, none_of_hour))):
                    raise FieldError("all_hours", f"has less of the hour {hour} than the substreams have")

    def accounting(self) -> BatchAccounting:
        none = [0] * len(self.substreams)
        columns = (self.on_time, self.updated or none, self.late, self.null_event_time, self.future or none)
        counts = tuple(RowCounts(*row) for row in zip(*columns, strict=True))
        hours = tuple(tuple(of_each or ()) for of_each in self.hours or ())
        return BatchAccounting(
            self.rule, tuple(self.substreams), counts, self.late_disposition, hours, tuple(self.all_hours or ())
        )


def _is_within(hours: Sequence[tuple[int, int, int, int]], counts: tuple[int, ...]) -> bool:
    """``counts``: of rows on time, updated, and late. No hour has more that are updated or late than there are."""
    on_time, updated, late = counts
    return (
        all(rows >= changed + lost for _, rows, changed, lost in hours)
        and sum(rows for _, rows, _, _ in hours) <= on_time + updated + late
        and sum(changed for _, _, changed, _ in hours) <= updated
        and sum(lost for _, _, _, lost in hours) <= late
    )


class Commit(RunReference):
    """Commits a batch. ``rows``: what became of its rows; left out where the client does not account for them.

    ``reported``: how many counts were reported of the batch, by partition and substream. Where the coordinator has
    fewer (its store has lost the end of its log), the commit is refused (409 ``reports_missing``): report all again.
    """

    rows: RowAccounting | None = None
    reported: Count | None = None


class Heartbeat(RunReference):
    """Caught up, no new data: seen to be so at ``observed_ms``, in the coordinator's time (the ``now_ms`` of its last
    answer, and what has passed since). Late or repeated, a heartbeat proves no more than it did.

    ``after_batch``: the last batch that this run finished. Unless it is the latest that the coordinator has, the
    heartbeat changes nothing: there is data that the coordinator has not heard of. Left out: no batch was finished.
    """

    observed_ms: DurationMs
    after_batch: BatchNumber | None = None


class BeginRecord(WatermarkRecord):
    """`pinned_watermark`: rows of this batch with an event time below it are late, for ever; null: none is.

    `latest_event_time`: rows beyond it are too far ahead of the clock to be true, and must be left out of what is
    reported; null: none is. `joined`: the query came unexpected to a job that has a watermark: what it has from below
    that is late. `previous_batch_id`: the latest batch begun on this checkpoint before this call, and whether it was
    open; a client that has committed it, or a later one, sees by it that the store has lost something.
    """

    pinned_watermark: int | None
    latest_event_time: int | None
    replayed: bool
    joined: bool
    previous_batch_id: int | None
    previous_open: bool
    revision: int = Field(description="of the job's rules, as in its ETag: they were changed where it is another")


class BatchRecord(WatermarkRecord):
    """A batch that was begun on the checkpoint `query_id`. `released`: it is open, and holds the watermark no longer,
    for it was open too long. `begun_ms`: kept of the query's latest batch alone.
    """

    query: str
    query_id: str
    batch_id: int
    pinned_watermark: int | None
    open: bool
    released: bool
    begun_ms: int | None


class SubstreamRecord(Record):
    """One substream of one query. `blocked`: silent for long, though its query has not said there was nothing.

    `since_ms`: since when. `policy` is the pattern of the override that it is under; null: the job's own policy.
    """

    query: str
    substream: str
    state: SubstreamState
    since_ms: int
    watermark: int | None
    max_event_time: int | None
    skew: int | None = Field(description="how far it trails the highest watermark that any substream ever had")
    last_event_ms: int
    lag: int | None = Field(description="how far behind its top its policy keeps it; null where it does not")
    policy: str | None
    reported: int = Field(description="rows that executors reported in committed batches")
    future_rows: int = Field(description="rows they left out, and reports ignored, as too far ahead of the clock")
    rows: CountsRecord

    @classmethod
    def of(cls, row: SubstreamRow, max_watermark: int | None, config: JobConfig) -> Self:
        return cls(
            query=row.query,
            substream=row.substream,
            state=row.state,
            since_ms=row.since_ms,
            watermark=row.watermark,
            max_event_time=row.max_event_time,
            skew=None if row.watermark is None or max_watermark is None else max_watermark - row.watermark,
            last_event_ms=row.last_event_ms,
            lag=row.lag,
            policy=config.override_of(row.substream),
            reported=row.reported_rows,
            future_rows=row.future_rows,
            rows=CountsRecord.model_validate(row.counts),
        )


class SubstreamTable(WatermarkRecord):
    """Substreams, in the order asked for. ``next``: the ``after`` of the following page, null on the last."""

    substreams: list[SubstreamRecord]
    next: str | None


class QueryRecord(Record):
    """One query and its latest batch. `idle_clock_ms`: up to when it has taken in all that was there.

    `batch_released`: its open batch holds the watermark no longer, for it was open too long. `retired`: it has ended.
    """

    query: str
    query_id: str
    run_id: str
    batch_id: int | None
    batch_open: bool
    batch_released: bool
    retired: bool
    pinned_watermark: int | None
    begun_ms: int | None
    idle_clock_ms: int | None
    last_contact_ms: int


class QueryTable(WatermarkRecord):
    """The queries of a job, by name."""

    queries: list[QueryRecord]
