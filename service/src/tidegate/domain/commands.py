"""The commands of a job, except those of batches (:mod:`tidegate.domain.batches`).

Each command checks its arguments, advances the clock of the job, changes the state, evaluates the job if watermarks may
move, and replies.

This is the model. In a coordinator, ``store/lua/commands.lua`` and ``configure.lua`` do the same.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from tidegate.domain.batches import give_up
from tidegate.domain.completeness import NO_ROWS, DelayStatistics, Ledger, RowsByDelay
from tidegate.domain.config import JobConfig, offer
from tidegate.domain.errors import (
    BatchOpen,
    HoldActive,
    HoldExists,
    HoldNotFound,
    JobComplete,
    QueryNotFound,
    RevisionMismatch,
    SubstreamDone,
    SubstreamNotFound,
)
from tidegate.domain.evaluate import (
    accept_token,
    advance_clock,
    advance_coalesced,
    cap_by_holds,
    emit,
    evaluate,
    holds_in_order,
    is_silent,
    merged_watermark,
    observed_time,
    raise_watermark,
    reply,
    unattended_until,
)
from tidegate.domain.frames import declare_frames, flush_frames, lose_substreams, miss_rows, reset_frames
from tidegate.domain.history import NO_AUDIT, AuditInfo, Kind, named
from tidegate.domain.job import ANY_VERSION, Arrivals, ConfigVersion, Hold, JobState, Query, Substream, TokenClaim
from tidegate.domain.limits import start_learning
from tidegate.domain.observe import (
    Values,
    add_substream,
    check_event_times,
    check_room,
    end_substreams,
    measure,
    observe,
    raise_to_policy,
    set_aside_future,
)
from tidegate.domain.policies import Policy, Reported, TimestampHistory
from tidegate.domain.results import Effect, JobWatermark
from tidegate.domain.values import DIRECT, PLACEHOLDER, SubstreamKey, above, by_value, highest, member

NO_VALUES: Values = {}
NO_DELAYS: Mapping[str, RowsByDelay] = {}


def _record_action(
    job: JobState, action: str, audit: AuditInfo, query: str = "", names: Sequence[str] = (), **details: object
) -> None:
    """Write an operator's command to the history."""
    if names:
        details |= named(member((query, name)) for name in names)
    job.history.write(
        job.now_ms, Kind.ACTION, action=action, query=query, actor=audit.actor, reason=audit.reason, **details
    )


# The configuration


def create(job: JobState, audit: AuditInfo = NO_AUDIT) -> JobWatermark:
    """Start a new job from its configuration and processing time."""
    job.completed_ms = job.coalesced_watermark_since_ms = job.watermark_since_ms = job.now_ms
    _retain(job)
    declare_frames(job, None)
    job.history.write(job.now_ms, Kind.CREATED, actor=audit.actor, reason=audit.reason)
    _expect_queries(job)
    return reply(job)


def configure(
    job: JobState,
    config: JobConfig,
    now_ms: int,
    audit: AuditInfo = NO_AUDIT,
    version: ConfigVersion = ANY_VERSION,
) -> JobWatermark:
    """Apply a configuration immediately, if the current configuration has a version.

    Watermarks do not go back. A changed policy starts from the max event time of the substream; an equal policy keeps
    its state. Idle substreams become active if they are not silent under the new ``idle_timeout_ms``.

    Raises:
        RevisionMismatch: If the current configuration has another version.
    """
    if version.state_epoch not in (None, job.state_epoch) or version.revision not in (None, job.revision):
        raise RevisionMismatch(job.revision)
    advance_clock(job, now_ms)
    if job.config.idle_timeout_ms is None and config.idle_timeout_ms is not None:
        # The silence of reports without batches was not measured before, so it starts now.
        for (query, _), substream in job.substreams.items():
            if query == DIRECT and not substream.done:
                substream.last_event_observed_ms = job.moment.observed_ms
    flush_frames(job, config.frames)
    before, job.config = job.config, config
    job.revision += 1
    _retain(job)
    start_learning(job, before)
    job.history.write(job.now_ms, Kind.CONFIG, actor=audit.actor, reason=audit.reason)
    declare_frames(job, before.frames)
    for (query, name), substream in job.substreams.items():
        stays_idle = substream.done or substream.forced_idle or is_silent(job, query, substream)
        if substream.idle and not stays_idle:
            substream.idle, substream.since_ms = False, job.now_ms
        if name != PLACEHOLDER and not substream.done:
            _change_policy(job, substream, config.policy_of(name))
    _expect_queries(job)
    evaluate(job)
    return reply(job)


