"""The replies of functions as records: those of the domain, and what a read of a job returns."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any, Self, TypeVar, cast

from tidegate.domain.calendar import Frames
from tidegate.domain.completeness import DelayStatistics, Entry, HourCounts, RowCounts, Sketch
from tidegate.domain.config import JobConfig
from tidegate.domain.errors import StateDamaged
from tidegate.domain.frames import FrameBounds, FrameCounts, FrameStatus, frame_status
from tidegate.domain.history import LISTS, NUMBERS, Record, Sample
from tidegate.domain.job import (
    Arrivals,
    Completion,
    Consumer,
    ConsumerPosition,
    ExcludedSubstream,
    Exclusion,
    FrameGeneration,
    FrameOutput,
    FrameRecord,
    Hold,
    JobState,
    Query,
    QueryBatch,
    Substream,
    TableVersion,
)
from tidegate.domain.limits import ArrivalDelay, PassedByLimit
from tidegate.domain.offsets import BatchOffsets, CommittedOffsets, OffsetsStatus
from tidegate.domain.policies import Moment, PolicyState, TimestampHistory
from tidegate.domain.prediction import Predictor, pace_of
from tidegate.domain.results import Begun, Committed, Effect, Holder, HoldReason, JobWatermark
from tidegate.domain.values import SubstreamKey, matches, member
from tidegate.domain.views import Health, JobSummary, QueryStatus, SubstreamStatus, health, sorted_outputs
from tidegate.domain.what_if import WhatIfSkew
from tidegate.store.functions import Reply, map_of

Row = TypeVar("Row")


_CONVERSIONS: dict[Any, Callable[[Any], Any]] = {int: lambda value: int(value or 0), bool: bool}
"""Conversions by the type of a field. Redis sends long sums as text, and may omit zero and false."""


@cache
def _members(kind: Any) -> list[tuple[str, Callable[[Any], Any] | None]]:
    return [(field.name, _CONVERSIONS.get(field.type)) for field in fields(kind)]


def row_of(kind: Callable[..., Row], found: Reply, **given: Any) -> Row:
    """Return a dataclass with the values that a reply has under the names of its fields, and with the given values."""
    values = {
        name: found.get(name) if convert is None else convert(found.get(name)) for name, convert in _members(kind)
    }
    return kind(**values | given)


def watermark_state(reply: Reply) -> JobWatermark:
    """Return the watermark state in a reply."""
    return JobWatermark(
        incarnation=reply["incarnation"],
        state_epoch=reply["state_epoch"],
        now_ms=reply["now_ms"],
        watermark=reply.get("watermark"),
        coalesced_watermark=reply.get("coalesced_watermark"),
        written_watermark=reply.get("written_watermark"),
        written_held_by=reply.get("written_held_by"),
        complete=bool(reply.get("complete")),
        held_by=row_of(Holder, map_of(reply["held_by"])) if "held_by" in reply else None,
    )


def command_result(reply: Reply) -> Effect:
    """Return the result of a repeatable command in a reply."""
    return Effect(watermark_state(reply), bool(reply.get("applied")))


def commit_result(reply: Reply) -> Committed:
    """Return the result of the command ``commit`` in a reply."""
    return Committed(watermark_state(reply), bool(reply.get("applied")), reply.get("unfinished_frame"))


def begin_result(reply: Reply) -> Begun:
    """Return the result of the command ``begin`` in a reply."""
    return row_of(Begun, reply, state=watermark_state(reply))


def hold(found: Sequence[Any]) -> Hold:
    """Return the hold in a part of a reply."""
    return row_of(Hold, map_of(found))


def consumer(found: Any) -> Consumer:
    """Return the consumer in a part of a reply."""
    of = map_of(found)
    position = None if of.get("position") is None else row_of(ConsumerPosition, map_of(of["position"]))
    return row_of(Consumer, of, position=position)


@dataclass(frozen=True, slots=True)
class ConsumersReply:
    """The consumers of a job's frames, sorted by name."""

    state: JobWatermark
    consumers: list[Consumer]

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the consumers in a reply."""
        return cls(watermark_state(reply), sorted(map(consumer, reply["consumers"]), key=attrgetter("consumer")))


def summary(reply: Reply) -> JobSummary:
    """Return the summary of a job in a reply."""
    return row_of(
        JobSummary,
        reply,
        counts=row_of(RowCounts, reply),
        limits=map_of(reply["limits"]),
        unread_offsets=map_of(reply.get("unread_offsets", {})),
        skipped_offsets=map_of(reply.get("skipped_offsets", {})),
        frames=_frame_counts(reply.get("frames")),
        arrivals=_arrivals(reply.get("arrivals")),
        holds=tuple(sorted(map(hold, reply["holds"]), key=attrgetter("hold"))),
        missing_queries=tuple(sorted(reply["missing_queries"])),
    )


def _arrivals(found: Any) -> ArrivalDelay | None:
    if found is None:
        return None
    of = map_of(found)
    counts = {"target": float(of["target"]), "rows": int(of["rows"]), "late": int(of["late"])}
    return row_of(ArrivalDelay, of, **counts)


def _frame_counts(found: Any) -> FrameCounts | None:
    if found is None:
        return None
    of = map_of(found)
    finished = {str(name): int(count) for name, count in map_of(of["finished"]).items() if count}
    return FrameCounts(finished, of["open"], tuple(map(int, of["delays"])), int(of["delay_sum_ms"]))


def substream_key(member: str) -> SubstreamKey:
    """Return the query and the name of a member."""
    query, _, name = member.partition("/")
    return query, name


def substream(found: Sequence[Any], median: int | None, patterns: Sequence[str]) -> SubstreamStatus:
    """Return the substream in a part of a reply.

    Args:
        found: The part of the reply.
        median: The median watermark of the job's substreams that count.
        patterns: The patterns of the job's overrides, in order.
    """
    of = map_of(found)
    query, name = substream_key(of["member"])
    watermark = of.get("watermark")
    return row_of(
        SubstreamStatus,
        of,
        query=query,
        substream=name,
        skew=None if watermark is None or median is None else median - watermark,
        policy=next((pattern for pattern in patterns if matches(pattern, name)), None),
        reported=int(of.get("reported_rows") or 0),
        rows=row_of(RowCounts, of),
    )


def sketch(found: Sequence[Any] | None) -> Sketch:
    """Return the sketch in a part of a reply. The sketch is empty if ``found`` is None."""
    if found is None:
        return Sketch()
    of = map_of(found)
    return Sketch(of["step"], of["position"], dict(zip(of["buckets"], of["weights"], strict=True)))


def counts_by_member(found: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Return the numbers of a hash with fields ``'<class> <member>'``, by member, then by class."""
    counts: dict[str, dict[str, int]] = {}
    for name, number in found.items():
        row_class, _, of = name.partition(" ")
        counts.setdefault(of, {})[row_class] = int(number)
    return counts


