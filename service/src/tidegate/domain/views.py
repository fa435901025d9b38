"""The reads of a job: its summary, substreams and queries, its health, and what holds its watermark."""

from collections.abc import Iterable, Iterator
from copy import copy, deepcopy
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from tidegate.domain import commands
from tidegate.domain.completeness import NO_ROWS, RowCounts
from tidegate.domain.evaluate import (
    LimitDeadline,
    batch_deadlines,
    observed_time,
    outage_ms,
    query_deadlines,
    state_of,
)
from tidegate.domain.frames import FrameCounts, count_frames
from tidegate.domain.history import History
from tidegate.domain.job import COUNTED_STATES, Hold, JobState, Substream, SubstreamState, TableVersion
from tidegate.domain.limits import ArrivalDelay, arrival_delay, is_skewed, median_watermark, skew_bound
from tidegate.domain.offsets import OffsetsStatus
from tidegate.domain.results import Holder, JobWatermark
from tidegate.domain.values import DIRECT, PLACEHOLDER, SubstreamKey, above, described

# The summary


@dataclass(frozen=True, slots=True)
class JobSummary:
    """The summary of a job.

    ``active`` includes blocked substreams, and not skewed ones. ``emissions`` is the number of advances of W.
    ``throttled`` is the number of advances of the merged watermark after which the throttle did not move C.
    ``last_contact_ms`` is the time of the last client call; None before the first call. ``limits`` contains the number
    of times that each limit acted. ``unread_offsets`` and ``skipped_offsets`` are by query, for those whose batches
    tell their offsets. ``frames`` is None if the job declares no frames.
    """

    max_event_time: int | None
    max_watermark: int | None
    active: int
    skewed: int
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
    unread_offsets: dict[str, int] = field(default_factory=dict)
    skipped_offsets: dict[str, int] = field(default_factory=dict)
    frames: FrameCounts | None = None
    arrivals: ArrivalDelay | None = None


def status(job: JobState) -> JobSummary:
    """Return the summary of a job."""
    named = [substream for (_, name), substream in job.substreams.items() if name != PLACEHOLDER]
    told = {name: of for name, query in job.queries.items() if (of := query.checkpoint_offsets) is not None}
    done = len(named) if job.is_complete else sum(substream.done for substream in named)
    idle = 0 if job.is_complete else sum(substream.idle and not substream.done for substream in named)
    bound = skew_bound(job)
    skewed = 0 if job.is_complete else sum(is_skewed(substream, bound) for substream in named)
    return JobSummary(
        max_event_time=job.max_event_time,
        max_watermark=job.max_watermark,
        active=len(named) - skewed - idle - done,
        skewed=skewed,
        idle=idle,
        done=done,
        all_idle=job.all_idle,
        counts=job.total,
        future_rows=job.future_total,
        tokens_ignored=job.tokens_ignored,
        emissions=job.emissions,
        throttled=job.throttled,
        last_contact_ms=job.last_contact_ms,
        open_batches=sum(query.open for query in job.queries.values()),
        limits=dict(job.limits),
        holds=tuple(job.holds[hold] for hold in sorted(job.holds)),
        missing_queries=tuple(sorted(query for query, name in job.substreams if name == PLACEHOLDER)),
        unread_offsets={name: of.unread for name, of in told.items() if of.unread is not None},
        skipped_offsets={name: of.skipped for name, of in told.items()},
        frames=count_frames(job),
        arrivals=arrival_delay(job),
    )


# Substreams and queries