def _retain(job: JobState) -> None:
    """Start a new history of the max watermark if ``max_retention_ms`` has changed."""
    length_ms = job.config.max_retention_ms
    if length_ms != (None if job.retention is None else job.retention.length_ms):
        job.retention = None if length_ms is None else TimestampHistory(length_ms)


def _change_policy(job: JobState, substream: Substream, policy: Policy) -> None:
    """Apply another policy to a substream; an equal policy keeps its state."""
    at = job.moment
    if policy != substream.policy:
        substream.policy_state = policy.resume(substream.policy_state, substream.max_event_time, at)
        substream.policy = policy
    if substream.counts:
        if not substream.policy.follows_clock:
            substream.policy_state.poll(at)
        raise_to_policy(substream)


def _expect_queries(job: JobState) -> None:
    """Add a placeholder for each expected query without substreams, and remove all other placeholders."""
    known = {query for query, name in job.substreams if name != PLACEHOLDER}
    for query, name in list(job.substreams):
        if name == PLACEHOLDER and query not in job.config.expected_queries:
            del job.substreams[query, name]
            if query not in job.queries:
                job.last_seen.pop(query, None)
    for query in job.config.expected_queries:
        is_retired = query in job.queries and job.queries[query].retired
        if query not in known and (query, PLACEHOLDER) not in job.substreams and not is_retired:
            add_substream(job, query, PLACEHOLDER, Reported())
            job.last_seen.setdefault(query, job.moment.observed_ms)


# Reports without batches


def report(
    job: JobState,
    max_event_times: Values,
    now_ms: int,
    *,
    min_event_times: Values = NO_VALUES,
    watermarks: Values = NO_VALUES,
    delays: Mapping[str, RowsByDelay] = NO_DELAYS,
    token: TokenClaim | None = None,
) -> Effect:
    """Apply event times and watermarks immediately.

    Args:
        job: The job.
        max_event_times: Highest event time by substream.
        now_ms: Processing time.
        min_event_times: Lowest event time by substream; the default is the highest event time. Watermarks that follow
            the clock do not pass the lowest of these times in the evaluation of this report.
        watermarks: Watermarks by substream, for policies that accept them.
        delays: Rows by delay bucket, for each substream. A repeated report counts the rows again.
        token: The client's last watermark token.

    Raises:
        JobComplete: If the job is complete.
        EventTimeMissing: If a watermark has no event time, but the policy needs event times.
        TooManySubstreams: If the job would exceed its limit on substreams.
    """
    if job.is_complete:
        raise JobComplete()
    names = [*max_event_times, *watermarks]
    check_event_times(job, max_event_times, watermarks)
    check_room(job, DIRECT, names)
    advance_clock(job, now_ms)
    accept_token(job, token)
    job.last_contact_ms = job.now_ms
    event_times, watermarks = set_aside_future(job, DIRECT, max_event_times, watermarks)
    measure(job, DIRECT, [*delays.items()], merged_watermark(job))
    applied = observe(job, DIRECT, names, event_times, watermarks)
    if names:
        miss_rows(job)
    lowest = min((min_event_times.get(name, time) for name, time in event_times.items()), default=None)
    evaluate(job, cap=lowest)
    return Effect(reply(job), applied)


# Substreams


def declare(
    job: JobState,
    query: str,
    names: Sequence[str],
    now_ms: int,
    max_event_times: Mapping[str, int] | None = None,
    audit: AuditInfo = NO_AUDIT,
) -> Effect:
    """Make substreams known before their first event, so that they hold the watermark from the start.

    The watermark does not move before the next evaluation.

    Args:
        job: The job.
        query: The query of the substreams.
        names: The substreams.
        now_ms: Processing time.
        max_event_times: Max event times from which substreams continue if the store has lost theirs. Event times too
            far ahead of the clock are ignored.
        audit: Actor and reason.

    Raises:
        JobComplete: If the job is complete and a substream is new.
        TooManySubstreams: If the job would exceed its limit on substreams.
    """
    new = [name for name in names if (query, name) not in job.substreams]
    if new and job.is_complete:
        raise JobComplete()
    check_room(job, query, new)
    advance_clock(job, now_ms)
    unseen: dict[str, int] = {}
    if max_event_times is not None and not job.is_complete:
        for name in names:
            known = job.substreams.get((query, name))
            is_unseen = known is None or (known.max_event_time is None and not known.done)
            if name in max_event_times and is_unseen:
                unseen[name] = max_event_times[name]
    for name in new:
        add_substream(job, query, name)
    event_times, _ = set_aside_future(job, query, unseen, {})
    if event_times:
        observe(job, query, event_times, event_times, {})
        miss_rows(job)
        job.evaluation_due = True
    affected = [name for name in names if name in new or name in event_times]
    if affected:
        _record_action(job, "declare", audit, query, affected)
    return Effect(reply(job), bool(affected))


