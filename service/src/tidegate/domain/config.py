"""The configuration of a job: policy, throttle, limits, overrides and expected queries.

A throttle limits how often the coalesced watermark C moves. It derives a candidate from the merged watermark. C moves
to the candidate if the candidate is ahead of C.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from tidegate.domain.calendar import DAY_MS, Frames
from tidegate.domain.errors import InvalidConfig
from tidegate.domain.policies import HIGHEST_TARGET, LOWEST_TARGET, POLICIES, Policy, TargetCompleteness
from tidegate.domain.values import EXACT_DOUBLE, NumberRange, above, check_declared, effects, matches, parameter

# Throttles


@dataclass(frozen=True, slots=True)
class Frame:
    """Windows of ``size`` that start every ``slide``, shifted by ``offset``, all in the unit of the job.

    A boundary is an event time at which windows start or end: congruent to ``offset`` modulo ``slide``, for every
    window size.

    Raises:
        InvalidConfig: Unless ``size`` is a positive multiple of ``slide`` and ``0 <= offset < slide``.
    """

    size: int
    slide: int
    offset: int = 0

    def __post_init__(self) -> None:
        """Validate the numbers."""
        if self.slide < 1:
            raise InvalidConfig("throttle.slide_ms", f"The slide of a frame must be 1 or more; it is {self.slide}.")
        if self.size < 1 or self.size % self.slide:
            problem = f"The size of a frame must be a positive multiple of its slide ({self.slide}); it is {self.size}."
            raise InvalidConfig("throttle.size_ms", problem)
        if not 0 <= self.offset < self.slide:
            problem = f"The offset of a frame must be from 0 to slide - 1 ({self.slide - 1}); it is {self.offset}."
            raise InvalidConfig("throttle.offset_ms", problem)

    def floor(self, time: int, numbers: NumberRange = EXACT_DOUBLE) -> int | None:
        """Return the last boundary at or before ``time``; None if that boundary is below the range of numbers."""
        return numbers.minus(time, (time - self.offset) % self.slide)

    def higher(self, time: int, numbers: NumberRange = EXACT_DOUBLE) -> int:
        """Return the first boundary after ``time``, but at most the highest number of the range."""
        return min(time - (time - self.offset) % self.slide + self.slide, numbers.highest)


NO_WATERMARK = -(2**63)
"""The number that stands for "no watermark" in the computation of a distance, as in the conformance traces."""


class Throttle:
    """A rule that limits how often C moves."""

    type: ClassVar[str]

    def __post_init__(self) -> None:
        """Validate the parameters."""
        check_declared(self, "throttle.")

    def candidate(self, merged: int, last: int | None, numbers: NumberRange) -> int | None:
        """Return the candidate for C, at most ``merged``; None if C must not move."""
        return merged

    @property
    def slide(self) -> int:
        """The step between window boundaries; 0 if the throttle has no frame."""
        return 0

    def next_step(self, last: int, numbers: NumberRange) -> int | None:
        """Return the merged watermark at which C moves beyond ``last``; None if C follows every advance."""
        return None

    def classified_at(self, time: int, numbers: NumberRange) -> int:
        """Return the event time by which a row is classified.

        A frame classifies a row by the last event time in its window; other throttles use the event time of the row.
        """
        return time

    def end_after(self, max_event_time: int, numbers: NumberRange) -> int:
        """Return the watermark that completes an input with this max event time."""
        return numbers.plus(max_event_time, 1)


@dataclass(frozen=True)
class NoThrottle(Throttle):
    """A throttle that moves the coalesced watermark with every advance of the merged watermark."""

    type: ClassVar[str] = "none"


@dataclass(frozen=True)
class FrameThrottle(Throttle):
    """A throttle that moves the coalesced watermark only to window boundaries, where windows close.

    Raises:
        InvalidConfig: If parameters are outside their ranges or contradict each other.
    """

    size_ms: int = parameter("Size of a window in milliseconds.", minimum=1, example=3_600_000)
    slide_ms: int | None = parameter(
        "Distance between window starts in milliseconds. Null: `size_ms`.", minimum=1, example=3_600_000, default=None
    )
    offset_ms: int = parameter("Offset of the windows from the epoch in milliseconds.", example=0, default=0)
    type: ClassVar[str] = "frame"

    def __post_init__(self) -> None:
        """Validate the parameters."""
        super().__post_init__()
        _ = self.frame

    @cached_property
    def frame(self) -> Frame:
        """The window boundaries."""
        return Frame(self.size_ms, self.size_ms if self.slide_ms is None else self.slide_ms, self.offset_ms)

    def candidate(self, merged: int, last: int | None, numbers: NumberRange) -> int | None:
        """Return the last boundary at or before ``merged``."""
        return self.frame.floor(merged, numbers)

    @property
    def slide(self) -> int:
        """The slide of the frame."""
        return self.frame.slide

    def next_step(self, last: int, numbers: NumberRange) -> int | None:
        """Return the first boundary after ``last``."""
        floor = self.frame.floor(last, numbers)
        return numbers.plus(last if floor is None else floor, self.frame.slide)

    def classified_at(self, time: int, numbers: NumberRange) -> int:
        """Return the last event time before the next boundary."""
        return self.frame.higher(time, numbers) - 1

    def end_after(self, max_event_time: int, numbers: NumberRange) -> int:
        """Return the first boundary after the max event time."""
        return self.frame.higher(max_event_time, numbers)


@dataclass(frozen=True)
class MinStepThrottle(Throttle):
    """A throttle that moves the coalesced watermark only in steps of at least ``min_step_ms``.

    Raises:
        InvalidConfig: If the step is below 1.
    """

    min_step_ms: int = parameter("Minimum advance in milliseconds.", minimum=1, example=60_000)
    type: ClassVar[str] = "min_step"

    def candidate(self, merged: int, last: int | None, numbers: NumberRange) -> int | None:
        """Return ``merged`` if it is at least ``min_step_ms`` ahead of ``last``."""
        return merged if merged >= (NO_WATERMARK if last is None else last) + self.min_step_ms else None

    def next_step(self, last: int, numbers: NumberRange) -> int | None:
        """Return ``last`` plus ``min_step_ms``."""
        return numbers.plus(last, self.min_step_ms)


THROTTLES: tuple[type[Throttle], ...] = (NoThrottle, FrameThrottle, MinStepThrottle)
"""All throttles; every other list of throttles derives from this one."""


def offer(throttle: Throttle, merged: int | None, last: int | None, numbers: NumberRange = EXACT_DOUBLE) -> int | None:
    """Return the candidate of the throttle if it is ahead of ``last``; otherwise None."""
    candidate = None if merged is None else throttle.candidate(merged, last, numbers)
    return candidate if above(candidate, last) else None


# The configuration

MAX_OVERRIDES = 100
MAX_EXPECTED_QUERIES = 1000
MAX_WILDCARDS = 4
"""Maximum number of ``*`` in a pattern. Redis serves no other job while it matches the names of a report."""


@dataclass(frozen=True, slots=True)
class Override:
    """A policy for the substreams whose names match ``pattern``, instead of the job's policy."""

    pattern: str
    policy: Policy