@dataclass(frozen=True, slots=True)
class SubstreamStatus:
    """One substream of one query."""

    query: str = described("Query. Empty for reports without batches.", example="departures")
    substream: str = described("Name of the substream.", example="HNL")
    state: SubstreamState = described(
        "`active`: counts towards the minimum. `blocked`: silent for longer than the idle timeout, but counts until "
        "its query confirms that it has no data. `skewed`: too far behind the median, does not hold the watermark "
        "until it catches up. `idle`: does not count. `done`: ended, does not count.",
        example="active",
    )
    since_ms: int | None = described(
        "Processing time since which the substream has this state. Null if the state has not changed since the first "
        "report or the declaration of the substream, and for `skewed`.",
        example=1357527600000,
    )
    watermark: int | None = described("Watermark of the substream.", example=1357552800000)
    max_event_time: int | None = described("Highest event time of the substream.", example=1357554600000)
    skew: int | None = described(
        "Distance behind the median watermark of the substreams that count, in milliseconds; negative if ahead. Null "
        "without a watermark, or if the median is that of a substream without one.",
        example=1800000,
    )
    # Of the last report that took effect, plus all later outages of the query.
    last_event_ms: int = described(
        "Processing time at which the last report of the substream took effect.", example=1357554612000
    )
    lag: int | None = described(
        "Lag of the substream's policy in milliseconds. Null if the policy has no lag.", example=1800000
    )
    policy: str | None = described(
        "Pattern of the override that applies. Null if the policy of the job applies.", example="HNL*"
    )
    # Only the totals of the job include rows from before the substream was known.
    reported: int = described("Rows that were reported in committed batches.", example=1843)
    future_rows: int = described("Ignored rows and reports, whose event times are too far in the future.", example=0)
    rows: RowCounts = described("Committed rows by row class.")


def substreams(job: JobState, now_ms: int) -> list[SubstreamStatus]:
    """Return all substreams, sorted by query and name, with their states at ``now_ms``."""
    now_ms = max(now_ms, job.now_ms)
    named = [item for item in sorted(job.substreams.items()) if item[0][1] != PLACEHOLDER]
    bound, median = skew_bound(job), median_watermark(job)
    return [_substream(job, key, substream, now_ms, bound, median) for key, substream in named]


def _substream(
    job: JobState, key: SubstreamKey, substream: Substream, now_ms: int, bound: int | None, median: int | None
) -> SubstreamStatus:
    query, name = key
    timeout = job.config.idle_timeout_ms
    state = "done" if job.is_complete else state_of(substream, observed_time(job, query, now_ms), timeout, bound)
    last_event_ms = substream.last_event_observed_ms + outage_ms(job, query)
    since_ms = substream.since_ms
    if job.is_complete and not substream.done:
        since_ms = job.completed_ms + job.unattended_ms
    elif state == "blocked" and timeout is not None:
        since_ms = last_event_ms + timeout
    elif state == "skewed":
        since_ms = None
    watermark = substream.watermark
    return SubstreamStatus(
        query=query,
        substream=name,
        state=state,
        since_ms=since_ms,
        watermark=watermark,
        max_event_time=substream.max_event_time,
        skew=None if watermark is None or median is None else median - watermark,
        last_event_ms=last_event_ms,
        lag=None if state == "done" else substream.policy_state.lag,
        policy=job.config.override_of(name),
        reported=job.reported_rows.get(key, 0),
        future_rows=job.future_rows.get(key, 0),
        rows=job.row_counts.get(key, NO_ROWS),
    )


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """One query and its latest batch."""

    query: str = described("Name of the query.", example="departures")
    query_id: str = described("Id of the query's checkpoint.", example="7d1f5c5e-9a0b-4a7e-8f63-0c3f3a1d2b4c")
    run_id: str = described("Id of the latest start of the query.", example="c2f7a9d4-51f0-4c2f-a3de-1b7f60d0a9e1")
    batch_id: int | None = described("Number of the latest batch.", example=41)
    batch_open: bool = described("Whether the latest batch is open.", example=True)
    batch_released: bool = described("Whether the batch is open, but a limit let the watermark pass it.", example=False)
    # Only a new run may continue a retired query.
    retired: bool = described("Whether an operator has retired the query.", example=False)
    pinned_watermark: int | None = described("Pinned watermark of the batch.", example=1357552800000)
    begun_ms: int | None = described("Processing time at which the batch began.", example=1357554640000)
    idle_clock_ms: int | None = described(
        "Processing time at which the query was last caught up.", example=1357554630000
    )
    last_contact_ms: int = described("Processing time of the last contact with the query.", example=1357554655000)
    tells_output: bool = described(
        "Whether the client tells when the results of the query are written, as for windows.", example=False
    )
    output_watermark: int | None = described(
        "Output watermark: results for earlier event times are written. Null if nothing is written yet, or the "
        "output of the query follows the watermark.",
        example=None,
    )
    offsets: OffsetsStatus | None = described(
        "How far the query has read the partitions of Kafka. Null if the batches have not told their offsets."
    )
    outputs: list[TableVersion] = described("Versions of the tables that the query writes, sorted by table.")