def restore(
    job: JobState, query: str, watermarks: Mapping[str, int], now_ms: int, audit: AuditInfo = NO_AUDIT
) -> Effect:
    """Raise watermarks of known substreams, and raise C to the lowest watermark of all substreams.

    Holds limit C; the throttle does not.

    Raises:
        JobComplete: If the job is complete.
        SubstreamNotFound: If a substream is unknown.
    """
    if job.is_complete:
        raise JobComplete()
    _check_known(job, query, watermarks)
    advance_clock(job, now_ms)
    new = [name for name, watermark in watermarks.items() if above(watermark, job.substreams[query, name].watermark)]
    for name in new:
        job.substreams[query, name].watermark = watermarks[name]
    if new:
        _record_action(job, "restore", audit, query, new)
        job.evaluation_due = True
        lowest = min((substream.watermark for substream in job.substreams.values()), key=by_value)
        advance_coalesced(job, cap_by_holds(job, lowest))
        emit(job)
    return Effect(reply(job), bool(new))


def idle(job: JobState, query: str, names: Sequence[str], now_ms: int, audit: AuditInfo = NO_AUDIT) -> Effect:
    """Declare substreams idle, so that they do not hold the watermark until their next report.

    If any substream is unknown or done, no substream changes.

    Raises:
        SubstreamNotFound: If a substream is unknown.
        SubstreamDone: If a substream is done.
    """
    _check_known(job, query, names)
    ended = [name for name in names if job.substreams[query, name].done]
    if ended:
        raise SubstreamDone(query, ended)
    advance_clock(job, now_ms)
    new = [name for name in names if not job.substreams[query, name].idle]
    for name in names:
        substream = job.substreams[query, name]
        substream.idle = substream.forced_idle = substream.idle_by_operator = True
        if name in new:
            substream.since_ms = job.now_ms
    if new:
        _record_action(job, "idle", audit, query, new)
    evaluate(job)
    return Effect(reply(job), bool(new))


def done(job: JobState, query: str, names: Sequence[str], now_ms: int, audit: AuditInfo = NO_AUDIT) -> Effect:
    """End substreams, so that they never hold the watermark again; the watermark does not go back.

    Raises:
        SubstreamNotFound: If a substream is unknown; no substream changes.
    """
    _check_known(job, query, names)
    advance_clock(job, now_ms)
    new = end_substreams(job, query, names)
    if new:
        _record_action(job, "done", audit, query, new)
    evaluate(job)
    return Effect(reply(job), bool(new))


def _check_known(job: JobState, query: str, names: Iterable[str]) -> None:
    unknown = [name for name in names if (query, name) not in job.substreams]
    if unknown:
        raise SubstreamNotFound(query, unknown)


def evict(job: JobState, query: str, names: Sequence[str], now_ms: int, audit: AuditInfo = NO_AUDIT) -> Effect:
    """Remove substreams, and ignore unknown substreams; a later report adds them as new substreams.

    The watermark does not go back.
    """
    advance_clock(job, now_ms)
    known = [name for name in names if (query, name) in job.substreams]
    _forget(job, "evict", [(query, name) for name in known])
    if known:
        _record_action(job, "evict", audit, query, known)
    evaluate(job)
    return Effect(reply(job), bool(known))


def _forget(job: JobState, action: str, keys: Sequence[SubstreamKey]) -> None:
    """Remove substreams with their counts and delays. The totals of the job still contain their rows."""
    removed = {key: job.substreams.pop(key) for key in keys}
    lose_substreams(job, action, removed)
    _lower_maxima(job, removed.values())
    for key in keys:
        for table in (job.row_counts, job.reported_rows, job.future_rows, job.diverted_rows, job.delays):
            table.pop(key, None)


