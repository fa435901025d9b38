"""The data of a job, its queries and its substreams."""

import math
from collections import Counter
from dataclasses import dataclass, field

from tidegate.domain.config import JobConfig
from tidegate.domain.history import History
from tidegate.domain.journal import Journal
from tidegate.domain.ledger import Ledger
from tidegate.domain.names import SubstreamKey
from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange, highest
from tidegate.domain.policy import Policy, PolicyState, ProcessingTime
from tidegate.domain.results import Hold
from tidegate.domain.rows import RowCounts
from tidegate.domain.sketch import Sketch
from tidegate.domain.staging import Staged
from tidegate.domain.timeline import Timeline


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
    never goes back. ``last_event_ms`` is in the observed time of the query. ``since_ms`` is the processing time at
    which the state of the substream last changed; None if it has not changed. ``forced_idle`` is true if an operator
    declared the substream idle, or its query timed out; ``set_aside`` is true in the first case.
    """

    policy: Policy
    policy_state: PolicyState
    last_event_ms: int
    max_event_time: int | None = None
    watermark: int | None = None
    done: bool = False
    idle: bool = False
    forced_idle: bool = False
    set_aside: bool = False
    since_ms: int | None = None

    @property
    def counts(self) -> bool:
        """Whether the substream counts towards the merged watermark."""
        return not (self.done or self.idle)

    @property
    def uncapped_watermark(self) -> int | None:
        """The watermark without the cap of a report; the next evaluation raises ``watermark`` to this value."""
        return highest(self.watermark, self.policy_state.watermark)


@dataclass(slots=True)
class Query:
    """One Spark query. A batch is *open* from its begin to its commit; a query has at most one open batch.

    ``outage_ms`` is the time that its runs waited for an unavailable coordinator. *Observed time* excludes this time.
    ``idle_clock_ms`` is the observed time up to which the query is known to have processed all input.
    ``begun_observed_ms`` is the observed time of the job at which the latest batch began. ``begun_merged`` is C
    without the throttle at that time. The open batch and earlier batches contain all input up to the processing time
    ``input_known_until_ms``; None if unknown. ``previous`` is the latest batch of this checkpoint when the open batch
    began, and ``previous_open`` tells whether it was open then. ``released`` is true if the open batch no longer holds
    W. ``retired`` is true if only a new run may continue the query.
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
    idle_clock_ms: int | None = None
    waited_ms: int = 0
    outage_ms: int = 0
    pinned_watermarks: dict[int, int | None] = field(default_factory=dict)
    staged: Staged = field(default_factory=Staged)


@dataclass(slots=True)
class DelayStatistics:
    """The delays of all rows of a job, and the latency in addition to the lag.

    ``pool`` contains the delays behind the max event time of the row's substream. ``merged`` contains the delays behind
    the watermark that the job would have without any lag. That watermark follows the slowest substream, so it decides
    which rows are late. ``wait_sum / wait_weight`` is the average latency: the distance from an event time that the
    watermark passes to the max event time minus the lag.
    """

    pool: Sketch = field(default_factory=Sketch)
    merged: Sketch = field(default_factory=Sketch)
    wait_sum: float = 0.0
    wait_weight: int = 0

    @property
    def wait(self) -> int | None:
        """The average latency in addition to the lag; None until the watermark has moved."""
        return math.floor(self.wait_sum / self.wait_weight + 0.5) if self.wait_weight else None


@dataclass
class JobState:
    """The state of one job.

    ``unattended_ms`` is the total time in which no coordinator ran. *Observed time* excludes this time; limits on
    silence are in observed time, and holds expire by it. A gap between two commands is an outage if it is longer than
    ``unattended_after_ms`` and the job had a next change. If ``unattended_after_ms`` is None, no gap is an outage, as
    in the conformance traces. ``max_substreams`` is None if the number of substreams is not limited.

    ``merged_highest`` is the highest merged watermark that was offered to the throttle. ``evaluation_due`` is true if a
    command has left work for the next evaluation. ``recorded`` contains C and W of the last recorded movement.
    ``limits_passed`` contains the limits that let C pass substreams since the last reply.
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
    max_watermark: int | None = None
    merged_highest: int | None = None
    all_idle: bool = False
    retention: History | None = None

    substreams: dict[SubstreamKey, Substream] = field(default_factory=dict)
    queries: dict[str, Query] = field(default_factory=dict)
    last_seen: dict[str, int] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)

    counts: dict[SubstreamKey, RowCounts] = field(default_factory=dict)
    reported_rows: dict[SubstreamKey, int] = field(default_factory=dict)
    future_rows: dict[SubstreamKey, int] = field(default_factory=dict)
    diverted_rows: dict[SubstreamKey, int] = field(default_factory=dict)
    delays: dict[SubstreamKey, Sketch] = field(default_factory=dict)
    delay_statistics: DelayStatistics = field(default_factory=DelayStatistics)
    ledger: Ledger = field(default_factory=Ledger)
    total: RowCounts = field(default_factory=RowCounts)
    future_total: int = 0
    diverted_total: int = 0
    tokens_ignored: int = 0
    emissions: int = 0
    throttled: int = 0
    limits: Counter[str] = field(default_factory=Counter)
    journal: Journal = field(default_factory=Journal)
    timeline: Timeline = field(default_factory=Timeline)

    evaluation_due: bool = False
    unattended_at_evaluation_ms: int | None = None
    recorded: tuple[int | None, int | None] = (None, None)
    limits_passed: tuple[dict[str, object], ...] = ()

    def polls(self, substream: Substream) -> bool:
        """Return whether evaluations poll a substream.

        A watermark follows the clock also while its substream is idle. A limit that makes a substream idle would
        otherwise lower the max watermark, and with it the watermark of the job.
        """
        follows = substream.policy.follows_clock and not self.config.freezes_idle
        return substream.counts or (follows and not substream.done)

    @property
    def processing_time(self) -> ProcessingTime:
        """The current time by the clock and in the observed time of the job."""
        return ProcessingTime(self.now_ms, self.now_ms - self.unattended_ms)
