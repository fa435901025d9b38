"""Throttles: which of the merged watermarks are worth emitting.

A throttle turns the ideal watermark into a candidate; the candidate goes out when it is ahead of the last one that did.
"""

from dataclasses import dataclass
from typing import Protocol

from tidegate.domain.errors import InvalidConfig
from tidegate.domain.frame import Frame
from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange, above

NO_WATERMARK = -(2**63)
"""What "no watermark" counts as where a distance from it is measured: the traces' null."""


class Throttle(Protocol):
    """What stands between the merged watermark and the emitted one."""

    def candidate(self, ideal: int, last: int | None, numbers: NumberRange) -> int | None:
        """The watermark that may go out in place of ``ideal``: never ahead of it."""
        ...


@dataclass(frozen=True, slots=True)
class NoThrottle:
    """Emits every advance."""

    def candidate(self, ideal: int, last: int | None, numbers: NumberRange) -> int | None:
        return ideal


@dataclass(frozen=True, slots=True)
class FrameThrottle:
    """Emits once a frame, and emits the boundary: nobody closes a window between two boundaries."""

    frame: Frame

    def candidate(self, ideal: int, last: int | None, numbers: NumberRange) -> int | None:
        return self.frame.floor(ideal, numbers)


@dataclass(frozen=True, slots=True)
class MinStepThrottle:
    """Emits what is *at least* ``min_step`` ahead of the last emission, unrounded.

    (An older reading of the same rule is "more than" the step ahead; on whole numbers that is a step greater by one.)

    :raises InvalidConfig: for a step below 1.
    """

    min_step: int

    def __post_init__(self) -> None:
        if self.min_step < 1:
            raise InvalidConfig("throttle.min_step_ms", f"A step must be 1 or more; it is {self.min_step}.")

    def candidate(self, ideal: int, last: int | None, numbers: NumberRange) -> int | None:
        return ideal if ideal >= (NO_WATERMARK if last is None else last) + self.min_step else None


def offer(throttle: Throttle, ideal: int | None, last: int | None, numbers: NumberRange = EXACT_DOUBLE) -> int | None:
    """The watermark to emit now, or None. ``last`` is the one emitted before; what is emitted is always ahead of it."""
    candidate = None if ideal is None else throttle.candidate(ideal, last, numbers)
    return candidate if above(candidate, last) else None