def _lower_maxima(job: JobState, removed: Collection[Substream]) -> None:
    """Let the maxima of a job be those of the remaining substreams, so that the removed ones never move it again."""
    event_time = highest(None, *(substream.max_event_time for substream in removed))
    watermark = highest(None, *(substream.watermark for substream in removed))
    remaining = job.substreams.values()
    if event_time is not None and event_time == job.max_event_time:
        job.max_event_time = highest(None, *(substream.max_event_time for substream in remaining))
    if watermark is None:
        return
    if not above(job.max_watermark, watermark):
        left = highest(None, *(substream.watermark for substream in remaining))
        job.max_watermark = left if above(job.max_watermark, left) else job.max_watermark
        latest = highest(job.max_watermark, job.coalesced_watermark)
        job.merged_highest = latest if above(job.merged_highest, latest) else job.merged_highest
    if job.retention is not None:
        # A cell up to this watermark may be of a removed substream. Without the cell, retention acts later.
        job.retention.cells = [cell if above(cell, watermark) else None for cell in job.retention.cells]


# Queries


def retire(job: JobState, query: str, successor: str | None, now_ms: int, audit: AuditInfo = NO_AUDIT) -> Effect:
    """End a query: refuse its current run, and abandon its open batch with the staged reports.

    Args:
        job: The job.
        query: The query.
        successor: The query that receives the substreams, except substreams that it already has. The silence of the
            received substreams starts now. If the successor is None, the job evicts the substreams. If the successor is
            the query itself, the query keeps its substreams and may begin on another checkpoint.
        now_ms: Processing time.
        audit: Actor and reason.

    Raises:
        QueryNotFound: If the job has neither the query nor any substream of the query, and does not expect it.
    """
    known = job.queries.get(query)
    own = [key for key in job.substreams if key[0] == query]
    if known is None and not own and query not in job.config.expected_queries:
        raise QueryNotFound(query)
    advance_clock(job, now_ms)
    if known is not None and known.retired and not own:
        return Effect(reply(job), False)
    if successor == query:
        applied = known is not None and known.open
        if known is not None and applied:
            give_up(job, query, "hand_over")
            _record_action(job, "hand_over", audit, query, successor=query)
        evaluate(job)
        return Effect(reply(job), applied)
    if known is None:  # no call yet: store a query that is retired
        known = job.queries[query] = Query("", "", job.now_ms)
    action = "retire" if successor is None else "hand_over"
    give_up(job, query, action)
    job.last_seen.pop(query, None)
    if successor is not None:
        _hand_over(job, query, successor)
    _forget(job, action, [key for key in own if key in job.substreams])
    names = [name for _, name in own if name != PLACEHOLDER]
    _record_action(job, action, audit, query, names, successor=successor)
    evaluate(job)
    return Effect(reply(job), True)


def _hand_over(job: JobState, query: str, successor: str) -> None:
    for key in [key for key in job.substreams if key[0] == query and key[1] != PLACEHOLDER]:
        to = successor, key[1]
        if to in job.substreams:
            continue
        substream = job.substreams.pop(key)
        substream.last_event_observed_ms = observed_time(job, successor)
        job.substreams[to] = substream
        if successor in job.queries:
            job.queries[successor].proven_ms = None  # it has proven nothing about the input of these substreams
        job.substreams.pop((successor, PLACEHOLDER), None)
        job.row_counts[to] = job.row_counts.get(to, NO_ROWS) + job.row_counts.pop(key, NO_ROWS)
        for table in (job.reported_rows, job.future_rows, job.diverted_rows):
            table[to] = table.get(to, 0) + table.pop(key, 0)
        if key in job.delays:
            job.delays[to] = job.delays.pop(key)


# Holds


def hold(
    job: JobState, hold: str, at_most: int, duration_ms: int | None, now_ms: int, audit: AuditInfo = NO_AUDIT
) -> Effect:
    """Keep C, and therefore W, at or below ``at_most``; if C is already higher, C does not move.

    A repeated hold expires at the later of the two times. If ``duration_ms`` is None, the hold lasts until it is
    released.

    Raises:
        HoldExists: If a hold with the same name has another value.
        JobComplete: If the job is complete.
    """
    if job.is_complete:
        raise JobComplete()
    present = job.holds.get(hold)
    latest_ms = max(now_ms, job.now_ms) - unattended_until(job, now_ms)
    if present is not None and present.in_force(latest_ms) and present.at_most != at_most:
        raise HoldExists(hold, present.at_most)
    advance_clock(job, now_ms)
    present = job.holds.get(hold)
    expires_ms = None if duration_ms is None else job.now_ms + duration_ms
    if present is not None and present.in_force(job.now_ms):
        lasts = present.expires_ms is None or (expires_ms is not None and expires_ms <= present.expires_ms)
        if lasts:
            return Effect(reply(job), False)
    elif present is not None:
        job.evaluation_due = True  # the expired hold no longer limits C
    job.holds[hold] = Hold(hold, at_most, expires_ms, audit.reason)
    _record_action(job, "hold", audit, hold=hold, at_most=at_most)
    return Effect(reply(job), True)


