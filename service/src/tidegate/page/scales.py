"""Scales of charts: ranges with round ends, which keep their place while the data moves."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidegate.times import ROUND_MS

MAX_STEPS = 6
"""Maximum number of steps that the data of a new range covers."""
SMALLEST_MS = MAX_STEPS * 1000
"""Smallest range of an axis of times, whose ticks are at least a second apart."""
MIN_USE = 0.2
"""Minimum share of a range that its data covers. Otherwise, a narrower range replaces it."""


@dataclass(frozen=True, slots=True)
class Range:
    """A range of times or durations, with a tick at each multiple of ``step``."""

    start: int
    end: int
    step: int

    def position(self, value: int) -> float:
        """Return the position of a value, in percent of the range."""
        return round(100 * (value - self.start) / (self.end - self.start), 3)

    def ticks(self) -> Iterator[int]:
        """Yield the multiples of the step in the range."""
        yield from range(-(-self.start // self.step) * self.step, self.end + 1, self.step)

    def has(self, low: int, high: int) -> bool:
        """Return whether the range contains both values."""
        return self.start <= low and high <= self.end


def step_for(span: int, steps: int = MAX_STEPS) -> int:
    """Return a round step so that at most ``steps`` steps cover a span."""
    longest = ROUND_MS[-1]
    multiple_of_longest = -(-span // (steps * longest)) * longest
    return next((step for step in ROUND_MS if span <= steps * step), multiple_of_longest)


def polyline(points: Iterable[tuple[float, float]]) -> str:
    """Return the points of a polyline in SVG."""
    return " ".join(f"{x},{y}" for x, y in points)


class Scales:
    """The ranges of the charts of one open page, by name.

    A range stays while its data fits and covers a fair share of it, so that marks move and the axis does not.
    """

    def __init__(self) -> None:
        self._ranges: dict[str, Range] = {}

    def range_of(self, name: str, low: int, high: int, smallest: int = 1) -> Range:
        """Return the range of a chart whose data reaches from ``low`` to ``high``; it is at least ``smallest`` wide."""
        kept = self._ranges.get(name)
        if kept is None or not kept.has(low, high) or max(high - low, smallest) < MIN_USE * (kept.end - kept.start):
            step = step_for(max(high - low, smallest))
            kept = self._ranges[name] = Range(low // step * step, (high // step + 1) * step, step)
        return kept
