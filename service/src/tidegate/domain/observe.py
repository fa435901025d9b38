"""What a report does to substreams: event times, watermarks and delays. The evaluation afterwards moves the job.

This is the model. In a coordinator, ``store/lua/observe.lua`` does the same.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from tidegate.domain.completeness import RowsByDelay, Sketch, bucket_of, typical
from tidegate.domain.errors import EventTimeMissing, TooManySubstreams
from tidegate.domain.evaluate import observed_time
from tidegate.domain.history import Kind, named
from tidegate.domain.job import JobState, Substream
from tidegate.domain.policies import Policy, TargetState
from tidegate.domain.values import PLACEHOLDER, above, highest, member

Values = Mapping[str, int]
"""Values by substream."""

# Checks


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


# Values too far ahead of the clock


def latest_event_time(job: JobState) -> int | None:
    """Return the latest event time that is accepted; None if ``max_future_skew_ms`` is off."""
    future_skew = job.config.max_future_skew_ms
    return None if future_skew is None else job.numbers.plus(job.now_ms, future_skew)


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
        job.history.write(job.now_ms, Kind.FUTURE, query=query, **named(member((query, name)) for name in future))
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


# Event times and watermarks


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


def restart_substreams(job: JobState, query: str, names: Iterable[str]) -> list[str]:
    """Let known substreams start again without events, and return those that were not as new ones are.

    Their row counts continue. The maxima of the job remain, because the earlier events were not wrong.
    """
    again = []
    for name in names:
        known = job.substreams.get((query, name))
        if known is None or (known.counts and known.max_event_time is None and known.watermark is None):
            continue
        del job.substreams[query, name]
        job.delays.pop((query, name), None)
        add_substream(job, query, name)
        again.append(name)
    return again


def end_substreams(job: JobState, query: str, names: Iterable[str]) -> list[str]:
    """End known substreams, so that they never hold the watermark again; return those that were not done."""
    known = ((name, job.substreams.get((query, name))) for name in names)
    new = [(name, substream) for name, substream in known if substream is not None and not substream.done]
    for _, substream in new:
        substream.done, substream.since_ms = True, job.now_ms
    return [name for name, _ in new]


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
            event_time = max_event_times[name]
            substream.max_event_time = highest(substream.max_event_time, event_time)
            substream.policy_state.observe(event_time, job.moment)
            raise_to_policy(substream)
            job.max_event_time = highest(job.max_event_time, event_time)
        if reported is not None and above(reported, substream.uncapped_watermark):
            has_effect = True
            substream.policy_state.report(reported)
            raise_to_policy(substream)
        applied = applied or has_effect
        if has_effect or not substream.idle_by_operator:
            if substream.idle:
                substream.since_ms = job.now_ms
                reactivated.append(member((query, name)))
            substream.idle = substream.forced_idle = substream.idle_by_operator = False
            substream.last_event_observed_ms = observed_time(job, query)
    if reactivated:
        job.history.write(job.now_ms, Kind.ACTIVE, query=query, **named(reactivated))
    return applied


def raise_to_policy(substream: Substream) -> None:
    """Raise the watermark to that of the policy, unless the policy follows the clock.

    Only evaluations raise a watermark that follows the clock.
    """
    if not substream.policy.follows_clock:
        substream.watermark = substream.uncapped_watermark


# Delays


def measure(job: JobState, query: str, delays: Iterable[tuple[str, RowsByDelay]], merged: int | None) -> None:
    """Add the delays of rows, and update learned lags.

    The watermark of an active substream follows its learned lag at once. An idle substream keeps its watermark.

    Args:
        job: The job.
        query: The query of the rows.
        delays: Numbers of rows by delay bucket, for each substream. A substream may occur several times. Unknown and
            done substreams, and substreams without a max event time, are ignored.
        merged: C without the throttle, when the batch began or before the report.
    """
    measured: dict[str, Counter[int]] = {}
    for name, rows in delays:
        known = job.substreams.get((query, name))
        if known is not None and not known.done and known.max_event_time is not None:
            for bucket, count in rows:
                measured.setdefault(name, Counter())[bucket] += count
    if not measured or job.max_event_time is None:
        return
    steps: dict[str, int] = {}
    pooled, behind_merged = Counter[int](), Counter[int]()
    for name, counts in measured.items():
        substream = job.substreams[query, name]
        assert substream.max_event_time is not None
        sketch = job.delays.setdefault((query, name), Sketch())
        steps[name] = sketch.decay_to(substream.max_event_time, job.config.delay_half_life_ms)
        sketch.add(counts.items())
        pooled.update(counts)
        behind_merged.update(_behind_merged(substream, substream.max_event_time, counts, merged))
    statistics = job.delay_statistics
    for together, rows_of_all in ((statistics.pool, pooled), (statistics.merged, behind_merged)):
        together.decay_to(job.max_event_time, job.config.delay_half_life_ms)
        together.add(rows_of_all.items())
    relearning: list[str] = []
    for name, counts in measured.items():
        substream = job.substreams[query, name]
        if substream.policy_state.learn(counts, job.delays[query, name], statistics.pool, steps[name]):
            relearning.append(member((query, name)))
        if substream.counts and isinstance(substream.policy_state, TargetState):
            substream.policy_state.poll(job.moment)
            raise_to_policy(substream)
    if relearning:
        job.history.write(job.now_ms, Kind.RELEARNING, query=query, **named(relearning))


def _behind_merged(
    substream: Substream, max_event_time: int, counts: Mapping[int, int], merged: int | None
) -> Counter[int]:
    """Convert delays behind the substream's max event time to delays behind the merged watermark."""
    lag, behind = substream.policy_state.lag, Counter[int]()
    if lag is None:
        return behind
    own = None if substream.policy.follows_clock else substream.watermark
    if own is None:
        own = max_event_time - lag
    # Without a merged watermark, no row is late.
    ahead = None if merged is None else max(own - merged, 0)
    for bucket, count in counts.items():
        behind[bucket_of(typical(bucket) - ahead) if bucket and ahead is not None else 0] += count
    return behind