def sorted_outputs(outputs: Iterable[TableVersion]) -> list[TableVersion]:
    """Return versions of tables, sorted by table."""
    return sorted(outputs, key=lambda each: each.table.encode())


def queries(job: JobState) -> list[QueryStatus]:
    """Return all queries, sorted by name."""
    return [
        QueryStatus(
            query=name,
            query_id=query.query_id,
            run_id=query.run_id,
            batch_id=query.latest,
            batch_open=query.open,
            pinned_watermark=query.pinned_watermark,
            begun_ms=query.begun_ms,
            idle_clock_ms=None
            if query.idle_clock_observed_ms is None
            else query.idle_clock_observed_ms + query.outage_ms,
            last_contact_ms=query.last_contact_ms,
            batch_released=query.open and query.released,
            retired=query.retired,
            tells_output=query.tells_output,
            output_watermark=query.output_watermark,
            offsets=OffsetsStatus.of(query.checkpoint_offsets),
            outputs=sorted_outputs(TableVersion(*each) for each in query.outputs.items()),
        )
        for name, query in sorted(job.queries.items())
    ]


# Health: one word for lists and alerts

Health = Literal["stale", "held", "lagging", "no_watermark", "running", "all_idle", "empty", "complete"]
WORST_FIRST: tuple[Health, ...] = get_args(Health)
LONG_MS = 60_000
"""Time after which an open batch or a silent substream counts as holding the watermark."""


def health(state: JobWatermark, summary: JobSummary, stale_after_ms: int, max_lag_ms: int | None) -> Health:
    """Return the health of a job.

    A job that is held and lagging is ``held``, because its holder is the cause that an operator can act on. Lists show
    the lag beside the health, and an alert compares it with ``max_lag_ms`` in either case.

    ============ ====================================================================================================
    stale        no client call for ``stale_after_ms``, and no open batch
    held         a hold, a missing query, or a blocked or never reported substream holds the watermark, or an open batch
                 or a silent substream has held it for ``LONG_MS``
    lagging      the watermark is more than ``max_lag_ms`` behind processing time
    no_watermark substreams, batches or expected queries exist, but no watermark yet
    running      the job has a watermark, which follows its slowest substream
    all_idle     all substreams are idle
    empty        no substreams, batches or expected queries exist
    complete     the input has ended
    ============ ====================================================================================================
    """
    if state.complete:
        return "complete"
    last_contact_ms, holder = summary.last_contact_ms, state.held_by
    if last_contact_ms is not None and state.now_ms - last_contact_ms >= stale_after_ms and not summary.open_batches:
        return "stale"
    if state.watermark is None:
        known = summary.open_batches + sum(getattr(summary, state) for state in COUNTED_STATES)
        return "no_watermark" if known or summary.missing_queries else "empty"
    if holder is not None:
        silent_since_ms = holder.begun_ms if holder.reason == "open_batch" else holder.last_event_ms
        if is_held(holder.reason, silent_since_ms, state.now_ms):
            return "held"
    if max_lag_ms is not None and state.now_ms - state.watermark > max_lag_ms:
        return "lagging"
    return "all_idle" if holder is None and summary.all_idle else "running"


def is_held(reason: str, silent_since_ms: int | None, now_ms: int) -> bool:
    """Return whether a holder makes its job ``held``: all holders do, except those that may move the watermark soon.

    Args:
        reason: Why the holder holds the watermark.
        silent_since_ms: Begin of an open batch; time of the last events of a substream.
        now_ms: Processing time.
    """
    if reason in ("slow", "open_batch") and silent_since_ms is not None:
        return now_ms - silent_since_ms >= LONG_MS
    return True


# Explanations: the holders of the watermark, their deadlines, and the watermark without them

MAX_HOLDERS = 10


@dataclass(frozen=True, slots=True)
class ExplainedHolder(Holder):
    """A holder, and the watermark without it and the holders before it in the list."""

    until: tuple[LimitDeadline, ...] = described("Limits that let the watermark pass the holder, sorted by time.")
    coalesced_watermark_without: int | None = described(
        "Coalesced watermark without this holder and the holders before it.", example=1357556400000
    )
    watermark_without: int | None = described(
        "Emitted watermark without this holder and the holders before it.", example=1357556400000
    )


