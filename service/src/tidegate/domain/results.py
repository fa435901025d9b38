"""Results of commands and reads: the records that the domain and the store share, field by field."""

from dataclasses import dataclass
from typing import Literal

from tidegate.domain.rows import RowCounts

HoldReason = Literal["slow", "never_reported", "blocked", "missing_query", "open_batch", "hold"]
SubstreamState = Literal["active", "blocked", "idle", "done"]


@dataclass(frozen=True, slots=True)
class Holder:
    """The cause that keeps the emitted watermark where it is.

    ``open_batch``: named by ``query`` and ``batch_id``. ``missing_query``: an expected query whose substreams are not
    known yet. ``hold``: a hold, by its name. Otherwise it is the slowest active substream; its ``query`` is "" for
    reports without batches. ``since_ms`` is the processing time of the last movement of the watermark,
    ``last_event_ms`` that of the substream's last report (see :class:`SubstreamRow`), ``begun_ms`` that of the begin.
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
class WatermarkState:
    """The watermark of a job after a command.

    ``watermark`` is the emitted watermark W, ``coalesced_watermark`` is C. ``now_ms`` is the processing time of the
    command. ``state_epoch`` changes when the store has lost the job.
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
    """The result of a command that may be repeated. ``applied``: this call changed something."""

    state: WatermarkState
    applied: bool


@dataclass(frozen=True, slots=True)
class BeginResult:
    """The result of a begin.

    ``replayed``: the batch was begun before and keeps its ``pinned_watermark``. ``joined``: an unexpected query joins a
    job that has a watermark; its rows below the watermark are late. ``latest_event_time``: later event times are set
    aside. ``previous_batch_id`` and ``previous_open`` describe the latest batch of this checkpoint before this call.
    They show a client that has committed that batch or a later one that the store has lost its latest writes.
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
    """An instruction to keep C at or below ``at_most`` until it is released, or until ``expires_ms``."""

    hold: str
    at_most: int
    expires_ms: int | None
    reason: str

    def in_force(self, now_ms: int) -> bool:
        """Return whether the hold has not expired."""
        return self.expires_ms is None or self.expires_ms > now_ms


@dataclass(frozen=True, slots=True)
class SubstreamRow:
    """One row of the table of substreams.

    ``since_ms``: when ``state`` last changed. ``lag``: None if the policy has none. ``last_event_ms``: processing time
    of the last report that took effect, plus the outages of the query since. ``reported_rows``: rows that executors
    reported in committed batches. ``future_rows``: rows and reports that were set aside. ``counts``: rows that the
    commits of these batches accounted for. Rows from before the substream was known are only in the totals of the job.
    """

    query: str
    substream: str
    state: SubstreamState
    since_ms: int
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

    ``idle_clock_ms``: processing time up to which the query is known to have processed all input. ``batch_released``:
    its open batch no longer holds the watermark. ``retired``: only a new run brings the query back.
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
    """A job as a whole.

    ``active`` includes blocked substreams. ``emissions``: times that W moved. ``throttled``: times that the merged
    watermark moved and the throttle emitted nothing. ``last_contact_ms``: last call of a client; None before the first.
    ``limits``: times that each limit acted.
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
