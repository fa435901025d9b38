"""Throttles: the rules that limit how often the coalesced watermark C moves.

A throttle derives a candidate from the merged watermark. C moves to the candidate if the candidate is ahead of C.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from tidegate.domain.frame import Frame
from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange, above
from tidegate.domain.parameters import check_declared, parameter

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
