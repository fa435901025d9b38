"""The state of a job, with its queries, substreams, holds and frames; and the claims that a client sends about it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeVar, get_args

from tidegate.domain.completeness import NO_ROWS, DelayStatistics, HourCounts, Ledger, RowCounts, RowsByDelay, Sketch
from tidegate.domain.config import JobConfig
from tidegate.domain.history import History, Timeline
from tidegate.domain.offsets import CommittedOffsets
from tidegate.domain.policies import Moment, Policy, PolicyState, TimestampHistory
from tidegate.domain.values import EXACT_DOUBLE, NumberRange, SubstreamKey, described, highest

SubstreamState = Literal["active", "blocked", "skewed", "idle", "done"]
STATES: tuple[SubstreamState, ...] = get_args(SubstreamState)
COUNTED_STATES = tuple(state for state in STATES if state != "blocked")
"""States by which substreams are counted. Blocked ones count as active."""
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Run:
    """Identifies the caller: the stable name of the query, its checkpoint, and the current run."""

    query: str
    query_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class PinnedWatermark:
    """A pinned watermark that the client stores with its checkpoint. ``value`` is None if the job had no watermark."""

    value: int | None


@dataclass(frozen=True, slots=True)
class TokenClaim:
    """The claim of a valid watermark token: ``incarnation`` of the job has emitted ``watermark``."""

    incarnation: int
    watermark: int | None


@dataclass(frozen=True, slots=True)
class ConfigVersion:
    """A version of the configuration of a job. None stands for any value.

    A reset job, and a job that was deleted and created again, have another state epoch. An incarnation would not
    identify them, because a store that has lost its state counts from 1 again.
    """

    state_epoch: str | None
    revision: int | None


ANY_VERSION = ConfigVersion(None, None)


@dataclass(slots=True)
class Substream:
    """One substream of one query.

    A declared substream without reports has no watermark and therefore holds the watermark of the job. ``watermark``
    never goes back. ``last_event_observed_ms`` is in the observed time of the query. ``since_ms`` is the processing
    time at which the state of the substream last changed; None if it has not changed. ``forced_idle`` is true if an
    operator declared the substream idle, or its query timed out; ``idle_by_operator`` is true in the first case.
    """

    policy: Policy
    policy_state: PolicyState
    last_event_observed_ms: int
    max_event_time: int | None = None
    watermark: int | None = None
    done: bool = False
    idle: bool = False
    forced_idle: bool = False
    idle_by_operator: bool = False
    since_ms: int | None = None

    @property
    def counts(self) -> bool:
        """Whether the substream counts towards the minimum."""
        return not (self.done or self.idle)

    @property
    def uncapped_watermark(self) -> int | None:
        """The watermark without the cap of a report; the next evaluation raises ``watermark`` to this value."""
        return highest(self.watermark, self.policy_state.watermark)


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version of a table that a query writes.

    The version is a text of digits: ids of snapshots have 64 bits, and a double holds 53 of them exactly.
    """

    table: str = described("Name of the table.", example="lake.db.hours")
    version: str = described(
        "Version of the table: of Delta Lake its number, of Iceberg the id of the snapshot. It is a text, because most "
        "programs that read JSON round numbers above 2^53.",
        example="5937117119577207000",
    )


@dataclass(slots=True)
class Staged:
    """The staged reports of a query: highest times by substream, and rows and delays by partition and substream.

    ``names`` contains the substreams of all reports, in order, also those whose values were set aside. ``coming``
    contains the substreams that were unknown when they were staged.
    """

    names: dict[str, None] = field(default_factory=dict)
    event_times: dict[str, int] = field(default_factory=dict)
    watermarks: dict[str, int] = field(default_factory=dict)
    rows: dict[tuple[int, str], int] = field(default_factory=dict)
    future_rows: dict[tuple[int, str], int] = field(default_factory=dict)
    delays: dict[tuple[int, str], RowsByDelay] = field(default_factory=dict)
    coming: set[str] = field(default_factory=set)


def raise_each(highest: dict[str, int], column: Mapping[str, int]) -> None:
    """Raise the values in ``highest`` to those in ``column``, by substream."""
    for name, value in column.items():
        highest[name] = max(value, highest.get(name, value))


