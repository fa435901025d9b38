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

RowsByDelay = tuple[tuple[int, int], ...]
"""Rows by bucket of delay: see :mod:`tidegate.domain.sketch`."""


@dataclass(frozen=True, slots=True)
class Run:
    """Identifies the caller: the stable name of the query, its checkpoint, and the current run."""

    query: str
    query_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class PinnedWatermark:
    """A pinned watermark that the client keeps beside its checkpoint; None: the job had no watermark."""

    value: int | None


@dataclass(frozen=True, slots=True)
class TokenClaim:
    """The claim of a valid watermark token: this incarnation of the job emitted this watermark."""

    incarnation: int
    watermark: int | None


@dataclass(slots=True)
class Substream:
    """One substream of one query.

    A substream that is declared but not reported has no max event time and no watermark, so it holds its job.
    ``watermark`` never goes back. ``last_event_ms`` is in the observed time of its query. ``since_ms`` is the
    processing time of the last change of its state. ``forced_idle``: an operator declared it idle, or its query timed
    out.
    """

    policy: Policy
    policy_state: PolicyState
    last_event_ms: int
    max_event_time: int | None = None
    watermark: int | None = None
    done: bool = False
    idle: bool = False
    forced_idle: bool = False
    since_ms: int = 0

    @property
    def counts(self) -> bool:
        """Whether the merged watermark waits for this substream."""
        return not (self.done or self.idle)

    @property
    def uncapped_watermark(self) -> int | None:
        """The watermark without the cap of a report; the next evaluation moves the watermark there."""
        return highest(self.watermark, self.policy_state.watermark)


@dataclass(slots=True)
class Query:
    """One Spark query. A batch is *open* from its begin to its commit; a query has at most one open batch.

    ``outage_ms`` is the time that its runs waited for an unavailable coordinator. *Observed time* excludes it.
    ``idle_clock_ms`` is the observed time up to which the query is known to have processed all input.
    ``begun_observed_ms`` is in the observed time of the job; ``begun_merged`` is the unthrottled C at that moment.
    ``input_known_until_ms``: the open batch and those before it hold all input up to that processing time; None if that
    is unknown. ``released``: the open batch no longer holds W. ``retired``: only a new run brings the query back.
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
    released: bool = False
    retired: bool = False
    idle_clock_ms: int | None = None
    waited_ms: int = 0
    outage_ms: int = 0
    pinned_watermarks: dict[int, int | None] = field(default_factory=dict)
    staged_event_times: dict[str, int] = field(default_factory=dict)
    staged_watermarks: dict[str, int] = field(default_factory=dict)
    staged_rows: dict[tuple[int, str], int] = field(default_factory=dict)
    staged_future_rows: dict[tuple[int, str], int] = field(default_factory=dict)
    staged_delays: dict[tuple[int, str], RowsByDelay] = field(default_factory=dict)


@dataclass(slots=True)
class DelayStatistics:
    """The delays of all rows of a job, and the latency that waiting costs in addition to the lag.

    ``pool`` has the delays behind the max event time of the row's own substream. ``merged`` has the delays behind the
    watermark that the job would have without any lag. That watermark waits for the slowest substream, so it decides
    which rows are late. ``wait_sum`` is, over ``wait_weight`` of progress of the watermark, how far the max event time
    was ahead of what the watermark passed, less the lag.
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

    ``unattended_ms`` is the time in which no coordinator evaluated the job. *Observed time* excludes it; limits on
    silence are measured in observed time. ``unattended_after_ms``: a longer gap between two commands is an outage if
    the job waited for time to pass; None: no gap is an outage, as in the traces. ``max_substreams``: limit on reports
    and declarations.

    ``merged_highest`` is the highest merged watermark that was offered to the throttle. ``evaluation_due``: the next
    evaluation has to complete a command. ``recorded`` are C and W of the last recorded emission, ``limits_passed`` the
    limits that acted since.
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

    evaluation_due: bool = False
    unattended_at_evaluation_ms: int | None = None
    recorded: tuple[int | None, int | None] = (None, None)
    limits_passed: tuple[dict[str, object], ...] = ()

    @property
    def processing_time(self) -> ProcessingTime:
        """The current time by the clock and in the observed time of the job."""
        return ProcessingTime(self.now_ms, self.now_ms - self.unattended_ms)
