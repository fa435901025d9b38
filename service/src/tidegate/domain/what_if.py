"""What limits would do, to choose one: under another limit on skew now, and for another target in the recorded past."""

import math
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace

from tidegate.domain.completeness import NO_ROWS, ROW
from tidegate.domain.config import JobConfig, offer
from tidegate.domain.evaluate import cap_by_holds, minimum
from tidegate.domain.job import Arrivals, Completion, JobState
from tidegate.domain.limits import PassedByLimit, passed_substreams, wanted_delay_ms
from tidegate.domain.values import described, highest


@dataclass(frozen=True, slots=True)
class WhatIfSkew:
    """What a job would do now under another ``max_skew_ms``."""

    limit_ms: int = described("The limit.", example=21_600_000)
    coalesced_watermark: int | None = described(
        "Coalesced watermark that the limit would allow now. Null if it allows none.", example=1357556400000
    )
    passed: PassedByLimit | None = described("Substreams that it would set apart now. Null if there are none.")
    passed_rows: int = described(
        "Number of rows that those named have committed so far. Rows that they send below the watermark would be late.",
        example=226,
    )


@dataclass(frozen=True, slots=True)
class FrameDelays:
    """Times from the ends of frames until they were complete, or would have been."""

    median_ms: int = described("Median, in milliseconds.", example=35_400_000)
    p95_ms: int = described(
        "The time within which 95 of 100 frames were complete, in milliseconds.", example=36_900_000
    )

    @classmethod
    def of(cls, delays: Sequence[int]) -> "FrameDelays":
        """Return those of some frames, at least one."""
        ordered = sorted(delays)
        return cls(*(ordered[max(math.ceil(len(ordered) * share) - 1, 0)] for share in (0.5, 0.95)))


@dataclass(frozen=True, slots=True)
class WhatIfArrivals:
    """What another ``arrival_target`` would have done in the recorded past of a job."""

    target: float = described("The target.", example=0.998)
    measured: int = described("Measured rows, without those that have decayed.", example=102_944)
    needed: int = described("Rows that are needed to learn the delay for this target.", example=500)
    measured_ms: int = described(
        "Event time over which rows were measured. It must be `max_arrival_delay_ms` or more.", example=5_097_600_000
    )
    delay_ms: int | None = described(
        "The arrival delay. Null if too few rows are measured, or over too short a time.", example=35_400_000
    )
    late: float | None = described(
        "Share of the rows that arrive later, also later than `max_arrival_delay_ms`. Null without a delay.",
        example=0.002,
    )
    proven_ms: int | None = described(
        "Processing time up to which all queries with substreams that count have read all input. Null: the target "
        "would not move the watermark now. A query has proven nothing, there are reports without batches, or no "
        "substream counts.",
        example=1357556400000,
    )
    frames: int = described("Number of finished frames whose delays are known, the latest ones.", example=2000)
    recorded: FrameDelays | None = described("Their delays. Null if there are none.")
    expected: FrameDelays | None = described(
        "Their delays, if each had been complete at the arrival delay; the time until a batch proves it comes in "
        "addition. Null if it is not known, as for a longer delay than that of a target in force."
    )


def what_if_skew(job: JobState, limit_ms: int) -> WhatIfSkew:
    """Return what a job would do now under a limit on skew."""
    trial = copy(job)
    trial.config = replace(job.config, max_skew_ms=limit_ms)
    reached = None if job.is_complete else cap_by_holds(job, minimum(trial, None))
    candidate = offer(job.config.throttle, reached, job.coalesced_watermark, job.numbers)
    passed = next((each for each in passed_substreams(trial) if each.limit == "max_skew_ms"), None)
    named = () if passed is None else passed.substreams
    counts = [job.row_counts.get((each.query, each.substream), NO_ROWS) for each in named]
    rows = sum(each.on_time + each.updated + each.late for each in counts)
    return WhatIfSkew(limit_ms, highest(candidate, job.coalesced_watermark), passed, rows)


def what_if_arrivals(
    arrivals: Arrivals, proven_ms: int | None, config: JobConfig, target: float, completions: Iterable[Completion]
) -> WhatIfArrivals | None:
    """Return what a target would have done in the recorded past of a job; None without frames.

    Args:
        arrivals: The measured arrival delays.
        proven_ms: The result of :func:`tidegate.domain.limits.proven_until`.
        config: The configuration of the job.
        target: The target.
        completions: The frames that were finished.
    """
    policy = config.arrival_policy(target)
    if policy is None:
        return None
    delay_ms = wanted_delay_ms(arrivals, policy)
    delays = [max(each.delay_ms, 0) for each in completions]
    in_time = arrivals.sketch.weight / max(arrivals.sketch.weight + arrivals.too_old, 1)
    # Frames that were complete at the delay of a target in force say nothing about a longer delay.
    in_force = arrivals.learned if arrivals.learned is not None else policy.initial_lag
    is_known = delay_ms is not None and (config.arrival_target is None or delay_ms <= in_force)
    return WhatIfArrivals(
        target,
        arrivals.sketch.weight // ROW,
        policy.enough,
        (arrivals.last_end or 0) - (arrivals.first_end or 0),
        delay_ms,
        None if delay_ms is None else 1 - arrivals.sketch.completeness(delay_ms) * in_time,
        proven_ms,
        len(delays),
        FrameDelays.of(delays) if delays else None,
        FrameDelays.of([min(each, delay_ms) for each in delays])
        if delays and delay_ms is not None and is_known and proven_ms is not None
        else None,
    )
