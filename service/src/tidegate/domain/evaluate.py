"""Everything between a change and an emitted watermark.

A command advances the clock of the job, changes the state, evaluates the job, and replies. The evaluation decides which
substreams count, merges their watermarks, applies retention, holds and the throttle to get C, and emits W:

- *C* is the minimum watermark of the substreams that count and are not skewed, after retention, holds and the throttle.
- ``W = min(C, pinned watermarks of the open batches that are not released)``.
- The *written watermark* is the minimum of W, the pinned watermarks of all open batches, and the output watermarks
  that queries tell.

C, W and the written watermark do not go back. Source of the merge: Hazelcast Jet, ``WatermarkCoalescer`` and
``EventTimeMapper``; see the conformance traces.

This is the model. In a coordinator, ``store/lua/evaluate.lua`` does the same.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidegate.domain.completeness import MAX_WEIGHT, STEPS, decayed
from tidegate.domain.config import offer
from tidegate.domain.frames import advance_frames, next_generation_ms
from tidegate.domain.history import Kind, named
from tidegate.domain.job import Hold, JobState, Query, Substream, SubstreamState, TokenClaim
from tidegate.domain.limits import arrival_bound, is_skewed, passed_by_limits, proven_until, skew_bound
from tidegate.domain.results import Holder, HoldReason, JobWatermark
from tidegate.domain.values import DIRECT, PLACEHOLDER, SubstreamKey, above, by_value, described, highest, member

# The clock. It never goes back. Observed time excludes the time in which no coordinator ran.


def advance_clock(job: JobState, now_ms: int) -> None:
    """Advance the clock of the job; ignore a time in the past. Unattended time extends the holds that expire."""
    lost_ms = unattended_until(job, now_ms)
    if lost_ms:
        job.unattended_ms += lost_ms
        job.history.write(now_ms, Kind.UNATTENDED, unattended_ms=lost_ms)
        for hold in list(job.holds.values()):
            if hold.expires_ms is not None:
                job.holds[hold.hold] = replace(hold, expires_ms=hold.expires_ms + lost_ms)
    job.now_ms = max(job.now_ms, now_ms)


def unattended_until(job: JobState, now_ms: int) -> int:
    """Return the unattended time that a command at a time would detect; 0 if it would detect none."""
    gap_ms = now_ms - job.now_ms
    is_unattended = job.unattended_after_ms is not None and gap_ms > job.unattended_after_ms
    # A job with a next change is swept regularly, so a longer gap shows that no coordinator ran.
    return gap_ms if is_unattended and next_change_ms(job) is not None else 0


def outage_ms(job: JobState, query: str) -> int:
    """Return the total outage of a query; for reports without batches, the unattended time of the job."""
    if query == DIRECT:
        return job.unattended_ms
    return job.queries[query].outage_ms if query in job.queries else 0


def observed_time(job: JobState, query: str, now_ms: int | None = None) -> int:
    """Convert a processing time (default: now) to the observed time of a query.

    A query may report an outage late. The result is therefore at least the idle clock of the query.
    """
    observed_ms = (job.now_ms if now_ms is None else now_ms) - outage_ms(job, query)
    idle_clock = job.queries[query].idle_clock_observed_ms if query in job.queries else None
    return observed_ms if idle_clock is None else max(observed_ms, idle_clock)


# The evaluation


def evaluate(job: JobState, cap: int | None = None, *, is_sweep: bool = False) -> None:
    """Evaluate the job after a change, or because time has passed.

    Args:
        job: The job.
        cap: Lowest event time of the report that caused the evaluation. Watermarks that follow the clock do not pass
            this time, so that the report does not make its own rows late. None: no cap.
        is_sweep: Whether only time has passed. Retention acts in sweeps only.
    """
    if job.is_complete:
        return
    expire_holds(job)
    release_overdue_batches(job)
    time_out_queries(job)
    time_out_substreams(job)

    counting = {key: substream for key, substream in job.substreams.items() if substream.counts}
    polled = [substream for substream in job.substreams.values() if job.polls(substream)]
    for substream in polled:
        substream.policy_state.poll(job.moment)
        reached = substream.policy_state.watermark
        if cap is not None and reached is not None and substream.policy.follows_clock:
            reached = min(reached, cap)
        substream.watermark = highest(substream.watermark, reached)
    job.unattended_at_evaluation_ms = job.unattended_ms
    job.evaluation_due = cap is not None and any(
        substream.policy.follows_clock and above(substream.uncapped_watermark, cap) for substream in polled
    )

    before, was_all_idle = job.coalesced_watermark, job.all_idle
    job.all_idle = not counting
    job.proven_ms = None if job.config.arrival_target is None else proven_until(job)
    watermarks = [substream.watermark for substream in (*counting.values(), *polled)]
    is_retained = merge(job, minimum(job, cap), watermarks, is_sweep)
    if above(job.coalesced_watermark, before):
        _record_limits(job, is_retained)
    if was_all_idle and not job.all_idle:
        job.history.write(job.now_ms, Kind.NOT_ALL_IDLE)
    elif job.all_idle and not was_all_idle and (not job.substreams or any(not s.done for s in job.substreams.values())):
        job.history.write(job.now_ms, Kind.ALL_IDLE)
    emit(job)
    count_wait(job, before)


def _record_limits(job: JobState, is_retained: bool) -> None:
    """Record the limits that let C pass substreams that count."""
    others = "max_retention_ms" if is_retained else None
    if not above(job.coalesced_watermark, arrival_bound(job)):
        others = "arrival_target"
    for limit, reached in passed_by_limits(job, others).items():
        passed = [item for item in reached if above(job.coalesced_watermark, item[0])]
        if passed:
            passed.sort(key=lambda item: (by_value(item[0]), item[1].encode()))
            job.limits[limit] += 1
            job.limits_passed += ({"limit": limit, **named(name for _, name in passed)},)


# Holds and open batches: what keeps C or W back until it ends


def holds_in_order(job: JobState) -> list[Hold]:
    """Return all holds, sorted by value, then by name. The first one limits C."""
    return sorted(job.holds.values(), key=lambda hold: (hold.at_most, hold.hold.encode()))


def cap_by_holds(job: JobState, watermark: int | None) -> int | None:
    """Return the lower of the watermark and the lowest hold."""
    return None if watermark is None else min([watermark, *(hold.at_most for hold in job.holds.values())])


def expire_holds(job: JobState) -> None:
    """Remove expired holds."""
    for hold in [hold for hold in job.holds.values() if not hold.in_force(job.now_ms)]:
        del job.holds[hold.hold]
        job.history.write(job.now_ms, Kind.HOLD_EXPIRED, hold=hold.hold)


def release_overdue_batches(job: JobState) -> None:
    """Stop open batches from holding W after their deadline."""
    for name, query in job.queries.items():
        for deadline in batch_deadlines(job, name):
            if deadline.at_ms <= job.now_ms:
                query.released = True
                job.limits[deadline.limit] += 1
                job.history.write(job.now_ms, Kind.BATCH_RELEASED, query=name, batch_id=query.latest)


# Idleness: silent substreams do not hold the merged watermark.
#
# The idle clock of a query is the time at which it was last caught up. A substream becomes idle when the idle clock of
# its query is ``idle_timeout_ms`` past the last event of the substream. The idle clock does not advance while the query
# is silent or a batch is open; in that time, a silent substream is *blocked*, not idle. For reports without batches,
# the observed time of the job is the idle clock. A query that has read the input of some substreams only names them
# (``time_out_caught_up``), and its idle clock stays.


def time_out_queries(job: JobState) -> None:
    """Make all substreams of a query idle if the query has made no call for ``query_timeout_ms``."""
    due = [(query, each) for query in job.last_seen for each in query_deadlines(job, query) if each.at_ms <= job.now_ms]
    for query, deadline in due:
        del job.last_seen[query]
        counting = {key: s for key, s in job.substreams.items() if key[0] == query and s.counts}
        _set_idle(job, deadline.limit, query, counting)
        for substream in counting.values():
            substream.forced_idle = True


def time_out_substreams(job: JobState) -> None:
    """Make substreams idle if they were silent for ``idle_timeout_ms`` by the idle clock of their query."""
    if job.config.idle_timeout_ms is None:
        return
    for query in (DIRECT, *job.queries):
        silent = {
            key: substream
            for key, substream in job.substreams.items()
            if key[0] == query and substream.counts and is_silent(job, query, substream)
        }
        _set_idle(job, "idle_timeout_ms", query, silent)


def time_out_caught_up(job: JobState, query: str, observed_ms: int, names: Iterable[str]) -> None:
    """Make those of the named substreams idle that were silent for ``idle_timeout_ms`` at an observed time.

    The query has read all input of these substreams up to that time, but perhaps not that of its other substreams.
    """
    timeout = job.config.idle_timeout_ms
    if timeout is None or job.is_complete:
        return
    named = {key: job.substreams[key] for name in names if (key := (query, name)) in job.substreams}
    silent = {key: s for key, s in named.items() if s.counts and observed_ms - s.last_event_observed_ms >= timeout}
    _set_idle(job, "idle_timeout_ms", query, silent)


def is_silent(job: JobState, query: str, substream: Substream) -> bool:
    """Return whether the idle clock of the query is ``idle_timeout_ms`` past the substream's last event."""
    timeout = job.config.idle_timeout_ms
    clock: int | None = job.moment.observed_ms
    if query != DIRECT:
        clock = job.queries[query].idle_clock_observed_ms if query in job.queries else None
    return timeout is not None and clock is not None and clock - substream.last_event_observed_ms >= timeout