_DETAILS = dict.fromkeys(NUMBERS, int) | dict.fromkeys(LISTS, json.loads)


def _history_record(entry_id: str, found: Mapping[str, str]) -> Record:
    details = {name: _DETAILS.get(name, str)(text) for name, text in found.items() if name != "kind"}
    return Record(int(entry_id.partition("-")[0]), found["kind"], details)


def history_records(entries: Sequence[Any]) -> list[tuple[str, Record]]:
    """Return the records of stream entries in a reply, each with its id."""
    return [(entry_id, _history_record(entry_id, map_of(flat))) for entry_id, flat in entries]


def sample(found: str) -> Sample:
    """Return a sample of a timeline, whose text is ``<time> <watermark> <reason> <query> <name>``."""
    at_ms, watermark, reason, query, name = found.split(" ", 4)
    return Sample(
        int(at_ms), int(watermark) if watermark else None, cast(HoldReason | None, reason or None), query, name
    )


def order(entry_id: str) -> tuple[int, int]:
    """Return a sort key for the id of a record."""
    at_ms, _, number = entry_id.partition("-")
    return int(at_ms), int(number)


# What reads of jobs return


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a job; ``config`` is its configuration as the client sent it."""

    state: JobWatermark
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
            created_ms, revision = int(reply["created"]), int(reply["revision"])
            return cls(watermark_state(reply), config, revision, created_ms, summary(reply))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateDamaged from error


@dataclass(frozen=True, slots=True)
class SubstreamsReply:
    """Substreams of a job, sorted by query and name.

    ``is_complete`` is true if the table contains all substreams of the job. ``slowest`` contains the active substreams
    with the lowest watermarks in order, if the read asked for them and the table is not complete.
    """

    state: JobWatermark
    rows: list[SubstreamStatus]
    is_complete: bool = False
    slowest: Sequence[SubstreamStatus] = ()

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the table of substreams in a reply."""
        patterns = [override["substreams"] for override in json.loads(reply["config"]).get("overrides", ())]
        found = [substream(row, reply.get("median"), patterns) for row in reply["rows"]]
        rows = sorted(found, key=attrgetter("query", "substream"))
        by_member = {member((row.query, row.substream)): row for row in rows}
        return cls(
            watermark_state(reply),
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


def _excluded(found: Any) -> Exclusion:
    of = map_of(found)
    named = tuple(row_of(ExcludedSubstream, map_of(each)) for each in of["substreams"])
    return row_of(Exclusion, of, substreams=named, partitions=tuple(of["partitions"]))


def _frame_record(found: Any) -> FrameRecord:
    of = map_of(found)
    return row_of(
        FrameRecord,
        of,
        exclusions=tuple(map(_excluded, of["exclusions"])),
        silent=None if of.get("silent") is None else _excluded(of["silent"]),
        queries=tuple(row_of(QueryBatch, map_of(each)) for each in of["queries"]),
        outputs=_outputs(of["outputs"]),
    )


def _outputs(found: Sequence[Any]) -> tuple[FrameOutput, ...]:
    return tuple(row_of(FrameOutput, map_of(each)) for each in found)


@dataclass(frozen=True, slots=True)
class FramesReply:
    """Frames of a job, latest first.

    Attributes:
        is_declared: Whether the job declares frames.
        frames: The frames.
        next: End of the frames before these; None if there are no more frames.
        totals: Numbers of finished frames by state, and of generations after the first (``corrected``).
        unfinished: Start of the first frame that is not finished; None if the job has no frames yet.
    """

    state: JobWatermark
    is_declared: bool
    frames: list[FrameStatus]
    next: int | None
    totals: dict[str, int]
    unfinished: int | None

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the frames in a reply."""
        records = [*map(_frame_record, reply["records"])]
        frames = [_frame(map_of(each), records, reply.get("uncounted_up_to")) for each in reply["frames"]]
        return cls(
            watermark_state(reply),
            bool(reply["declared"]),
            frames,
            reply.get("next"),
            map_of(reply["totals"]),
            reply.get("unfinished"),
        )


def _frame(of: Reply, records: Sequence[FrameRecord], uncounted_up_to: int | None) -> FrameStatus:
    generations = [
        FrameGeneration(
            each["generation"], each["at_ms"], each["reason"], row_of(HourCounts, each), _outputs(each["outputs"])
        )
        for each in map(map_of, of["generations"])
    ]
    changes = None if of.get("added") is None else (of["changes_due_ms"], row_of(HourCounts, map_of(of["added"])))
    return frame_status(
        of["start"],
        of["end"],
        of["state"],
        records[of["record"] - 1] if of.get("record") else None,
        row_of(HourCounts, map_of(of["rows"])),
        generations,
        changes,
        uncounted_up_to,
    )


def committed_offsets(row: Reply) -> CommittedOffsets:
    """Return the offsets of a query in a row of its table."""
    of = map_of(row["columns"])
    columns = BatchOffsets(
        of["partitions"], [None] * len(of["ends"]), of["ends"], of["latest"], of["behind_ms"], of["open_transactions"]
    )
    return row_of(CommittedOffsets, map_of(row["offsets"]), offsets=columns)


@dataclass(frozen=True, slots=True)
class QueriesReply:
    """Queries with their latest batches, sorted by name, and the offsets of those that have told them."""

    state: JobWatermark
    rows: list[QueryStatus]
    offsets: dict[str, CommittedOffsets]

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the table of queries in a reply."""
        found = sorted(map(map_of, reply["rows"]), key=itemgetter("query"))
        offsets = {row["query"]: committed_offsets(row) for row in found if row.get("offsets")}
        rows = [
            row_of(
                QueryStatus,
                row,
                offsets=OffsetsStatus.of(offsets.get(row["query"])),
                outputs=sorted_outputs(row_of(TableVersion, map_of(each)) for each in row.get("outputs", ())),
            )
            for row in found
        ]
        return cls(watermark_state(reply), rows, offsets)


@dataclass(frozen=True, slots=True)
class Delays:
    """Delays of a job and of the requested substreams that exist, each with its lag in force."""

    state: JobWatermark
    statistics: DelayStatistics
    substreams: dict[SubstreamKey, tuple[int | None, Sketch]]

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the delays in a reply."""
        statistics = DelayStatistics(
            sketch(reply.get("pool")),
            sketch(reply.get("merged")),
            float(reply.get("wait_sum") or 0),
            reply.get("wait_weight") or 0,
        )
        of_each = {
            substream_key(of["member"]): (of.get("lag"), sketch(of.get("sketch"))) for of in map(map_of, reply["rows"])
        }
        return cls(watermark_state(reply), statistics, of_each)


@dataclass(slots=True)
class LateReply:
    """Late rows of a job or a substream, in total and by hour of event time.

    ``is_known`` is true if the substream exists. ``entries`` contains the substreams and hours with late or updated
    rows. ``unattributed`` is the number of rows without a substream, by hour.
    """

    state: JobWatermark
    is_known: bool
    counts: RowCounts
    diverted: int
    unattributed: dict[int, int] = field(default_factory=dict)
    hours: dict[int, HourCounts] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the late rows in a reply, without its hours."""
        counts = map_of(reply["counts"])
        totals = row_of(RowCounts, counts), int(counts.get("diverted") or 0)
        return cls(watermark_state(reply), bool(reply.get("is_known")), *totals)

    def add_hours(self, member: str, reply: Reply) -> None:
        """Add the hours in a reply. ``member`` is the substream, or "" for the job."""
        for found in map(map_of, reply["hours"]):
            hour, late = int(found["hour"]), counts_by_member(map_of(found["late"]))
            rows = dict(zip(found["names"], found["rows"], strict=True))
            unattributed = rows.pop("?")
            if unattributed:
                self.unattributed[hour] = int(unattributed)
            counts = {name: HourCounts(int(count or 0), **late.get(name, {})) for name, count in rows.items()}
            if counts[member].rows:
                self.hours[hour] = counts[member]
            self.entries += [(substream_key(name), hour, counts[name]) for name in late if name]


@dataclass(frozen=True, slots=True)
class HistoryReply:
    """Records with their ids, latest first. ``oldest_ms`` is the time of the oldest record kept; None: no records."""

    state: JobWatermark
    records: list[tuple[str, Record]]
    oldest_ms: int | None

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the history records in a reply."""
        oldest = history_records(reply["oldest"])
        oldest_ms = oldest[0][1].at_ms if oldest else None
        return cls(watermark_state(reply), history_records(reply["records"]), oldest_ms)


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of a job's timeline, oldest first."""

    state: JobWatermark
    samples: list[Sample]

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the samples in a reply."""
        return cls(watermark_state(reply), [*map(sample, reply["samples"])])


@dataclass(frozen=True, slots=True)
class Learned:
    """What predicts when the open frames of a job will be complete.

    Attributes:
        state: The watermark of the job.
        frames: The declaration; None if the job has no frames.
        unfinished: End of the first frame that is not finished; None if the job has no such frame.
        completions: Completions of the latest frames, in the order in which they were finished.
        samples: Samples of the watermark in the last hour, oldest first.
    """

    state: JobWatermark
    frames: Frames | None
    unfinished: int | None
    completions: Sequence[Completion]
    samples: Sequence[Sample]

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the data in a reply."""
        every = reply.get("every")
        frames = None if every is None else Frames(every, reply.get("time_zone"), reply["offset_ms"])
        completions = [Completion(*map(int, text.split())) for text in reply["completions"]]
        samples = [*map(sample, reply["samples"])]
        return cls(watermark_state(reply), frames, reply.get("unfinished"), completions, samples)

    def predictor(self) -> Predictor | None:
        """Return the predictor of the job's frames; None if the job has no frames."""
        if self.frames is None:
            return None
        state = self.state
        pace = pace_of(self.samples, state.now_ms, state.watermark, state.written_watermark)
        return Predictor(self.frames, self.completions, self.unfinished, pace, state.now_ms)


@dataclass(frozen=True, slots=True)
class Watched:
    """The watermark of a job, the id of its ``newest`` record, and the ``records`` that the client does not have.

    ``known`` is the last record that the client has. If the store no longer keeps this record, ``known`` is None,
    ``records`` is empty, and later records may be lost.
    """

    state: JobWatermark
    newest: str
    known: Record | None
    records: list[tuple[str, Record]]

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the watermark and the records in a reply."""
        known, records = history_records(reply["known"]), history_records(reply["records"])
        return cls(watermark_state(reply), reply["newest"], known[0][1] if known else None, records)


@dataclass(frozen=True, slots=True)
class Configured:
    """The result of the command ``configure``. ``created`` is true if the job is new."""

    state: JobWatermark
    created: bool
    revision: int

    @classmethod
    def of(cls, reply: Reply) -> Self:
        """Return the result in a reply."""
        return cls(watermark_state(reply), bool(reply.get("created")), reply["revision"])


class FixedState(PolicyState):
    """A policy state at one point in time: its watermark, and the time of its next change."""

    def __init__(self, watermark: int | None, next_change_ms: int | None) -> None:
        self.watermark, self.lagged, self._next_change_ms = watermark, None, next_change_ms

    def next_change_ms(self, reached: int | None, at: Moment) -> int | None:
        """Return the time of the next change, as of the snapshot."""
        return self._next_change_ms


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The part of a job from which an explanation of its watermark is computed.

    It contains the holds, the open batches and the slowest active substreams. All other possible holders have equal or
    higher watermarks, so the watermark without a holder is equal to that in the whole job. With ``max_skew_ms`` or
    ``arrival_target``, it has the bounds of the whole job without its first holders, and the substreams that then hold.
    """

    reply: Reply

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the job, as the client sent it."""
        config: dict[str, Any] = json.loads(self.reply["config"])
        return config

    @property
    def state(self) -> JobWatermark:
        """The watermark of the job."""
        return watermark_state(self.reply)

    @property
    def passed(self) -> list[PassedByLimit]:
        """The substreams that count, and that the watermark passes because of a limit, by limit."""
        return [_passed(map_of(each)) for each in self.reply.get("passed", ())]

    def what_if_skew(self, limit_ms: int) -> WhatIfSkew:
        """Return the effect of the limit on skew with which the snapshot was read."""
        of = map_of(self.reply["skew"]) if "skew" in self.reply else {}
        passed = None if of.get("passed") is None else _passed(map_of(of["passed"]))
        watermark = self.state.coalesced_watermark if not of else of.get("coalesced_watermark")
        return WhatIfSkew(limit_ms, watermark, passed, of.get("rows", 0))

    @property
    def arrivals(self) -> tuple[Arrivals, int | None]:
        """The measured arrival delays, and up to when the queries have read all input, if the read asked for them."""
        if "arrivals" not in self.reply:
            return Arrivals(), None
        of = map_of(self.reply["arrivals"])
        return row_of(Arrivals, of, sketch=sketch(of.get("sketch")), late=0), of.get("proven_ms")

    @property
    def frame(self) -> FrameBounds | None:
        """The first frame that is not finished; None if the job has no frames, or is complete."""
        return row_of(FrameBounds, map_of(self.reply["frame"])) if "frame" in self.reply else None

    def job(self, config: JobConfig) -> JobState:
        """Return the state of the job under its parsed configuration."""
        reply, found = self.reply, self.state
        job = JobState(
            config,
            found.now_ms,
            found.incarnation,
            found.state_epoch,
            unattended_ms=reply["unattended_ms"],
            is_complete=found.complete,
            coalesced_watermark=found.coalesced_watermark,
            coalesced_watermark_since_ms=reply["coalesced_watermark_since_ms"],
            watermark=found.watermark,
            watermark_since_ms=reply["watermark_since_ms"],
            max_watermark=reply.get("max_watermark"),
            holds={one.hold: one for one in map(hold, reply["holds"])},
        )
        if config.max_retention_ms is not None and reply.get("retention"):
            job.retention = _history(reply["retention"])
        self._add_queries(job)
        self._add_substreams(job)
        if (bounds := reply.get("bounds")) is not None:
            job.known_bounds = {
                len(job.substreams) - removed: (None if skew == "" else skew, None if arrival == "" else arrival)
                for removed, (skew, arrival) in enumerate(bounds)
            }
        return job

    def _add_queries(self, job: JobState) -> None:
        for of in map(map_of, self.reply["queries"]):
            query = job.queries[of["query"]] = Query("", "", job.now_ms)
            query.offsets = committed_offsets(of) if of.get("offsets") else None
            query.outage_ms, query.idle_clock_observed_ms = of["outage_ms"], of.get("idle_clock_ms")
            if of.get("last_seen_ms") is not None:
                job.last_seen[of["query"]] = of["last_seen_ms"]
        for of in map(map_of, self.reply["open_batches"]):
            query = job.queries[of["query"]]
            query.latest, query.open, query.begun_ms = of["batch_id"], True, of["begun_ms"]
            query.begun_observed_ms = of["begun_observed_ms"]
            query.pinned_watermarks[of["batch_id"]] = of.get("pinned_watermark")

    def _add_substreams(self, job: JobState) -> None:
        for of in map(map_of, self.reply["substreams"]):
            key = substream_key(of["member"])
            watermark = of.get("watermark")
            job.substreams[key] = Substream(
                job.config.policy_of(key[1]),
                FixedState(watermark, of.get("next_change_ms")),
                of["last_event_ms"],
                of.get("max_event_time"),
                watermark,
            )


def _passed(of: Reply) -> PassedByLimit:
    watermarks = (None if at == "" else at for at in of["watermarks"])
    lowest = zip(watermarks, map(substream_key, of["members"]), strict=True)
    return PassedByLimit.of(of["limit"], of["limit_ms"], of["bound"], of["count"], lowest)


def _history(line: str) -> TimestampHistory:
    length, boundary, *cells = line.split(",")
    history = TimestampHistory(int(length))
    history.boundary, history.cells = int(boundary), [int(cell) if cell else None for cell in cells]
    return history


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
        frames: Number of frames.
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
    frames: int


@dataclass(frozen=True, slots=True)
class JobPageReply:
    """The data of the page of a job after a sweep.

    ``substreams`` contains all substreams of a small job. Of a large job, it contains the requested slowest ones and
    the holder, and ``distribution`` contains all watermarks in bins.
    """

    held: Snapshot
    status: Status
    queries: QueriesReply
    delays: Delays
    late: LateReply
    substreams: SubstreamsReply
    distribution: Distribution | None
    samples: Sequence[Sample]
    history: HistoryReply
    frames: FramesReply
    learned: Learned
