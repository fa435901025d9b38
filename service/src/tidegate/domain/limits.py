"""Limits that let the watermark pass substreams that count: ``max_skew_ms`` and ``arrival_target``.

A substream is *skewed* while its watermark is more than ``max_skew_ms`` behind the median watermark of the substreams
that count, skewed ones included. The median of an even number is the lower one of the two in the middle, so that one
fast clock cannot set the other of two substreams apart, and fewer than half ever are. Substreams without a watermark
are the lowest, and hold: how far behind they are is not known.

The *arrival delay* of a row is the time from the end of its frame to P, the processing time up to which all queries had
read all input before the batch of the row. The job learns a delay D: the share ``arrival_target`` of its rows arrives
no later. Once all queries have read all input up to P, few rows of frames that end at or before ``P - D`` are still to
come, so C need not wait for any substream below that time. D is for all rows of the job together: all substreams of a
query are silent up to the same P, so a higher delay of some of them would hold C for all.

Nothing moves without evidence: reports without batches prove nothing, and a query that has read no input yet has no P.
A row that is older than ``max_arrival_delay_ms`` is late and teaches nothing: it may be old data that is read again,
whose event times do not run with the clock. When all substreams have been silent for that time, C stands.

This is the model. In a coordinator, ``store/lua/limits.lua`` does the same.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.domain.completeness import ROW, RowsOfHour, bucket_of, decayed
from tidegate.domain.config import POLICY_LIMITS, JobConfig
from tidegate.domain.history import NAMES_KEPT
from tidegate.domain.job import Arrivals, JobState, Substream
from tidegate.domain.policies import TargetCompleteness, moved_lag
from tidegate.domain.values import DIRECT, SubstreamKey, above, by_value, described, member

# Substreams that are far behind the median


def median_watermark(job: JobState) -> int | None:
    """Return the median watermark of the substreams that count; None if it is that of one without a watermark."""
    watermarks = sorted((s.uncapped_watermark for s in job.substreams.values() if s.counts), key=by_value)
    return watermarks[(len(watermarks) - 1) // 2] if watermarks else None


def skew_bound(job: JobState) -> int | None:
    """Return the lowest watermark of a substream that is not skewed; None if none can be."""
    if job.config.max_skew_ms is None:
        return None
    if job.known_bounds is not None:
        return job.known_bounds.get(_number_counting(job), (None, None))[0]
    median = median_watermark(job)
    return None if median is None else job.numbers.minus(median, job.config.max_skew_ms)


def _number_counting(job: JobState) -> int:
    return sum(substream.counts for substream in job.substreams.values())


def is_skewed(substream: Substream, bound: int | None) -> bool:
    """Return whether the watermark of a substream that counts is below a bound."""
    if bound is None or not substream.counts:
        return False
    return substream.uncapped_watermark is not None and bound > substream.uncapped_watermark


# Rows that seldom arrive


def start_learning(job: JobState, before: JobConfig) -> None:
    """Follow the configuration of a job; ``before`` is the previous one.

    What was measured with other frames, or with a lower highest delay, is void.
    """
    frames, frames_before = job.config.frames, before.frames
    is_same = frames is not None and frames_before is not None and frames.identity == frames_before.identity
    if not is_same or job.config.max_arrival_delay_ms > before.max_arrival_delay_ms:
        job.arrivals = Arrivals()
    elif job.config.arrival_policy() != before.arrival_policy() or job.config.arrival_target != before.arrival_target:
        job.arrivals.rows = job.arrivals.late = 0
        job.arrivals.learned = None
        _move_delay(job, 0)


def _move_delay(job: JobState, steps: int) -> None:
    """Learn the arrival delay from the measured rows, if there is a target and they suffice; ``steps``: see Sketch."""
    policy, arrivals = job.config.arrival_policy(), job.arrivals
    if policy is None or job.config.arrival_target is None:
        return
    wanted = wanted_delay_ms(arrivals, policy)
    if wanted is not None:
        before = None if arrivals.learned is None else policy.within(arrivals.learned)
        arrivals.learned = moved_lag(before, wanted, steps)


def wanted_delay_ms(arrivals: Arrivals, policy: TargetCompleteness) -> int | None:
    """Return the arrival delay for the measured rows; None if they do not suffice."""
    if arrivals.first_end is None or arrivals.last_end is None:
        return None
    # Until then, a row with the highest delay cannot have arrived.
    if arrivals.last_end - arrivals.first_end < policy.initial_lag:
        return None
    return policy.wanted_lag(arrivals.sketch, arrivals.sketch)


def _delay_ms(job: JobState) -> int | None:
    """Return the arrival delay in force; None without a target."""
    policy, learned = job.config.arrival_policy(), job.arrivals.learned
    if policy is None or job.config.arrival_target is None:
        return None
    return policy.initial_lag if learned is None else policy.within(learned)


def learn_arrivals(job: JobState, proven_ms: int | None, rows: Iterable[RowsOfHour]) -> None:
    """Add the arrival delays of the rows of a batch, and move the learned delay.

    Rows ahead of the clock have no arrival delay.

    Args:
        job: The job.
        proven_ms: The processing time up to which the query of the batch, and the other queries, had read all input.
        rows: For each frame, a time in the frame, and its number of rows, updated rows and late rows.
    """
    arrivals, policy, frames = job.arrivals, job.config.arrival_policy(), job.config.frames
    if policy is None or frames is None or proven_ms is None:
        return
    recent, ends, too_old = Counter[int](), list[int](), 0
    delay_ms, highest_ms, has_begun = _delay_ms(job), job.config.max_arrival_delay_ms, bool(arrivals.rows)
    for time, count, *_ in rows:
        end = frames.end_after(time)
        # At the delay after its end, a frame is complete, so a row that arrives then is late.
        delay = proven_ms - end + 1
        if not count or time > job.now_ms or (delay > highest_ms and not has_begun):
            continue
        arrivals.rows += count
        arrivals.late += count if delay_ms is not None and delay > delay_ms else 0
        if delay <= highest_ms:
            recent[bucket_of(delay)] += count
            ends.append(end)
        else:
            too_old += count * ROW
    if not ends:
        arrivals.too_old += too_old
        return
    if arrivals.first_end is None:
        arrivals.first_end = max(ends)
    last_end = arrivals.last_end = max(*ends, arrivals.first_end if arrivals.last_end is None else arrivals.last_end)
    sketch = arrivals.sketch
    weights = dict(sketch.weights)
    steps = sketch.decay_to(last_end, job.config.delay_half_life_ms)
    if sketch.weight < policy.window * ROW:  # a high target needs more rows than a half-life may have
        sketch.weights = weights
    else:
        arrivals.too_old = decayed(arrivals.too_old, steps)
    arrivals.too_old += too_old
    sketch.add(recent.items())
    _move_delay(job, steps)


def proven_until(job: JobState) -> int | None:
    """Return the processing time up to which the queries have read all input; None if one of them proves nothing.

    Queries without substreams that count do not matter.
    """
    found = []
    for name in {query for (query, _), substream in job.substreams.items() if substream.counts}:
        proven_ms = job.queries[name].proven_ms if name != DIRECT and name in job.queries else None
        if proven_ms is None:
            return None
        found.append(proven_ms)
    return min(found, default=None)


def arrival_bound(job: JobState) -> int | None:
    """Return the event time below which C waits for no substream; None if it waits for all.

    It is that of the last evaluation.
    """
    if job.known_bounds is not None:
        return job.known_bounds.get(_number_counting(job), (None, None))[1]
    delay_ms, last_end, proven_ms = _delay_ms(job), job.arrivals.last_end, job.proven_ms
    if delay_ms is None or last_end is None or proven_ms is None:
        return None
    # If all substreams are silent, the source may be down, and deliver later what it has.
    reached_ms = min(proven_ms, job.numbers.plus(last_end, job.config.max_arrival_delay_ms))
    return job.numbers.minus(reached_ms, delay_ms)


@dataclass(frozen=True, slots=True)
class ArrivalDelay:
    """The arrival delay of a job with ``arrival_target``, and how many rows have arrived within it."""

    target: float = described("The setting `arrival_target`.", example=0.998)
    delay_ms: int = described(
        "Time after the end of a frame for which the watermark waits for silent substreams.", example=35_400_000
    )
    is_learned: bool = described(
        "Whether it is learned. If not, it is the setting `max_arrival_delay_ms`.", example=True
    )
    proven_ms: int | None = described(
        "Processing time up to which all queries with substreams that count have read all input. Null if one of them "
        "has proven nothing, or if there are reports without batches.",
        example=1357556400000,
    )
    bound: int | None = described(
        "Event time below which the watermark waits for no substream. Null if it waits for all.", example=1357521000000
    )
    rows: int = described("Rows whose arrival delay is known, since the target was set.", example=102_944)
    late: int = described("Those that have arrived after the delay in force.", example=206)


def arrival_delay(job: JobState) -> ArrivalDelay | None:
    """Return the arrival delay of a job; None without ``arrival_target``."""
    arrivals, target, delay_ms = job.arrivals, job.config.arrival_target, _delay_ms(job)
    if target is None or delay_ms is None:
        return None
    is_learned = arrivals.learned is not None
    return ArrivalDelay(target, delay_ms, is_learned, job.proven_ms, arrival_bound(job), arrivals.rows, arrivals.late)


# All limits


@dataclass(frozen=True, slots=True)
class PassedSubstream:
    """A substream that does not hold the watermark because of a limit."""

    query: str = described("Query. Empty for reports without batches.", example="departures")
    substream: str = described("Name of the substream.", example="HNL")
    behind_ms: int | None = described(
        "Distance of its watermark behind the reference, in milliseconds. Null if it has no watermark.",
        example=39_600_000,
    )


@dataclass(frozen=True, slots=True)
class PassedByLimit:
    """The substreams that count, and do not hold the watermark because of a limit."""

    limit: str = described("The limit: `max_skew_ms` or `arrival_target`.", example="arrival_target")
    limit_ms: int = described(
        "Distance behind the reference from which the watermark passes a substream: `max_skew_ms`, or the arrival "
        "delay.",
        example=35_400_000,
    )
    reference: int = described(
        "The median watermark of the substreams that count, skewed ones included; for `arrival_target`, the processing "
        "time up to which the queries have read all input.",
        example=1357556400000,
    )
    count: int = described("Number of these substreams.", example=1)
    substreams: tuple[PassedSubstream, ...] = described("The first 20 of them, the furthest behind first.")

    @classmethod
    def of(
        cls, limit: str, limit_ms: int, bound: int, count: int, lowest: Iterable[tuple[int | None, SubstreamKey]]
    ) -> "PassedByLimit":
        """Return the substreams that a limit passes.

        Args:
            limit: The limit.
            limit_ms: Its distance.
            bound: The bound of :func:`skew_bound` or :func:`arrival_bound`.
            count: Number of the substreams.
            lowest: The first substreams with their watermarks, lowest first.
        """
        reference = bound + limit_ms
        substreams = [PassedSubstream(*key, None if at is None else reference - at) for at, key in lowest]
        return cls(limit, limit_ms, reference, count, tuple(substreams))


def passed_substreams(job: JobState) -> list[PassedByLimit]:
    """Return the substreams that count, and that the watermark passes now because of a limit, by limit."""
    if job.is_complete:
        return []
    below_median = skew_bound(job)
    limits = [
        ("max_skew_ms", job.config.max_skew_ms or 0, below_median),
        ("arrival_target", _delay_ms(job) or 0, arrival_bound(job)),
    ]
    found = []
    for limit, limit_ms, bound in limits:
        passed = [
            (s.uncapped_watermark, key)
            for key, s in job.substreams.items()
            if s.counts
            and is_skewed(s, below_median) == (limit == "max_skew_ms")
            and above(bound, s.uncapped_watermark)
        ]
        passed.sort(key=lambda one: (by_value(one[0]), member(one[1]).encode()))
        if passed and bound is not None:
            found.append(PassedByLimit.of(limit, limit_ms, bound, len(passed), passed[:NAMES_KEPT]))
    return found


def passed_by_limits(job: JobState, others: str | None) -> dict[str, list[tuple[int | None, str]]]:
    """Return the substreams that count and that the watermark may pass, with the watermarks that it passes, by limit.

    Args:
        job: The job.
        others: What lets it pass the substreams that are not skewed; None: nothing does.
    """
    counting = {key: substream for key, substream in job.substreams.items() if substream.counts}
    bound = skew_bound(job)
    found: dict[str, list[tuple[int | None, str]]] = {}
    limits = [*([] if others is None else [others]), *([] if bound is None else ["max_skew_ms"])]
    for limit in limits:
        of_limit = {key: s for key, s in counting.items() if is_skewed(s, bound) == (limit == "max_skew_ms")}
        found[limit] = [(s.uncapped_watermark, member(key)) for key, s in of_limit.items()]
    for limit in POLICY_LIMITS:
        found[limit] = [(s.policy_state.lagged, member(key)) for key, s in counting.items() if s.policy.limit == limit]
    return found
