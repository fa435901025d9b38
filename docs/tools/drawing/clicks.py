"""A stream of clicks with exponential delays, for the figures of docs/explanation/completeness.md.

The stream has 20,000 events, one every half minute. The delays have a mean of six minutes and a maximum of 25. The
window size is ten minutes.
"""

import random
from collections import Counter

from tidegate.domain import commands
from tidegate.domain.completeness import bucket_of, curve
from tidegate.domain.config import FrameThrottle, JobConfig
from tidegate.domain.policies import LimitingLag, TargetCompleteness
from tidegate.domain.simulate import Row, classify, merged_event_times, new_job, through_machine, under_lag
from tidegate.domain.values import DIRECT

MINUTE = 60_000
APART = MINUTE // 2
WINDOW = 10 * MINUTE
LAGS = (0, 2, 5, 10, 20, 40)
HALF_LIFE = 24 * 60 * MINUTE
TARGET = 0.99


def clicks() -> list[Row]:
    """Return the clicks in the order of their arrival."""
    generator = random.Random(7)  # noqa: S311 - the same stream each time
    arrivals = sorted((number / 2 + min(generator.expovariate(1 / 6), 25), number) for number in range(20_000))
    return [Row(number * APART, "", place) for place, (_, number) in enumerate(arrivals)]


def measured() -> list[tuple[float, float]]:
    """Return the average latency in minutes and the completeness under each of ``LAGS``, from a replay of all rows."""
    rows = clicks()
    merged = merged_event_times(rows)
    found = [classify(under_lag(rows, merged, lag * MINUTE), WINDOW) for lag in LAGS]
    return [((one.average_latency or 0) / MINUTE, one.completeness) for one in found]


def told() -> list[tuple[float, float]]:
    """Return the completeness curve of a job with a lag of five minutes, from its measured delays.

    Returns:
        Points of average latency in minutes and completeness, for lags of at most 45 minutes.
    """
    rows = clicks()
    config = JobConfig(LimitingLag(5 * MINUTE), FrameThrottle(WINDOW, WINDOW), delay_half_life_ms=100 * HALF_LIFE)
    machine = new_job(config, 0)
    list(through_machine(rows, config, job=machine))
    points = curve(machine.delay_statistics.merged, machine.delay_statistics.wait)
    return [((point.latency or 0) / MINUTE, point.completeness) for point in points if point.lag <= 45 * MINUTE]


def learnt() -> dict[str, list[tuple[float, float]]]:
    """Return the curves of a run of ``target_completeness`` in which delays triple after the first 20,000 events.

    Returns:
        Points by hours of event time: the learned lag in minutes, and two shares of late rows in per cent. The first
        share is under the learned lag. The second is under the fixed lag learned before the delays tripled.
    """
    generator = random.Random(7)  # noqa: S311 - the same stream each time
    drawn = [min(generator.expovariate(1 / 6), 25) for _ in range(40_000)]
    arrivals = sorted(
        (number / 2 + delay * (3 if number >= 20_000 else 1), number) for number, delay in enumerate(drawn)
    )
    times = [number * APART for _, number in arrivals]
    job = new_job(JobConfig(TargetCompleteness(TARGET, 40 * MINUTE), delay_half_life_ms=HALF_LIFE), 0)
    lags: list[tuple[float, float]] = []
    late: Counter[tuple[str, int]] = Counter()
    hours: Counter[int] = Counter()
    fixed: int | None = None
    for first in range(0, len(times), 20):
        batch = times[first : first + 20]
        max_event_time, watermark = job.max_event_time, job.coalesced_watermark
        delays = {}
        if max_event_time is not None and watermark is not None:
            delays["clicks"] = (*Counter(bucket_of(max_event_time - time) for time in batch).items(),)
            hour = 5 * (first * APART // (5 * 60 * MINUTE))
            if first >= 19_000 and fixed is None:
                fixed = job.substreams[DIRECT, "clicks"].policy_state.lag
            hours[hour] += len(batch)
            late["target", hour] += sum(time < watermark for time in batch)
            late["fixed", hour] += sum(fixed is not None and time < max_event_time - fixed for time in batch)
        commands.report(job, {"clicks": max(batch)}, 0, delays=delays)
        lags.append((first * APART / (60 * MINUTE), (job.substreams[DIRECT, "clicks"].policy_state.lag or 0) / MINUTE))
    since = 19_000 * APART // (60 * MINUTE)
    return {
        "lag": lags,
        "late under the learned lag": [(hour, 100 * late["target", hour] / rows) for hour, rows in hours.items()],
        "late under the previous lag": [
            (hour, 100 * late["fixed", hour] / rows) for hour, rows in hours.items() if hour >= since
        ],
    }
