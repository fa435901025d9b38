"""What the machine answers: the records that the domain and the store both give, field for field."""

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Literal

HolderReason = Literal["slow", "never_reported", "blocked", "missing_query", "open_batch", "hold"]
SubstreamState = Literal["active", "blocked", "idle", "done"]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who keeps the emitted watermark where it is.

    ``open_batch``: ``query`` and ``batch_id`` name it; ``missing_query``: an expected query that has not shown its
    substreams yet; ``hold``: an operator's, by its name; else the live substream that is furthest behind, and ``query``
    is "" where its reports come without batches. ``since_ms`` is the processing time from which on the watermark has
    been where it is; ``last_event_ms`` that at which the substream's last report took effect (see
    :class:`SubstreamRow`); ``begun_ms`` that at which the open batch was begun.
    """

    reason: HolderReason
    query: str
    substream: str | None
    batch_id: int | None
    since_ms: int
    hold: str | None = None
    last_event_ms: int | None = None
    begun_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The state of a job's watermark after a command.

    ``watermark`` is what clients may rely on (emitted); ``coalesced_watermark`` what the data says. ``now_ms`` is the
    processing
    time the command was carried out at. ``state_epoch`` changes when the store has lost the job.
    """

    incarnation: int
    state_epoch: str
    now_ms: int
    watermark: int | None
    coalesced_watermark: int | None
    complete: bool
    held_by: Holder | None


@dataclass(frozen=True, slots=True)
class Begun:
    """The answer to a begin. ``replayed``: this batch was begun before, and ``pinned_watermark`` is the one it got
    then.

    ``joined``: the query is new to a job that has a watermark already, and nobody expected it: what it has from below
    that is late. ``latest_event_time``: what lies beyond it is too far ahead of the clock to be true.
    ``revision``: how often the job's rules were changed, and 1.
    ``previous_batch_id``: the latest batch that was begun on this checkpoint before this call, and whether it was open:
    a client that has committed it, or a later one, sees that the store has lost something.
    """

    answer: Answer
    pinned_watermark: int | None
    replayed: bool
    joined: bool = False
    latest_event_time: int | None = None
    previous_batch_id: int | None = None
    previous_open: bool = False
    revision: int = 1


@dataclass(frozen=True, slots=True)
class Effect:
    """The answer to a command that may be repeated. ``applied``: it changed something this time."""

    answer: Answer
    applied: bool


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows that commits accounted for, by what became of them."""

    on_time: int = 0
    updated: int = 0
    late: int = 0
    null_event_time: int = 0
    future: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        mine, theirs = astuple(self), astuple(other)
        return Counts(*(a + b for a, b in zip(mine, theirs, strict=True)))


@dataclass(frozen=True, slots=True)
class SubstreamRow:
    """One line of the table of substreams.

    ``since_ms``: since when its state is what it is. ``lag``: how far behind its top its policy keeps it, limits aside;
    None where it does not. ``last_event_ms``: when its last report took effect, in processing
    time, moved on by what its query has lost since in waiting for the coordinator. ``reported``: the rows that
    executors said they saw in committed batches; ``future``: those they left out as too far ahead of the clock, and the
    reports ignored for that; ``counts``: the rows that those batches' commits accounted for. Rows that came before the
    substream was known are in the totals of the job alone.
    """

    query: str
    substream: str
    state: SubstreamState
    since_ms: int
    watermark: int | None
    max_event_time: int | None
    lag: int | None
    last_event_ms: int
    reported: int
    future: int
    counts: Counts


@dataclass(frozen=True, slots=True)
class QueryRow:
    """One query of a job, its latest batch, and how long it has been silent.

    ``idle_clock_ms``: up to which processing time this query is known to have taken in everything that was there.
    ``batch_released``: its open batch no longer holds the watermark, for it has been open too long. ``retired``: it was
    ended, and will only come back by a new start.
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


HourOfRows = tuple[int, int, int, int]
"""An hour, the rows of a batch that are of it, how many of these changed a result, and how many were late."""

LateDisposition = Literal["dropped", "diverted"]
"""What a query did with its late rows: nothing, or it gave them to a function of its user's."""


@dataclass(frozen=True, slots=True)
class HourCounts:
    """Rows of one hour: all that came, and what became of those that did not come in time.

    ``updated``: they changed a result that was out; ``dropped``: nobody got them; ``diverted``: a side output did.
    """

    rows: int = 0
    updated: int = 0
    dropped: int = 0
    diverted: int = 0

    def __add__(self, other: "HourCounts") -> "HourCounts":
        return HourCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def late(self) -> int:
        return self.dropped + self.diverted


@dataclass(frozen=True, slots=True)
class Accounting:
    """What became of the rows of one batch, by substream, and the rule they were judged by.

    ``late_disposition``: where all that were late did. ``hours``: of each substream, its rows by hour of event time;
    none
    where that is not known. ``all_hours``: all rows by hour, where ``hours`` has not all of them.
    """

    rule: str
    substreams: tuple[str, ...]
    counts: tuple[Counts, ...]
    late_disposition: LateDisposition = "dropped"
    hours: tuple[tuple[HourOfRows, ...], ...] = ()
    all_hours: tuple[HourOfRows, ...] = ()

    def by_substream(self) -> Iterator[tuple[str, Counts]]:
        return zip(self.substreams, self.counts, strict=True)

    def by_hour(self) -> Iterator[tuple[str, HourOfRows]]:
        for name, hours in zip(self.substreams, self.hours, strict=False):
            for rows in hours:
                yield name, rows


@dataclass(frozen=True, slots=True)
class Hold:
    """An operator's hold: C goes no further than ``at_most`` until it is released, or ``expires_ms`` has come."""

    hold: str
    at_most: int
    expires_ms: int | None
    reason: str

    def stands(self, now_ms: int) -> bool:
        return self.expires_ms is None or self.expires_ms > now_ms


@dataclass(frozen=True, slots=True)
class Summary:
    """The job as a whole. ``active`` counts the blocked ones too. ``limits``: how often each limit has acted.

    ``emissions``: how often the watermark moved; ``throttled``: how often there was more to emit, and the throttle let
    nothing out. ``last_contact_ms``: when a client last reported, or spoke for a query; None: never.
    """

    max_event_time: int | None
    max_watermark: int | None
    active: int
    idle: int
    done: int
    all_idle: bool
    counts: Counts
    future: int
    tokens_ignored: int
    emissions: int
    throttled: int
    last_contact_ms: int | None
    open_batches: int
    limits: dict[str, int]
    holds: tuple[Hold, ...]
    missing_queries: tuple[str, ...]
