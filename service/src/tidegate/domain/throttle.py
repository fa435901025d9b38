"""Throttles: how often the coalesced watermark moves.

A throttle turns the merged watermark into a candidate. A candidate ahead of the last watermark is emitted.
"""

from dataclasses import dataclass
from typing import ClassVar

from tidegate.domain.errors import InvalidConfig
from tidegate.domain.frame import Frame
from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange, above

NO_WATERMARK = -(2**63)
"""The number that stands for "no watermark" in a distance: the null of the traces."""


class Throttle:
    """The rule that limits how often C moves, with its effect on rows and windows."""

    type: ClassVar[str]

    def candidate(self, merged: int, last: int | None, numbers: NumberRange) -> int | None:
        """Return the watermark to emit instead of ``merged``, never ahead of it; None for none."""
        raise NotImplementedError

    @property
    def slide(self) -> int:
        """The step between window boundaries; 0 without frames."""
        return 0

    def next_step(self, last: int, numbers: NumberRange) -> int | None:
        """Return what the merged watermark must reach before C moves beyond ``last``; None if every step is emitted."""
        return None

    def classified_at(self, time: int, numbers: NumberRange) -> int:
        """Return the event time that decides whether a row is late: its own, or the last one of its window."""
        return time

    def end_after(self, max_event_time: int, numbers: NumberRange) -> int:
        """Return the watermark that completes an input with this max event time."""
        return numbers.plus(max_event_time, 1)


@dataclass(frozen=True, slots=True)
class NoThrottle(Throttle):
    """Every advance is emitted."""

    type: ClassVar[str] = "none"

    def candidate(self, merged: int, last: int | None, numbers: NumberRange) -> int | None:
        """Return ``merged``."""
        return merged


@dataclass(frozen=True, slots=True)
class FrameThrottle(Throttle):
    """Only window boundaries are emitted: between two boundaries no window closes."""

    frame: Frame
    type: ClassVar[str] = "frame"

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


@dataclass(frozen=True, slots=True)
class MinStepThrottle(Throttle):
    """A watermark at least ``min_step`` ahead of the last one is emitted, unrounded.

    Raises:
        InvalidConfig: For a step below 1.
    """

    min_step: int
    type: ClassVar[str] = "min_step"

    def __post_init__(self) -> None:
        """Validate the step."""
        if self.min_step < 1:
            raise InvalidConfig("throttle.min_step_ms", f"A step must be 1 or more; it is {self.min_step}.")

    def candidate(self, merged: int, last: int | None, numbers: NumberRange) -> int | None:
        """Return ``merged`` if it is at least ``min_step`` ahead of ``last``."""
        return merged if merged >= (NO_WATERMARK if last is None else last) + self.min_step else None

    def next_step(self, last: int, numbers: NumberRange) -> int | None:
        """Return ``last`` plus ``min_step``."""
        return numbers.plus(last, self.min_step)


def offer(throttle: Throttle, merged: int | None, last: int | None, numbers: NumberRange = EXACT_DOUBLE) -> int | None:
    """Return the watermark to emit now, which is ahead of ``last``; None for none."""
    candidate = None if merged is None else throttle.candidate(merged, last, numbers)
    return candidate if above(candidate, last) else None
