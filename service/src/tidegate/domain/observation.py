"""Observation: apply event times and reported watermarks to substreams."""

from collections.abc import Iterable, Mapping

from tidegate.domain.clock import observed_time
from tidegate.domain.errors import EventTimeMissing, TooManySubstreams
from tidegate.domain.idleness import reactivate
from tidegate.domain.journal import Kind, named
from tidegate.domain.names import PLACEHOLDER, member
from tidegate.domain.numbers import above, highest
from tidegate.domain.policy import Policy
from tidegate.domain.state import JobState, Substream

Values = Mapping[str, int]


def check_event_times(job: JobState, max_event_times: Values, watermarks: Values) -> None:
    """Raise EventTimeMissing for watermarks without event times, unless their policies accept watermarks."""
    alone = (name for name in watermarks if name not in max_event_times)
    missing = [name for name in alone if not job.config.policy_of(name).accepts_watermarks]
    if missing:
        raise EventTimeMissing(missing)


def check_room(job: JobState, query: str, names: Iterable[str]) -> None:
    """Raise TooManySubstreams if new substreams in ``names`` would exceed the limit.

    Substreams that open batches will add count towards the limit; placeholders of missing queries do not count.
    """
    coming = {(name, substream) for name, other in job.queries.items() for substream in other.staged.coming}
    new = {(query, name) for name in names} - job.substreams.keys()
    if job.max_substreams is None or new <= coming:
        return
    new |= coming
    if sum(name != PLACEHOLDER for _, name in job.substreams) + len(new) > job.max_substreams:
        raise TooManySubstreams(job.max_substreams)


def latest_event_time(job: JobState) -> int | None:
    """Return the latest event time that is accepted; None if ``max_future_skew_ms`` is off."""
    skew = job.config.max_future_skew_ms
    return None if skew is None else job.numbers.plus(job.now_ms, skew)


def set_aside_future(
    job: JobState, query: str, max_event_times: Values, watermarks: Values
) -> tuple[dict[str, int], dict[str, int]]:
    """Count and remove substreams with values too far ahead of the clock; return the remaining values."""
    latest = latest_event_time(job)
    if latest is None:
        return dict(max_event_times), dict(watermarks)
    names = dict.fromkeys([*max_event_times, *watermarks])
    future = [name for name in names if max(max_event_times.get(name, latest), watermarks.get(name, latest)) > latest]
    if future:
        count_future(job, query, dict.fromkeys(future, 1))
        job.journal.write(job.now_ms, Kind.FUTURE, query=query, **named(member((query, name)) for name in future))
    kept = names.keys() - set(future)
    return (
        {name: time for name, time in max_event_times.items() if name in kept},
        {name: time for name, time in watermarks.items() if name in kept},
    )


def count_future(job: JobState, query: str, rows: Values) -> None:
    """Count rows that were set aside: in the total, and for known substreams."""
    for name, count in rows.items():
        job.future_total += count
        if (query, name) in job.substreams:
            job.future_rows[query, name] = job.future_rows.get((query, name), 0) + count


def add_substream(job: JobState, query: str, name: str, policy: Policy | None = None) -> Substream:
    """Add a substream without events; remove the placeholder of its query."""
    if query in job.queries:
        job.queries[query].staged.coming.discard(name)
    policy = policy or job.config.policy_of(name)
    added = Substream(policy, policy.start(job.numbers), observed_time(job, query))
    job.substreams[query, name] = added
    if name != PLACEHOLDER:
        job.substreams.pop((query, PLACEHOLDER), None)
    return added


def observe(job: JobState, query: str, names: Iterable[str], max_event_times: Values, watermarks: Values) -> bool:
    """Apply event times and watermarks to the substreams of a query; return whether any value had an effect.

    The job adds unknown substreams with values. Done substreams do not change. All other substreams in ``names`` are
    not silent, also without a value that has an effect, and idle ones become active. If an operator made a substream
    idle, it becomes active by a value with an effect only.
    """
    reactivated, applied = [], False
    for name in dict.fromkeys(names):
        reported = watermarks.get(name) if job.config.policy_of(name).accepts_watermarks else None
        substream = job.substreams.get((query, name))
        if substream is None and (name in max_event_times or reported is not None):
            substream = add_substream(job, query, name)
        if substream is None or substream.done:
            continue
        has_effect = name in max_event_times
        if has_effect:
            _observe_event_time(job, substream, max_event_times[name])
        if reported is not None:
            has_effect = _report_watermark(substream, reported) or has_effect
        applied = applied or has_effect
        if (has_effect or not substream.set_aside) and reactivate(substream, observed_time(job, query)):
            substream.since_ms = job.now_ms
            reactivated.append(member((query, name)))
    if reactivated:
        job.journal.write(job.now_ms, Kind.ACTIVE, query=query, **named(reactivated))
    return applied


def _observe_event_time(job: JobState, substream: Substream, event_time: int) -> None:
    substream.max_event_time = highest(substream.max_event_time, event_time)
    substream.policy_state.observe(event_time, job.processing_time)
    follow_policy(substream)
    job.max_event_time = highest(job.max_event_time, event_time)


def _report_watermark(substream: Substream, watermark: int) -> bool:
    """Apply a watermark if it is ahead; return whether it was applied."""
    if not above(watermark, substream.uncapped_watermark):
        return False
    substream.policy_state.report(watermark)
    follow_policy(substream)
    return True


def follow_policy(substream: Substream) -> None:
    """Raise the watermark to that of the policy, unless the policy follows the clock.

    Only evaluations raise a watermark that follows the clock.
    """
    if not substream.policy.follows_clock:
        substream.watermark = substream.uncapped_watermark


def poll(job: JobState, substream: Substream, cap: int | None) -> None:
    """Poll the policy and raise the watermark. A watermark that follows the clock does not pass ``cap``."""
    substream.policy_state.poll(job.processing_time)
    reached = substream.policy_state.watermark
    if cap is not None and reached is not None and substream.policy.follows_clock:
        reached = min(reached, cap)
    substream.watermark = highest(substream.watermark, reached)


def change_policy(job: JobState, substream: Substream, policy: Policy) -> None:
    """Apply another policy to a substream; an equal policy keeps its state."""
    at = job.processing_time
    if policy != substream.policy:
        substream.policy_state = policy.resume(substream.policy_state, substream.max_event_time, at)
        substream.policy = policy
    if substream.counts:
        if not substream.policy.follows_clock:
            substream.policy_state.poll(at)
        follow_policy(substream)