def _set_idle(job: JobState, limit: str, query: str, substreams: dict[SubstreamKey, Substream]) -> None:
    if not substreams:
        return
    for substream in substreams.values():
        substream.idle, substream.since_ms = True, job.now_ms
    job.limits[limit] += 1
    by_silence = sorted(substreams.items(), key=lambda one: (one[1].last_event_observed_ms, member(one[0]).encode()))
    job.history.write(job.now_ms, Kind.IDLE, limit=limit, query=query, **named(member(key) for key, _ in by_silence))


def state_of(
    substream: Substream, observed_ms: int, idle_timeout_ms: int | None, bound: int | None = None
) -> SubstreamState:
    """Return the state of a substream at an observed time of its query; ``bound`` is that of :func:`skew_bound`."""
    if substream.done:
        return "done"
    if substream.idle:
        return "idle"
    if is_skewed(substream, bound):
        return "skewed"
    if idle_timeout_ms is not None and observed_ms - substream.last_event_observed_ms >= idle_timeout_ms:
        return "blocked"
    return "active"


# The coalesced watermark C


def minimum(job: JobState, cap: int | None) -> int | None:
    """Return the lowest watermark of the substreams that hold C; None if any has no watermark, or no substream holds C.

    It is at least as high as :func:`tidegate.domain.limits.arrival_bound`, and as without ``max_skew_ms``. The cap
    applies to the present watermark of each substream that is not skewed, because the machine does not keep which
    substreams were skewed at earlier reports.
    """
    counting = [substream for substream in job.substreams.values() if substream.counts]
    lowest = min((substream.watermark for substream in counting), key=by_value, default=None)
    lowest = highest(lowest, arrival_bound(job)) if counting else None
    bound = skew_bound(job)
    if bound is None or lowest is None:
        return lowest
    within = (_capped(substream, cap) for substream in counting if not is_skewed(substream, bound))
    return highest(lowest, min(within, key=by_value, default=None))