@dataclass(frozen=True, slots=True)
class ExplainedWatermark:
    """The holders of the current watermark, in order.

    ``next_step`` is the merged watermark from which the throttle lets C move. None: C has no value, or C follows every
    advance.
    """

    holders: tuple[ExplainedHolder, ...]
    next_step: int | None


def explain(job: JobState, now_ms: int, most: int = 3) -> ExplainedWatermark:
    """Explain a job at ``now_ms`` by its first ``most`` holders, without changing the job.

    An explanation removes each holder from a copy of the job, by the same command that an operator would use. It
    therefore shows the watermarks after this command.
    """
    trial = copy(job)
    trial.history = History()  # the history is expensive to copy, and no command reads it
    trial = deepcopy(trial)
    state = commands.sweep(trial, now_ms)
    last = trial.coalesced_watermark
    next_step = None if last is None else trial.config.throttle.next_step(last, trial.numbers)
    holders: list[ExplainedHolder] = []
    holder = state.held_by
    while holder is not None and len(holders) < min(most, MAX_HOLDERS):
        until = tuple(sorted(_until(trial, holder), key=lambda one: (one.at_ms, one.limit)))
        without = _remove(trial, holder, now_ms)
        members = {each.name: getattr(holder, each.name) for each in fields(Holder)}
        found = ExplainedHolder(
            **members,
            until=until,
            coalesced_watermark_without=without.coalesced_watermark,
            watermark_without=without.watermark,
        )
        holders.append(found)
        holder = without.held_by
    return ExplainedWatermark(tuple(holders), next_step)


def _remove(job: JobState, holder: Holder, now_ms: int) -> JobWatermark:
    """Remove a holder: evict a substream, retire an expected query, abandon an open batch, or release a hold."""
    match holder.reason:
        case "hold":
            assert holder.hold is not None
            return commands.release(job, holder.hold, now_ms)
        case "open_batch":
            return commands.retire(job, holder.query, holder.query, now_ms).state
        case "missing_query":
            return commands.retire(job, holder.query, None, now_ms).state
        case _:
            assert holder.substream is not None
            return commands.evict(job, holder.query, [holder.substream], now_ms).state


def _until(job: JobState, holder: Holder) -> Iterator[LimitDeadline]:
    """Yield the deadlines after which a holder no longer holds the watermark."""
    if holder.reason == "hold":
        assert holder.hold is not None
        expires_ms = job.holds[holder.hold].expires_ms
        if expires_ms is not None:
            yield LimitDeadline("expires_ms", expires_ms, needs_query_report=False)
        return
    if holder.reason == "open_batch":
        yield from batch_deadlines(job, holder.query)
        return
    substream = job.substreams[holder.query, holder.substream or PLACEHOLDER]
    if holder.last_event_ms is not None:  # not a missing query
        yield from _substream_deadlines(job, holder.query, substream, holder.last_event_ms)
    yield from query_deadlines(job, holder.query)
    if job.retention is not None:
        at_ms = job.retention.next_change_ms(lambda value: above(value, job.coalesced_watermark))
        if at_ms is not None:
            yield LimitDeadline("max_retention_ms", at_ms + job.unattended_ms, needs_query_report=False)


def _substream_deadlines(
    job: JobState, query: str, substream: Substream, last_event_ms: int
) -> Iterator[LimitDeadline]:
    idle_timeout_ms = job.config.idle_timeout_ms
    if idle_timeout_ms is not None:
        yield LimitDeadline("idle_timeout_ms", last_event_ms + idle_timeout_ms, needs_query_report=query != DIRECT)
    if substream.policy.limit is not None:
        at = job.moment
        moves_ms = substream.policy_state.next_change_ms(substream.uncapped_watermark, at)
        # Times above numbers.highest are not exact.
        if moves_ms is not None and moves_ms <= job.numbers.highest:
            at_ms = max(moves_ms, at.observed_ms + 1) + job.unattended_ms
            yield LimitDeadline(substream.policy.limit, at_ms, needs_query_report=False)
