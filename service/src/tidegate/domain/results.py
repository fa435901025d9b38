"""Results of commands and reads: the records that the domain and the store share, field by field."""

from dataclasses import dataclass
from typing import Literal

from tidegate.domain.rows import RowCounts

HoldReason = Literal["slow", "never_reported", "blocked", "missing_query", "open_batch", "hold"]
SubstreamState = Literal["active", "blocked", "idle", "done"]


@dataclass(frozen=True, slots=True)
class Holder:
    """The substream, open batch, missing query or hold that keeps the emitted watermark at its value.

    By ``reason``, the holder is:

    - ``open_batch``: the batch ``batch_id`` of ``query``,
    - ``missing_query``: the expected query ``query``, whose substreams are not known yet,
    - ``hold``: the hold with the name ``hold``,
    - any other reason: the slowest active substream; ``query`` is "" for reports without batches.

    ``since_ms`` is the processing time at which the watermark last moved. ``last_event_ms`` is the processing time of
    the substream's last report (see :class:`SubstreamRow`). ``begun_ms`` is the processing
    time at which the open batch began.
    """

    reason: HoldReason
    query: str
    substream: str | None
    batch_id: int | None
    since_ms: int
    hold: str | None = None
    last_event_ms: int | None = None
    begun_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Deadline:
    """A limit that lets the watermark pass a holder without new data.

    ``at_ms`` is the earliest processing time at which the limit acts. If ``needs_query_report`` is true, the limit acts
    only after the query of the holder has reported that it has no data.
    """

    limit: str
    at_ms: int
    needs_query_report: bool = False


@dataclass(frozen=True, slots=True)
class WatermarkState:
    """The watermark of a job after a command.

    ``watermark`` is the emitted watermark W, ``coalesced_watermark`` is C. ``now_ms`` is the processing time of the
    command. ``state_epoch`` changes when the job starts with new state: after data loss, a deletion or a
    reset.
    """

    incarnation: int
    state_epoch: str
    now_ms: int
    watermark: int | None
    coalesced_watermark: int | None
    complete: bool
    held_by: Holder | None


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command that may be repeated. ``applied`` is true if this call had an effect."""

    state: WatermarkState
    applied: bool


@dataclass(frozen=True, slots=True)
class BeginResult:
    """The result of the command ``begin``.

    ``replayed`` is true if the batch had already begun and keeps its ``pinned_watermark``. ``joined`` is true if an
    unexpected query joined a job that has a watermark; its rows below the watermark are late. Event times after
    ``latest_event_time`` are set aside. ``previous_batch_id`` and ``previous_open`` describe the latest batch of this
    checkpoint before this call; if this call repeats the begin of an open batch, before the first begin. A client
    compares both with its own commits to detect that the store has lost its
    latest writes.
    """

    state: WatermarkState
    pinned_watermark: int | None
    replayed: bool
    joined: bool = False
    latest_event_time: int | None = None
    previous_batch_id: int | None = None
    previous_open: bool = False
    revision: int = 1


@dataclass(frozen=True, slots=True)
class Hold:
    """An instruction to keep C at or below ``at_most`` until the hold is released or until ``expires_ms``."""

    hold: str
    at_most: int
    expires_ms: int | None
    reason: str

    def in_force(self, now_ms: int) -> bool:
        """Return whether the hold is in force at ``now_ms``."""
        return self.expires_ms is None or self.expires_ms > now_ms


@dataclass(frozen=True, slots=True)
class SubstreamRow:
    """One row of the table of substreams.

    ``since_ms`` is the processing time at which ``state`` last changed; None if it has not changed. ``lag`` is None if
    the policy has no lag. ``last_event_ms`` is the processing time of the last report that took effect, plus all later
    outages of the query. ``reported_rows`` is the number of rows that executors reported in committed batches.
    ``future_rows`` is the number of rows and reports that were set aside. ``counts`` contains the rows by class that
    committed batches accounted for. Only the totals of the job include rows from before the substream was known.
    """

    query: str
    substream: str
    state: SubstreamState
    since_ms: int | None
    watermark: int | None
    max_event_time: int | None
    lag: int | None
    last_event_ms: int
    reported_rows: int
    future_rows: int
    counts: RowCounts


@dataclass(frozen=True, slots=True)
class QueryRow:
    """One query of a job, with its latest batch.

    ``idle_clock_ms`` is the processing time up to which the query is known to have processed all input.
    ``batch_released`` is true if the open batch no longer holds the watermark. ``retired`` is true if only a new run
    may continue the query.
    """

    query: str
    query_id: str
    run_id: str
    batch_id: int | None
    batch_open: bool
    pinned_watermark: int | None
    begun_ms: int | None
    idle_clock_ms: int | None
    last_contact_ms: int
    batch_released: bool = False
    retired: bool = False


@dataclass(frozen=True, slots=True)
class JobSummary:
    """The summary of a job.

    ``active`` includes blocked substreams. ``emissions`` is the number of advances of W. ``throttled`` is the number
    of advances of the merged watermark after which the throttle did not move C. ``last_contact_ms`` is the time of the
    last client call; None before the first call. ``limits`` contains the number of times that each limit acted.
    """

    max_event_time: int | None
    max_watermark: int | None
    active: int
    idle: int
    done: int
    all_idle: bool
    counts: RowCounts
    future_rows: int
    tokens_ignored: int
    emissions: int
    throttled: int
    last_contact_ms: int | None
    open_batches: int
    limits: dict[str, int]
    holds: tuple[Hold, ...]
    missing_queries: tuple[str, ...]