def _limit(description: str, *, example: int, effect: str) -> Any:
    """Return a field for a limit that is off by default."""
    return parameter(description, minimum=1, example=example, default=None, effect=effect)


USUAL_TARGET = 0.999
"""Target for which a job without ``arrival_target`` keeps enough arrival delays."""


@dataclass(frozen=True, slots=True)
class JobConfig:
    """The configuration of one job. Limits are in milliseconds of processing time, and ``max_skew_ms`` of event time.

    None turns a limit off.

    The first of the ``overrides`` whose pattern matches a substream sets its policy. Each of the ``expected_queries``
    holds the watermark from the start until its substreams are known. ``freezes_idle`` is for the conformance traces:
    watermarks of idle substreams then do not follow the clock.

    Raises:
        InvalidConfig: If a limit is outside its range, the job has too many overrides or queries, or a query is
            repeated.
    """

    policy: Policy
    throttle: Throttle = field(default_factory=NoThrottle)
    idle_timeout_ms: int | None = _limit(
        "Observed silence after which a substream no longer holds the watermark. Null: off.",
        example=900_000,
        effect="it becomes idle",
    )
    max_retention_ms: int | None = _limit(
        "Maximum time for which slower substreams hold the watermark below the fastest substream. Null: off.",
        example=7_200_000,
        effect="retention excludes it",
    )
    max_skew_ms: int | None = _limit(
        "Maximum distance, in event time, of a substream's watermark behind the median of the substreams that count. A "
        "substream that is further behind does not hold the watermark. Null: off.",
        example=21_600_000,
        effect="it does not hold the watermark until it catches up",
    )
    arrival_target: float | None = parameter(
        "Share of the rows that arrive before their frame is complete. The watermark waits for silent substreams no "
        "longer than this share of the rows takes to arrive, once the queries have read all input. Needs `frames`. "
        "Null: off.",
        minimum=LOWEST_TARGET,
        maximum=HIGHEST_TARGET,
        example=0.998,
        default=None,
        effect="few rows arrive so late",
    )
    max_arrival_delay_ms: int = parameter(
        "Arrival delay for `arrival_target` until enough rows are measured, and the highest one. Rows that arrive "
        "later are those of old data that is read again, and teach nothing.",
        minimum=1,
        example=DAY_MS,
        default=DAY_MS,
    )
    query_timeout_ms: int | None = _limit(
        "Time without contact after which the substreams of a query no longer hold the watermark. Null: off.",
        example=3_600_000,
        effect="the watermark advances without its query",
    )
    max_batch_hold_ms: int | None = _limit(
        "Time after which an open batch no longer holds the watermark. Null: off.",
        example=86_400_000,
        effect="the watermark advances without it",
    )
    max_future_skew_ms: int | None = parameter(
        "Maximum distance of event times ahead of the clock; the coordinator ignores later event times. Set null if "
        "event times are not Unix milliseconds.",
        example=DAY_MS,
        default=None,
        request_default=DAY_MS,
    )
    max_lag_ms: int | None = parameter(
        "Lag of the watermark behind processing time above which the health of the job is `lagging`. It moves no "
        "watermark. Null: off.",
        minimum=1,
        example=3_600_000,
        default=None,
    )
    overrides: tuple[Override, ...] = ()
    expected_queries: tuple[str, ...] = ()
    frames: Frames | None = None
    delay_half_life_ms: int = parameter(
        "Half-life of the weight of measured delays, in milliseconds of event time.",
        minimum=1,
        example=DAY_MS,
        default=DAY_MS,
    )
    freezes_idle: bool = False

    def __post_init__(self) -> None:
        """Validate limits, overrides and expected queries."""
        check_declared(self)
        if self.arrival_target is not None and self.frames is None:
            problem = "A job needs frames to learn when their rows arrive: declare frames, or remove arrival_target."
            raise InvalidConfig("arrival_target", problem)
        if len(self.overrides) > MAX_OVERRIDES:
            raise InvalidConfig("overrides", f"A job may have at most {MAX_OVERRIDES} overrides; remove some.")
        if len(self.expected_queries) > MAX_EXPECTED_QUERIES:
            problem = f"A job may expect at most {MAX_EXPECTED_QUERIES} queries; remove some."
            raise InvalidConfig("expected_queries", problem)
        if len(set(self.expected_queries)) != len(self.expected_queries):
            raise InvalidConfig("expected_queries", "A query is listed twice; list each query once.")

    def check_patterns(self) -> None:
        """Check the patterns of a new configuration. Older versions stored patterns with more wildcards.

        Raises:
            InvalidConfig: If a pattern has too many wildcards.
        """
        for number, override in enumerate(self.overrides):
            if override.pattern.count("*") > MAX_WILDCARDS:
                problem = f"A pattern may have at most {MAX_WILDCARDS} wildcards (*); {override.pattern!r} has more."
                raise InvalidConfig(f"overrides.{number}.substreams", problem)

    def arrival_policy(self, target: float | None = None) -> TargetCompleteness | None:
        """Return the rule by which a job with frames learns its arrival delay; None without frames.

        Args:
            target: Another target than that of the job. A job without a target measures the delays as for
                :data:`USUAL_TARGET`.
        """
        if self.frames is None:
            return None
        target, highest = target or self.arrival_target or USUAL_TARGET, self.max_arrival_delay_ms
        # A further row is older than the oldest of n rows with a probability of 1 / (n + 1).
        return TargetCompleteness(target, highest, ceiling_ms=highest, min_rows=math.ceil(round(1 / (1 - target), 6)))

    def policies(self) -> tuple[Policy, ...]:
        """Return every policy that a substream of this job may have."""
        return self.policy, *(override.policy for override in self.overrides)

    def policy_of(self, substream: str) -> Policy:
        """Return the policy of a substream."""
        override = self._override_of(substream)
        return self.policy if override is None else override.policy

    def override_of(self, substream: str) -> str | None:
        """Return the pattern of the override that applies to a substream; None if no override applies."""
        override = self._override_of(substream)
        return None if override is None else override.pattern

    def _override_of(self, substream: str) -> Override | None:
        return next((override for override in self.overrides if matches(override.pattern, substream)), None)


JOB_LIMITS = effects(JobConfig)
"""Limits of a job by name, each with its effect."""

POLICY_LIMITS = effects(*POLICIES)
"""Parameters of policies that override the lag, each with its effect."""

LIMITS = JOB_LIMITS | POLICY_LIMITS
"""Settings that let C pass a substream or W pass a batch. The history records each time a limit acts."""