def set_each(by_partition: dict[tuple[int, str], Value], partition: int, column: Mapping[str, Value]) -> None:
    """Set values by partition and substream; a later report of a partition replaces its values."""
    by_partition |= {(partition, name): value for name, value in column.items()}


@dataclass(slots=True)
class Arrivals:
    """The arrival delays of a job's rows, and the learned one; see :mod:`tidegate.domain.limits`.

    ``learned`` is the learned arrival delay in milliseconds; None until it is learned. ``first_end`` and ``last_end``
    are the first and the highest end of a frame with rows. ``rows`` is the number of rows whose delay is known.
    ``late`` of them arrived after the delay in force. ``too_old`` is the weight of those that arrived later than the
    highest delay, which decays with the sketch.
    """

    learned: int | None = None
    sketch: Sketch = field(default_factory=Sketch)
    first_end: int | None = None
    last_end: int | None = None
    rows: int = 0
    late: int = 0
    too_old: int = 0


@dataclass(slots=True)
class Query:
    """One Spark query. A batch is *open* from its begin to its commit; a query has at most one open batch.

    ``outage_ms`` is the *outage* of the query: the time that its runs waited for the coordinator. ``waited_ms`` is the
    part of the current run, as reported. *Observed time* excludes this time. ``idle_clock_observed_ms`` is the observed
    time at which the query was last caught up. ``begun_observed_ms`` is that of the job when the latest batch began.
    ``begun_merged`` is the merged watermark at that time. The query has read all input up to the processing time
    ``proven_ms``. ``begun_proven_ms`` is this time when the latest batch began, or with ``arrival_target`` that of the
    job, if lower. The open batch and earlier batches contain all input up to the processing time
    ``input_known_until_ms``; None if unknown. ``previous`` is the latest batch of this checkpoint when the open batch
    began, and ``previous_open`` tells whether it was open then. ``released`` is true if the open batch no longer holds
    W. ``retired`` is true if only a new run may continue the query. If ``tells_output`` is true, the client tells the
    *output watermark* of the query: everything that its functions write for event times below ``output_watermark`` is
    written. ``begun_revision`` is the revision of the configuration when the latest batch began. ``confirmed_ms`` is
    the observed time of the job at which the query last gave evidence for all its idle substreams, if the job declares
    frames: it had read all their input up to the processing time ``confirmed_until_ms``. ``outputs`` contains the
    versions of the tables that the query writes, by table, the one told last at the end.
    """

    query_id: str
    run_id: str
    last_contact_ms: int
    fenced_runs: list[str] = field(default_factory=list)
    latest: int | None = None
    open: bool = False
    begun_ms: int | None = None
    begun_observed_ms: int = 0
    begun_by: str | None = None
    begun_merged: int | None = None
    input_known_until_ms: int | None = None
    previous: int | None = None
    previous_open: bool = False
    released: bool = False
    retired: bool = False
    tells_output: bool = False
    output_watermark: int | None = None
    begun_revision: int = 1
    confirmed_ms: int | None = None
    confirmed_until_ms: int | None = None
    outputs: dict[str, str] = field(default_factory=dict)
    idle_clock_observed_ms: int | None = None
    proven_ms: int | None = None
    begun_proven_ms: int | None = None
    waited_ms: int = 0
    outage_ms: int = 0
    pinned_watermarks: dict[int, int | None] = field(default_factory=dict)
    staged: Staged = field(default_factory=Staged)
    offsets: CommittedOffsets | None = None

    @property
    def checkpoint_offsets(self) -> CommittedOffsets | None:
        """The offsets of the latest committed batch of this checkpoint that told them; None if no batch told them."""
        is_current = self.offsets is not None and self.offsets.query_id == self.query_id
        return self.offsets if is_current else None

    @property
    def pinned_watermark(self) -> int | None:
        """The pinned watermark of the latest batch; None if that batch, or the query, has none."""
        return None if self.latest is None else self.pinned_watermarks.get(self.latest)


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold by an operator."""

    hold: str = described("Name of the hold.", example="audit")
    at_most: int = described("The watermark stays at or below this value.", example=1357552800000)
    expires_ms: int | None = described(
        "Processing time at which the hold expires. Null if it does not expire.", example=1357561860000
    )
    reason: str = described("Reason stated by the operator.", example="Audit of January")

    def in_force(self, now_ms: int) -> bool:
        """Return whether the hold is in force at ``now_ms``."""
        return self.expires_ms is None or self.expires_ms > now_ms


# Consumers of frames


@dataclass(frozen=True, slots=True, order=True)
class ConsumerPosition:
    """The position of a consumer: the last generation of a frame that it has delivered.

    Generations have a total order: by the time at which they were made, then by frame, then by number.
    """

    at_ms: int = described("Processing time at which the generation was made (`at_ms`).", example=1357558201000)
    start: int = described("Start of the frame.", example=1357552800000)
    generation: int = described("Number of the generation.", example=1)


@dataclass(frozen=True, slots=True)
class Consumer:
    """A program that delivers each generation of each frame, with one or several processes.

    Attributes:
        consumer: Name of the consumer.
        owner: Process that has, or had, the lease.
        lease_until_ms: Processing time at which the lease ends.
        position: Everything up to this position is delivered; None: nothing is delivered.
        moved_ms: Processing time of the last movement of the position; None if it has not moved.
    """

    consumer: str
    owner: str
    lease_until_ms: int
    position: ConsumerPosition | None = None
    moved_ms: int | None = None


MAX_CONSUMERS = 100
"""Maximum number of consumers of a job."""


# Frames


@dataclass(frozen=True, slots=True)
class ExcludedSubstream:
    """A substream that did not count, with its watermark."""

    substream: str = described("Name of the substream, as `query/substream`.", example="departures/HNL")
    watermark: int | None = described("Watermark of the substream at that time.", example=1357549200000)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """What did not count when the watermark passed the end of a frame, and why.

    ``up_to`` is the highest event time that the job had when the substreams were removed or the offsets were lost. The
    exclusion concerns frames that start at or before this time. None: all frames.
    """

    reason: str = described(
        "Limit or action: `query_timeout_ms`, `idle_timeout_ms` (of reports without batches), `max_retention_ms`, "
        "`max_skew_ms`, `max_batch_hold_ms`, a parameter of a policy, `behind` (the watermark had already passed the "
        "substream), `silent_query` (its query has not confirmed lately that it has no data), `idle`, `evict`, "
        "`retire`, `hand_over`, `offsets_skipped` or `offsets_restarted`.",
        example="query_timeout_ms",
    )
    count: int = described("Number of substreams, batches or offsets.", example=1)
    watermark: int | None = described("Lowest of their watermarks.", example=1357549200000)
    substreams: tuple[ExcludedSubstream, ...] = described("The first 20 substreams, lowest watermark first.")
    query: str | None = described("Query of the batch or the offsets.", example=None, default=None)
    batch_id: int | None = described("Batch that the watermark passed.", example=None, default=None)
    partitions: tuple[str, ...] = described("The first 20 partitions with lost offsets.", example=[], default=())
    up_to: int | None = described(
        "The exclusion concerns frames that start at or before this time. Null: all frames.",
        example=None,
        default=None,
    )

    def concerns(self, start: int, end: int) -> bool:
        """Return whether a frame ends above the lowest watermark, and starts at or before ``up_to``."""
        is_below = self.watermark is None or self.watermark < end
        return is_below and (self.up_to is None or start <= self.up_to)

    def of_frame(self, end: int) -> "Exclusion":
        """Return the exclusion without the substreams that had reached the end of a frame, if all are named."""
        below = tuple(each for each in self.substreams if each.watermark is None or each.watermark < end)
        if len(self.substreams) != self.count or len(below) == self.count:
            return self
        return replace(self, count=len(below), substreams=below)


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """A query and its latest committed batch."""

    query: str = described("Name of the query.", example="departures")
    batch_id: int | None = described("Its latest committed batch.", example=41)


@dataclass(frozen=True, slots=True)
class FrameOutput:
    """A table that a query writes, with its version when a generation of a frame was made."""

    query: str = described("Name of the query.", example="hourly")
    table: str = described("Name of the table.", example="lake.db.hours")
    version: str = described("Version of the table, as the query has told it.", example="5937117119577207000")


@dataclass(frozen=True, slots=True)
class FrameRecord:
    """The record of consecutive frames that W passed in one step, and that the same exclusions concern.

    Attributes:
        start: Start of the first frame.
        end: End of the last frame.
        watermark: W after the step.
        read_ms: Processing time of the step.
        generation: Their first generation.
        reason: Why their first generation is not 1; "" if it is.
        exclusions: What did not count then.
        silent: Substreams that were idle, and whose query had confirmed that they have no data.
        queries: The first 20 queries.
        uncounted_up_to: Frames that start at or before this time may have had rows that no client had counted when they
            were finished, or proven empty.
        finished_ms: Processing time of the step that finished the frames; None if they are not finished.
        proven_ms: Processing time of the step that proved frames without rows empty; None if no step has.
        outputs: Versions of the first 20 tables when the frames were finished.
        record: Id of the record of the history about the step; None in the model.
    """

    start: int
    end: int
    watermark: int
    read_ms: int
    generation: int
    reason: str
    exclusions: tuple[Exclusion, ...]
    silent: Exclusion | None
    queries: tuple[QueryBatch, ...]
    uncounted_up_to: int | None
    finished_ms: int | None = None
    proven_ms: int | None = None
    outputs: tuple[FrameOutput, ...] = ()
    record: str | None = None


@dataclass(frozen=True, slots=True)
class FrameGeneration:
    """A generation of a finished frame after its first: the rows that were added, when and why, and the tables then."""

    generation: int
    at_ms: int
    reason: str
    added: HourCounts
    outputs: tuple[FrameOutput, ...] = ()


class Completion(NamedTuple):
    """The end of a frame, and the processing time at which it was finished."""

    end: int
    finished_ms: int

    @property
    def delay_ms(self) -> int:
        """The delay of the frame."""
        return self.finished_ms - self.end


@dataclass(slots=True)
class FrameLog:
    """The frames of a job. Frames are numbered as in :mod:`tidegate.domain.calendar`.

    Attributes:
        unread: Number of the first frame that W has not passed; None before the first watermark.
        unfinished: Number of the first frame that is not finished.
        has_begun: Whether the log has had a record. The first record begins with the first frame that has rows.
        base: Generations before the last reset or change of the frames are at most this number.
        reason: The reason for ``base``.
        latest_generation: The highest generation of any frame.
        uncounted_up_to: Highest event time of rows that no client has counted.
        records: The records, by the start of their first frame.
        rows: Counted rows by the start of their frame.
        changes: Rows that were added to a finished frame since its last generation, by its start, with the observed
            time at which they make the next generation.
        generations: Generations of finished frames after the first, by the start of the frame.
        losses: Exclusions of removed substreams and lost offsets, which concern frames that W has not passed.
        unproven: Starts of the records whose frames without rows wait for evidence, in order.
        writing: By query, the frames that W has passed and whose results its latest batch has changed. The query has
            not yet told that it has written them.
        revision: Revision of the configuration that has declared the frames.
        has_more: Whether the last command has left records or generations to complete.
        totals: Numbers of finished frames by state, and of generations (``corrected``).
        delays: Numbers of frames by delay from their end to their completion: ``delays[i]`` is the number of those up
            to ``DELAYS_MS[i]`` and above the one before.
        delay_sum_ms: Sum of these delays.
        began_ms: Processing time at which the first frame was finished; None before.
        completions: Completions of the latest frames that ended after this time, in the order in which they were
            finished.
    """

    unread: int | None = None
    unfinished: int | None = None
    has_begun: bool = False
    base: int = 0
    reason: str = ""
    latest_generation: int = 0
    uncounted_up_to: int | None = None
    records: dict[int, FrameRecord] = field(default_factory=dict)
    rows: dict[int, HourCounts] = field(default_factory=dict)
    changes: dict[int, tuple[int, HourCounts]] = field(default_factory=dict)
    generations: dict[int, list[FrameGeneration]] = field(default_factory=dict)
    losses: list[Exclusion] = field(default_factory=list)
    unproven: list[int] = field(default_factory=list)
    writing: dict[str, list[int]] = field(default_factory=dict)
    revision: int = 1
    has_more: bool = False
    totals: Counter[str] = field(default_factory=Counter)
    delays: Counter[int] = field(default_factory=Counter)
    delay_sum_ms: int = 0
    began_ms: int | None = None
    completions: list[Completion] = field(default_factory=list)


@dataclass
class JobState:
    """The state of one job.

    ``unattended_ms`` is the total time in which no coordinator ran. *Observed time* excludes this time; limits on
    silence are in observed time, and holds expire by it. A gap between two commands is unattended if it is longer than
    ``unattended_after_ms`` and the job had a next change. If ``unattended_after_ms`` is None, no gap is unattended, as
    in the conformance traces. ``max_substreams`` is None if the number of substreams is not limited.

    ``merged_highest`` is the highest merged watermark that was offered to the throttle. ``evaluation_due`` is true if a
    command has left work for the next evaluation. ``recorded`` contains C, W and the written watermark of the last
    recorded movement.
    ``proven_ms`` is the result of :func:`tidegate.domain.limits.proven_until` at the last evaluation, with
    ``arrival_target``.
    ``known_bounds`` is for a part of a job: the results of ``skew_bound`` and ``arrival_bound`` in
    :mod:`tidegate.domain.limits` for the whole job, by the number of substreams that count in the part.
    ``limits_passed`` contains the limits that let C pass substreams since the last reply. ``was_restored`` tells
    whether the current command has restored a watermark that the store had lost.
    """

    config: JobConfig
    now_ms: int
    incarnation: int = 1
    state_epoch: str = ""
    numbers: NumberRange = EXACT_DOUBLE
    unattended_after_ms: int | None = None
    max_substreams: int | None = None

    revision: int = 1
    unattended_ms: int = 0
    is_complete: bool = False
    completed_ms: int = 0
    last_contact_ms: int | None = None
    max_event_time: int | None = None

    coalesced_watermark: int | None = None
    coalesced_watermark_since_ms: int = 0
    watermark: int | None = None
    watermark_since_ms: int = 0
    written_watermark: int | None = None
    max_watermark: int | None = None
    merged_highest: int | None = None
    all_idle: bool = False
    retention: TimestampHistory | None = None
    proven_ms: int | None = None
    known_bounds: dict[int, tuple[int | None, int | None]] | None = None

    substreams: dict[SubstreamKey, Substream] = field(default_factory=dict)
    queries: dict[str, Query] = field(default_factory=dict)
    last_seen: dict[str, int] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    consumers: dict[str, Consumer] = field(default_factory=dict)

    row_counts: dict[SubstreamKey, RowCounts] = field(default_factory=dict)
    reported_rows: dict[SubstreamKey, int] = field(default_factory=dict)
    future_rows: dict[SubstreamKey, int] = field(default_factory=dict)
    diverted_rows: dict[SubstreamKey, int] = field(default_factory=dict)
    delays: dict[SubstreamKey, Sketch] = field(default_factory=dict)
    arrivals: Arrivals = field(default_factory=Arrivals)
    delay_statistics: DelayStatistics = field(default_factory=DelayStatistics)
    ledger: Ledger = field(default_factory=Ledger)
    frames: FrameLog = field(default_factory=FrameLog)
    total: RowCounts = NO_ROWS
    future_total: int = 0
    diverted_total: int = 0
    tokens_ignored: int = 0
    emissions: int = 0
    throttled: int = 0
    limits: Counter[str] = field(default_factory=Counter)
    history: History = field(default_factory=History)
    timeline: Timeline = field(default_factory=Timeline)

    evaluation_due: bool = False
    unattended_at_evaluation_ms: int | None = None
    recorded: tuple[int | None, int | None, int | None] = (None, None, None)
    limits_passed: tuple[dict[str, object], ...] = ()
    was_restored: bool = False

    def polls(self, substream: Substream) -> bool:
        """Return whether evaluations poll a substream.

        A watermark follows the clock also while its substream is idle. A limit that makes a substream idle would
        otherwise lower the max watermark, and with it the watermark of the job.
        """
        follows = substream.policy.follows_clock and not self.config.freezes_idle
        return substream.counts or (follows and not substream.done)

    @property
    def moment(self) -> Moment:
        """The current processing time, and the observed time of the job."""
        return Moment(self.now_ms, self.now_ms - self.unattended_ms)
