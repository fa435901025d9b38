"""The records that reads of jobs return, each built from the reply of a function."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Self

from tidegate.domain.completeness import DelayStatistics, Entry, HourCounts, RowCounts, Sketch
from tidegate.domain.errors import StateDamaged
from tidegate.domain.history import Record, Sample
from tidegate.domain.results import WatermarkState
from tidegate.domain.values import SubstreamKey, member
from tidegate.domain.views import Health, JobSummary, QueryRow, SubstreamRow, health
from tidegate.store import replies
from tidegate.store.functions import Reply, record
from tidegate.store.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a job; ``config`` is its configuration as the client sent it."""

    state: WatermarkState
    config: dict[str, Any]
    revision: int
    created_ms: int
    summary: JobSummary

    def health(self, stale_after_ms: int) -> Health:
        """Return the health of the job, which is stale after ``stale_after_ms`` without client contact."""
        return health(self.state, self.summary, stale_after_ms, self.config.get("max_lag_ms"))

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the status in a reply.

        Raises:
            StateDamaged: If a part is missing or has another type. Each reader of the status relies on these types.
        """
        try:
            config = json.loads(reply["config"])
            float(config.get("policy", {}).get("target") or 0)
            int(config.get("max_lag_ms") or 0)
            created_ms, summary = int(reply["created"]), replies.summary(reply)
            return cls(replies.watermark_state(reply), config, int(reply["revision"]), created_ms, summary)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateDamaged from error


@dataclass(frozen=True, slots=True)
class SubstreamTable:
    """Substreams, sorted by query and name, with the configuration and the max watermark of their job.

    ``is_complete`` is true if the table contains all substreams of the job. ``slowest`` contains the active substreams
    with the lowest watermarks in order, if the read asked for them and the table is not complete.
    """

    state: WatermarkState
    config: dict[str, Any]
    max_watermark: int | None
    rows: list[SubstreamRow]
    is_complete: bool = False
    slowest: Sequence[SubstreamRow] = ()

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the table of substreams in a reply."""
        rows = sorted(map(replies.substream_row, reply["rows"]), key=attrgetter("query", "substream"))
        by_member = {member((row.query, row.substream)): row for row in rows}
        return cls(
            replies.watermark_state(reply),
            json.loads(reply["config"]),
            reply.get("max_watermark"),
            rows,
            bool(reply.get("is_complete")),
            [by_member[name] for name in reply["slowest"] if name in by_member],
        )


@dataclass(frozen=True, slots=True)
class Distribution:
    """Number of substreams by watermark, in bins of ``width_ms`` from ``start``.

    The first bin contains the lowest watermark of the active substreams, or of all substreams if none is active.

    Attributes:
        active: Number of active substreams in each bin.
        others: Number of idle and done substreams in each bin.
        earlier: Number of idle and done substreams before the first bin.
    """

    width_ms: int
    start: int
    active: Sequence[int]
    others: Sequence[int]
    earlier: int

    @classmethod
    def of(cls, reply: Reply) -> Self | None:
        """Return the distribution in a reply; None if the job has few substreams, or none has a watermark."""
        if "width" not in reply:
            return None
        return cls(reply["width"], reply["start"], reply["active"], reply["others"], reply["earlier"])


@dataclass(frozen=True, slots=True)
class QueryTable:
    """Queries with their latest batches, sorted by name."""

    state: WatermarkState
    rows: list[QueryRow]

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the table of queries in a reply."""
        rows = sorted(map(replies.query_row, reply["rows"]), key=attrgetter("query"))
        return cls(replies.watermark_state(reply), rows)


@dataclass(frozen=True, slots=True)
class Delays:
    """Delays of a job and of the requested substreams that exist, each with its lag in force."""

    state: WatermarkState
    statistics: DelayStatistics
    substreams: dict[SubstreamKey, tuple[int | None, Sketch]]

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the delays in a reply."""
        statistics = DelayStatistics(
            replies.sketch(reply.get("pool")),
            replies.sketch(reply.get("merged")),
            float(reply.get("wait_sum") or 0),
            reply.get("wait_weight") or 0,
        )
        of_each = {
            replies.substream_key(of["member"]): (of.get("lag"), replies.sketch(of.get("sketch")))
            for of in map(record, reply["rows"])
        }
        return cls(replies.watermark_state(reply), statistics, of_each)