def _capped(substream: Substream, cap: int | None) -> int | None:
    watermark = substream.uncapped_watermark
    if watermark is None or cap is None or not substream.policy.follows_clock:
        return watermark
    return min(watermark, cap)


def merge(job: JobState, minimum: int | None, watermarks: Sequence[int | None], is_sweep: bool) -> bool:
    """Move C to the minimum of the substreams that hold it; return whether retention moved C.

    If no substream counts, C moves to the max watermark. It includes the watermarks of idle substreams that follow the
    clock.
    """
    before = job.coalesced_watermark
    max_watermark = highest(job.max_watermark, *watermarks)
    has_risen, job.max_watermark = above(max_watermark, job.max_watermark), max_watermark
    minimum = job.max_watermark if job.all_idle else minimum
    retained = None
    if job.retention is not None and (is_sweep or has_risen):
        sampled = job.retention.sample(job.moment.observed_ms, job.max_watermark)
        retained = sampled if is_sweep else None
    merged = cap_by_holds(job, highest(minimum, retained))
    advance_coalesced(job, offer(job.config.throttle, merged, before, job.numbers))
    if above(merged, job.merged_highest):
        job.merged_highest = merged
        job.throttled += job.coalesced_watermark == before and above(merged, before)
    return above(job.coalesced_watermark, before) and above(job.coalesced_watermark, minimum)


