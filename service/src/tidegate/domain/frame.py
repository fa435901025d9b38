"""Frame boundaries: the event times at which windows start and end.

A boundary is congruent to ``offset`` modulo ``slide``, for every window size.
"""

from dataclasses import dataclass

from tidegate.domain.errors import InvalidConfig
from tidegate.domain.numbers import EXACT_DOUBLE, NumberRange


@dataclass(frozen=True, slots=True)
class Frame:
    """Windows of ``size`` that start every ``slide``, shifted by ``offset``, all in the unit of the job.

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