def release(job: JobState, hold: str, now_ms: int, audit: AuditInfo = NO_AUDIT) -> JobWatermark:
    """End a hold before it expires; raise HoldNotFound if the job has no such hold."""
    if hold not in job.holds:
        raise HoldNotFound(hold)
    advance_clock(job, now_ms)
    del job.holds[hold]
    _record_action(job, "release", audit, hold=hold)
    evaluate(job)
    return reply(job)


# The job as a whole


def complete(job: JobState, now_ms: int, audit: AuditInfo = NO_AUDIT, up_to: int | None = None) -> Effect:
    """End the input of a job: end all substreams, and move C to the end of the last frame with events.

    If ``up_to`` is given, C also moves to the end of the last frame that begins before ``up_to``, even in a complete
    job. The frames are those of the throttle, and those that the job declares. Without frames, C moves past the max
    event time. The throttle does not apply.

    Raises:
        BatchOpen: If a batch is open.
        HoldActive: If a hold is in force.
    """
    moves = up_to is not None and (job.coalesced_watermark is None or up_to > job.coalesced_watermark)
    if job.is_complete and not moves:
        advance_clock(job, now_ms)
        return Effect(reply(job), False)
    for name, query in sorted(job.queries.items(), key=lambda item: item[0].encode()):
        if query.open:
            raise BatchOpen(name, query.latest)
    for hold in holds_in_order(job):
        if hold.in_force(max(now_ms, job.now_ms) - unattended_until(job, now_ms)):
            raise HoldActive(hold.hold, hold.at_most)
    advance_clock(job, now_ms)
    advance_coalesced(job, offer(job.config.throttle, job.max_watermark, job.coalesced_watermark, job.numbers))
    last = highest(job.max_event_time, None if up_to is None else max(up_to - 1, job.numbers.lowest))
    if last is not None:
        advance_coalesced(job, job.config.throttle.end_after(last, job.numbers))
        if job.config.frames is not None:
            advance_coalesced(job, job.config.frames.end_after(last))
    raise_watermark(job, job.coalesced_watermark)
    if not job.is_complete:
        job.is_complete, job.completed_ms = True, job.moment.observed_ms
    _record_action(job, "complete", audit, up_to=up_to)
    return Effect(reply(job), True)


def reopen(job: JobState, now_ms: int, audit: AuditInfo = NO_AUDIT) -> Effect:
    """Accept input again; the time while the job was complete does not count towards ``idle_timeout_ms``.

    The watermark does not go back. Rows below it are late.
    """
    advance_clock(job, now_ms)
    applied, job.is_complete = job.is_complete, False
    if applied:
        job.unattended_ms += job.moment.observed_ms - job.completed_ms
        _record_action(job, "reopen", audit)
        evaluate(job)
    return Effect(reply(job), applied)


def reset(job: JobState, now_ms: int, state_epoch: str, audit: AuditInfo = NO_AUDIT) -> JobWatermark:
    """Start a new incarnation without a watermark; keep only the configuration, history and totals."""
    advance_clock(job, now_ms)
    job.incarnation += 1
    job.state_epoch = state_epoch
    reset_frames(job)
    job.is_complete = job.all_idle = job.evaluation_due = False
    job.max_event_time = job.max_watermark = job.merged_highest = None
    job.coalesced_watermark = job.watermark = job.written_watermark = None
    job.coalesced_watermark_since_ms = job.watermark_since_ms = job.now_ms
    job.retention = job.unattended_at_evaluation_ms = job.proven_ms = None
    _retain(job)
    for table in (job.substreams, job.queries, job.last_seen, job.holds):
        table.clear()
    for counts in (job.row_counts, job.reported_rows, job.future_rows, job.diverted_rows, job.delays):
        counts.clear()
    job.delay_statistics, job.ledger, job.arrivals = DelayStatistics(), Ledger(), Arrivals()
    job.recorded = (None, None, None)
    _record_action(job, "reset", audit)
    _expect_queries(job)
    return reply(job)


def sweep(job: JobState, now_ms: int) -> JobWatermark:
    """Evaluate the job because time has passed."""
    advance_clock(job, now_ms)
    evaluate(job, is_sweep=True)
    return reply(job)