@dataclass(slots=True)
class LateRows:
    """Late rows of a job or a substream, in total and by hour of event time.

    ``is_known`` is true if the substream exists. ``entries`` contains the substreams and hours with late or updated
    rows. ``unattributed`` is the number of rows without a substream, by hour.
    """

    state: WatermarkState
    is_known: bool
    counts: RowCounts
    diverted: int
    unattributed: dict[int, int] = field(default_factory=dict)
    hours: dict[int, HourCounts] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the late rows in a reply, without its hours."""
        counts = record(reply["counts"])
        totals = replies.row_of(RowCounts, counts), int(counts.get("diverted") or 0)
        return cls(replies.watermark_state(reply), bool(reply.get("is_known")), *totals)

    def add_hours(self, member: str, reply: Reply) -> None:
        """Add the hours in a reply. ``member`` is the substream, or "" for the job."""
        for found in map(record, reply["hours"]):
            hour, late = int(found["hour"]), replies.counts_by_member(record(found["late"]))
            rows = dict(zip(found["names"], found["rows"], strict=True))
            unattributed = rows.pop("?")
            if unattributed:
                self.unattributed[hour] = int(unattributed)
            counts = {name: HourCounts(int(count or 0), **late.get(name, {})) for name, count in rows.items()}
            if counts[member].rows:
                self.hours[hour] = counts[member]
            self.entries += [(replies.substream_key(name), hour, counts[name]) for name in late if name]


@dataclass(frozen=True, slots=True)
class History:
    """Records with their ids, latest first. ``oldest_ms`` is the time of the oldest record kept; None: no records."""

    state: WatermarkState
    records: list[tuple[str, Record]]
    oldest_ms: int | None

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the history records in a reply."""
        oldest = replies.history_records(reply["oldest"])
        oldest_ms = oldest[0][1].at_ms if oldest else None
        return cls(replies.watermark_state(reply), replies.history_records(reply["records"]), oldest_ms)


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of a job's timeline, oldest first."""

    state: WatermarkState
    samples: list[Sample]

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the samples in a reply."""
        return cls(replies.watermark_state(reply), [*map(replies.sample, reply["samples"])])


@dataclass(frozen=True, slots=True)
class Watched:
    """The watermark of a job, the id of its ``newest`` record, and the ``records`` that the client does not have.

    ``known`` is the last record that the client has. If the store no longer keeps this record, ``known`` is None,
    ``records`` is empty, and later records may be lost.
    """

    state: WatermarkState
    newest: str
    known: Record | None
    records: list[tuple[str, Record]]

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the watermark and the records in a reply."""
        known, records = replies.history_records(reply["known"]), replies.history_records(reply["records"])
        return cls(replies.watermark_state(reply), reply["newest"], known[0][1] if known else None, records)


@dataclass(frozen=True, slots=True)
class Configured:
    """The result of the command ``configure``. ``created`` is true if the job is new."""

    state: WatermarkState
    created: bool
    revision: int

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the result in a reply."""
        return cls(replies.watermark_state(reply), bool(reply.get("created")), reply["revision"])


@dataclass(frozen=True, slots=True)
class JobPageRequest:
    """The parts of a job that its page reads.

    Attributes:
        holders: Number of holders to explain.
        records: Number of records of the history.
        before: Id of the record before which the history ends; None for the latest records.
        slowest: Number of substreams of a large job to read, slowest first.
        after: Watermark and member of the substream after which they start; None for the slowest.
        interval_ms: Interval of the samples of the timeline.
        samples: Number of samples.
        bin_widths_ms: Widths of a bin of the distribution, ascending.
        bins: Maximum number of bins.
    """

    holders: int
    records: int
    before: str | None
    slowest: int
    after: tuple[int | None, str] | None
    interval_ms: int
    samples: int
    bin_widths_ms: Sequence[int]
    bins: int


@dataclass(frozen=True, slots=True)
class JobPage:
    """The data of the page of a job after a sweep.

    ``substreams`` contains all substreams of a small job. Of a large job, it contains the requested slowest ones and
    the holder, and ``distribution`` contains all watermarks in bins.
    """

    held: Snapshot
    status: Status
    queries: QueryTable
    delays: Delays
    late: LateRows
    substreams: SubstreamTable
    distribution: Distribution | None
    samples: Sequence[Sample]
    history: History