def merged_watermark(job: JobState) -> int | None:
    """Return the merged watermark: the value that C would have without the throttle."""
    return highest(job.merged_highest, job.coalesced_watermark)


def advance_coalesced(job: JobState, watermark: int | None) -> None:
    """Raise C to a watermark; a lower watermark changes nothing."""
    if above(watermark, job.coalesced_watermark):
        job.coalesced_watermark, job.coalesced_watermark_since_ms = watermark, job.now_ms


def slowest(job: JobState) -> tuple[SubstreamKey, Substream] | None:
    """Return the substream that holds C: it counts, is not skewed, and has the lowest watermark; None if none holds C.

    None holds it if the lowest watermark is below the arrival bound: C then waits for later proof.
    """
    bound = skew_bound(job)
    counting = ((key, s) for key, s in job.substreams.items() if s.counts and not is_skewed(s, bound))
    first = min(
        counting, key=lambda item: (by_value(item[1].uncapped_watermark), member(item[0]).encode()), default=None
    )
    return None if first is None or above(arrival_bound(job), first[1].uncapped_watermark) else first


def count_wait(job: JobState, before: int | None) -> None:
    """Add the latency of the event times in ``(before, C]`` to the statistics."""
    watermark = job.coalesced_watermark
    if before is None or watermark is None or watermark <= before or job.max_event_time is None:
        return
    behind, statistics = slowest(job), job.delay_statistics
    lag = None if behind is None else behind[1].policy_state.lag
    if lag is None:
        return
    step = max(1, job.config.delay_half_life_ms // STEPS)
    remaining = decayed(statistics.wait_weight, watermark // step - before // step)
    weight = min(watermark - before, MAX_WEIGHT - remaining)
    # Compute with doubles, as the functions in Redis do.
    middle = before + (float(watermark) - before + job.config.throttle.slide) / 2
    share = remaining / statistics.wait_weight if statistics.wait_weight else 0.0
    statistics.wait_sum = statistics.wait_sum * share + (float(job.max_event_time - lag) - middle) * weight
    statistics.wait_weight = remaining + weight


# The emitted watermark W, which clients receive


def emit(job: JobState) -> None:
    """Raise W to the lower of C and the lowest pinned watermark of the open batches that are not released."""
    watermark, lowest = job.coalesced_watermark, lowest_open_batch(job)
    if lowest is not None:
        _, query = lowest
        watermark = min(watermark, query.pinned_watermark, key=by_value)
    raise_watermark(job, watermark)


def raise_watermark(job: JobState, watermark: int | None) -> None:
    """Raise W and C to a watermark that is safe to emit or was emitted before."""
    advance_coalesced(job, watermark)
    if above(watermark, job.watermark):
        job.watermark, job.watermark_since_ms = watermark, job.now_ms


def written_bounds(job: JobState) -> Iterator[tuple[int | None, str]]:
    """Yield the bounds of the written watermark, each with its query; W is a further bound.

    The rows of an open batch may be unwritten, also after a limit has let W pass it. A query that is expected, or has
    substreams, but has made no call may have unwritten results from before the store lost its state.
    """
    for name, query in job.queries.items():
        if query.open:
            yield query.pinned_watermark, name
        if query.tells_output and not query.retired:
            yield query.output_watermark, name
    with_substreams = {query for (query, _), substream in job.substreams.items() if not substream.done}
    for name in {*job.config.expected_queries, *with_substreams} - {DIRECT, *job.queries}:
        yield None, name


def lowest_written_bound(job: JobState) -> tuple[int | None, str | None]:
    """Return the written watermark that the queries have reached, and the query that holds it below W, if any."""
    bounds = ((bound, name) for bound, name in written_bounds(job) if above(job.watermark, bound))
    lowest = min(bounds, key=lambda item: (by_value(item[0]), item[1].encode()), default=None)
    return (job.watermark, None) if lowest is None else lowest


def accept_token(job: JobState, token: TokenClaim | None) -> None:
    """Restore a watermark that the store has lost from the latest watermark token of a client.

    A token of an older incarnation is ignored and counted.
    """
    if token is None:
        return
    if token.incarnation < job.incarnation:
        job.tokens_ignored += 1
        return
    was_lost = token.incarnation > job.incarnation or above(token.watermark, job.watermark)
    if token.incarnation > job.incarnation:
        for query in job.queries.values():
            query.offsets = None  # of an earlier incarnation
    job.incarnation = token.incarnation
    raise_watermark(job, token.watermark)
    if was_lost:
        job.was_restored = True
        job.history.write(job.now_ms, Kind.WATERMARK_RESTORED, watermark=token.watermark)


def lowest_open_batch(job: JobState) -> tuple[str, Query] | None:
    """Return the query whose open batch holds W at the lowest pinned watermark; None if no batch holds W."""
    holding = ((name, query) for name, query in job.queries.items() if query.open and not query.released)
    return min(holding, key=lambda item: (by_value(item[1].pinned_watermark), item[0].encode()), default=None)


def held_by(job: JobState) -> Holder | None:
    """Return the holder of W; None if the job is complete or W has no holder."""
    lowest, behind = lowest_open_batch(job), slowest(job)
    if lowest is not None:
        query_name, query = lowest
        if behind is None or above(job.coalesced_watermark, query.pinned_watermark):
            since_ms = job.watermark_since_ms
            return _holder("open_batch", query_name, since_ms, batch_id=query.latest, begun_ms=query.begun_ms)
    if job.is_complete:
        return None
    since_ms = job.coalesced_watermark_since_ms
    furthest = highest(job.max_watermark, arrival_bound(job)) if behind is None else behind[1].uncapped_watermark
    hold = next(iter(holds_in_order(job)), None)
    if hold is not None and above(furthest, hold.at_most):
        return _holder("hold", "", since_ms, hold=hold.hold)
    if behind is None:
        return None
    (query_name, name), substream = behind
    if name == PLACEHOLDER:
        return _holder("missing_query", query_name, since_ms)
    reason: HoldReason = "slow"
    if state_of(substream, observed_time(job, query_name), job.config.idle_timeout_ms) == "blocked":
        reason = "blocked"
    elif substream.max_event_time is None and substream.uncapped_watermark is None:
        reason = "never_reported"
    last_event_ms = substream.last_event_observed_ms + outage_ms(job, query_name)
    return _holder(reason, query_name, since_ms, substream=name, last_event_ms=last_event_ms)


def _holder(reason: HoldReason, query: str, since_ms: int, **given: Any) -> Holder:
    absent = dict.fromkeys(("substream", "batch_id", "hold", "last_event_ms", "begun_ms"))
    return Holder(reason, query, since_ms=since_ms, **absent | given)


# The reply


def watermark_state(job: JobState) -> JobWatermark:
    """Return the current watermark of a job."""
    return JobWatermark(
        job.incarnation,
        job.state_epoch,
        job.now_ms,
        job.watermark,
        job.coalesced_watermark,
        job.written_watermark,
        lowest_written_bound(job)[1],
        job.is_complete,
        held_by(job),
    )


def reply(job: JobState) -> JobWatermark:
    """Raise the written watermark, record the movement since the last reply and its frames; return the watermarks."""
    job.written_watermark = highest(job.written_watermark, lowest_written_bound(job)[0])
    state = watermark_state(job)
    reached = state.coalesced_watermark, state.watermark, state.written_watermark
    if reached != job.recorded:
        kind = Kind.COALESCED_WATERMARK if state.watermark == job.recorded[1] else Kind.EMISSION
        if reached[:2] == job.recorded[:2]:
            kind = Kind.WRITTEN
        job.recorded = reached
        job.emissions += kind == Kind.EMISSION
        details: dict[str, object] = dict(
            zip(("coalesced_watermark", "watermark", "written_watermark"), reached, strict=True)
        )
        if kind != Kind.WRITTEN and state.held_by is not None:
            holder = state.held_by
            details |= {"held_by": holder.reason, "query": holder.query, "substream": holder.substream}
            details |= {"batch_id": holder.batch_id, "hold": holder.hold}
        job.history.write(job.now_ms, kind, **details, limits=list(job.limits_passed) or None)
    advance_frames(job)
    job.timeline.record(state)
    job.limits_passed, job.was_restored = (), False
    return state


# The times at which a job changes without new data


@dataclass(frozen=True, slots=True)
class LimitDeadline:
    """A limit that lets the watermark pass a holder, and the time at which it acts."""

    limit: str = described("Name of the limit, or `expires_ms` for the expiry of a hold.", example="idle_timeout_ms")
    at_ms: int = described(
        "Processing time at which the limit acts if the holder sends nothing.", example=1357555512000
    )
    needs_query_report: bool = described(
        "Whether the limit acts only after the query confirms, by a commit or heartbeat, that it has no data.",
        example=True,
    )


def query_deadlines(job: JobState, query: str) -> Iterator[LimitDeadline]:
    """Yield the deadline after which the substreams of a silent query no longer count, if the job has this limit."""
    timeout, seen_ms = job.config.query_timeout_ms, job.last_seen.get(query)
    if timeout is not None and seen_ms is not None:
        yield LimitDeadline("query_timeout_ms", seen_ms + job.unattended_ms + timeout, needs_query_report=False)


def batch_deadlines(job: JobState, name: str) -> Iterator[LimitDeadline]:
    """Yield the deadline after which the open batch of a query no longer holds W, if the job has this limit."""
    hold_ms, query = job.config.max_batch_hold_ms, job.queries[name]
    if hold_ms is not None and query.open and not query.released:
        at_ms = query.begun_observed_ms + job.unattended_ms + hold_ms
        yield LimitDeadline("max_batch_hold_ms", at_ms, needs_query_report=False)


def next_change_ms(job: JobState) -> int | None:
    """Return the observed time from which an evaluation may change the job; None if only new data can change it."""
    changes = [next_generation_ms(job), job.moment.observed_ms if job.frames.has_more else None]
    if not job.is_complete:
        changes += _changes(job)
    return min((time for time in changes if time is not None), default=None)


def _changes(job: JobState) -> Iterator[int | None]:
    at, idle_timeout_ms = job.moment, job.config.idle_timeout_ms
    if job.evaluation_due:
        yield at.observed_ms
    # The clock advances in unattended time, so substreams that follow the clock are due afterwards.
    was_unattended = job.unattended_at_evaluation_ms not in (None, job.unattended_ms)
    for (query, _), substream in job.substreams.items():
        if job.polls(substream):
            if was_unattended and substream.policy.follows_clock:
                yield at.observed_ms
            yield substream.policy_state.next_change_ms(substream.uncapped_watermark, at)
        if substream.counts and query == DIRECT and idle_timeout_ms is not None:
            yield substream.last_event_observed_ms + idle_timeout_ms
    deadlines = [each for query in job.last_seen for each in query_deadlines(job, query)]
    deadlines += [each for query in job.queries for each in batch_deadlines(job, query)]
    yield from (deadline.at_ms - job.unattended_ms for deadline in deadlines)
    yield from (h.expires_ms - job.unattended_ms for h in job.holds.values() if h.expires_ms is not None)
    if job.retention is not None:
        # Without the newest cell, as at the start and after an eviction, the next evaluation records the value.
        cells = job.retention.cells
        present = job.max_watermark if cells[-1] is None else cells[0]
        if present is not None and _would_move_coalesced(job, present):
            yield at.observed_ms
        yield job.retention.next_change_ms(lambda watermark: _would_move_coalesced(job, watermark))


def _would_move_coalesced(job: JobState, watermark: int) -> bool:
    capped = cap_by_holds(job, watermark)
    return offer(job.config.throttle, capped, job.coalesced_watermark, job.numbers) is not None
