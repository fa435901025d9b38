"""Reports, batches, and the tables of substreams and queries."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tidegate.api.schemas.jobs import CountsRecord, WatermarkRecord
from tidegate.api.schemas.types import (
    BatchNumber,
    Count,
    DurationMs,
    EventTime,
    Id,
    Names,
    Record,
    Request,
    WaitMs,
    equal_lengths,
)
from tidegate.domain.query import KnownPin
from tidegate.domain.records import Accounting, Counts

Token = str | None
TOKEN = Field(default=None, max_length=200, description="the last watermark_token that the client got")


class BatchReference(Request):
    """The batch a report belongs to, and the partition of it that reports."""

    query: Id
    query_id: Id
    run_id: Id
    batch_id: BatchNumber
    partition: BatchNumber


class Report(Request):
    """Highest event times, by substream: columns of equal length.

    With ``batch`` they are staged and count when it commits, the ``counts`` too (rows seen; repeating a partition's
    report replaces them). Without, they count at once, and ``counts`` are of no effect, because nothing would tell a
    repetition. ``min_event_times`` are for policies that follow the clock; ``limiting_lag`` does not need them.
    """

    substreams: Names
    event_times: list[EventTime]
    min_event_times: list[EventTime] | None = None
    counts: list[Count] | None = None
    batch: BatchReference | None = None
    watermark_token: Token = TOKEN

    @model_validator(mode="after")
    def _columns(self) -> Self:
        columns = {"event_times": self.event_times, "min_event_times": self.min_event_times, "counts": self.counts}
        equal_lengths(columns, len(self.substreams), "substreams")
        return self

    @property
    def tops(self) -> dict[str, int]:
        return dict(zip(self.substreams, self.event_times, strict=True))

    @property
    def rows(self) -> dict[str, int]:
        return dict(zip(self.substreams, self.counts, strict=True)) if self.counts else {}


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
    """Opens a batch. ``pin``: the one that the client keeps beside its checkpoint, null for "no watermark", left out
    where it keeps none. ``pins_to_keep``: over how many batches a replay must be possible.
    """

    pin: EventTime | None = None
    pins_to_keep: int = Field(default=100, ge=1, le=100_000)

    @property
    def known_pin(self) -> KnownPin | None:
        return KnownPin(self.pin) if "pin" in self.model_fields_set else None


class RowAccounting(Request):
    """What became of a batch's rows, by substream: columns of equal length; ``rule`` names how they were judged."""

    rule: str = Field(min_length=1, max_length=100)
    substreams: Names
    on_time: list[Count]
    late: list[Count]
    null_event_time: list[Count]
    updated: list[Count] | None = None
    future: list[Count] | None = None

    @model_validator(mode="after")
    def _columns(self) -> Self:
        names = ("on_time", "late", "null_event_time", "updated", "future")
        equal_lengths({name: getattr(self, name) for name in names}, len(self.substreams), "substreams")
        return self

    def accounting(self) -> Accounting:
        none = [0] * len(self.substreams)
        columns = (self.on_time, self.updated or none, self.late, self.null_event_time, self.future or none)
        return Accounting(self.rule, tuple(self.substreams), tuple(Counts(*row) for row in zip(*columns, strict=True)))


class Commit(RunReference):
    """Commits a batch. ``rows``: what became of its rows; left out where the client does not account for them."""

    rows: RowAccounting | None = None


class Heartbeat(RunReference):
    """Caught up, no new data: seen to be so at ``observed_ms``, in the coordinator's time (the ``now_ms`` of its last
    answer, and what has passed since). Late or repeated, a heartbeat proves no more than it did.
    """

    observed_ms: DurationMs


class BeginRecord(WatermarkRecord):
    """``pin``: rows of this batch with an event time below it are late, for ever; null: none is."""

    pin: int | None
    replayed: bool


class SubstreamRecord(Record):
    """One substream of one query. ``blocked``: silent for long, though its query has not said there was nothing."""

    query: str
    substream: str
    state: Literal["active", "blocked", "idle", "done"]
    watermark: int | None
    top: int | None
    skew: int | None = Field(description="how far it trails the furthest substream's watermark")
    last_event_ms: int
    reported: int = Field(description="rows that executors reported in committed batches")
    rows: CountsRecord


class SubstreamTable(WatermarkRecord):
    """Substreams by query and name. ``next``: the ``after`` of the following page, null on the last."""

    substreams: list[SubstreamRecord]
    next: str | None


class QueryRecord(Record):
    """One query and its latest batch. ``idle_clock_ms``: up to when it has taken in all that was there."""

    query: str
    query_id: str
    run_id: str
    batch_id: int | None
    batch_open: bool
    pin: int | None
    begun_ms: int | None
    idle_clock_ms: int | None
    last_contact_ms: int


class QueryTable(WatermarkRecord):
    """The queries of a job, by name."""

    queries: list[QueryRecord]
