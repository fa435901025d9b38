"""Scales of all charts, which keep their place while the data moves; the charts of completeness and of late rows."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidegate.domain.completeness import HOUR, HOURS_KEPT
from tidegate.times import ROUND_MS
from tidegate.views.completeness import Completeness
from tidegate.views.late import LateHour

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


@dataclass(frozen=True, slots=True)
class CompletenessChart:
    """The completeness curve in a box of 100 by 100.

    Attributes:
        points: Points of a polyline.
        lags: Labels of the horizontal axis, with their positions in percent.
        shares: Labels of the vertical axis, with their positions in percent.
        in_force: Horizontal position of the lag in force; None if no lag is in force.
        recommended: Horizontal position of the recommended lag; None if no lag is recommended.
        target: Vertical position of the target; None if it is outside the chart.
        achieved: Vertical position of the achieved completeness; None if it is outside the chart.
    """

    points: str
    lags: tuple[tuple[int, float], ...]
    shares: tuple[tuple[float, float], ...]
    in_force: float | None
    recommended: float | None
    target: float | None
    achieved: float | None


MARGIN = 1.25
"""Width of the chart, as a multiple of the longest lag that it must show."""
NEARLY_ALL = 0.995
"""Completeness whose lag the chart always shows."""
MAX_LABELS = 4


@dataclass(frozen=True, slots=True)
class _Scale:
    """The ranges of the completeness chart: lags from 0 to ``right``, shares from ``bottom`` to 1."""

    right: int
    bottom: float

    def x(self, lag: float) -> float:
        return round(100 * lag / self.right, 2)

    def y(self, share: float) -> float:
        return round(100 - 100 * (share - self.bottom) / (1 - self.bottom), 2)

    def position(self, lag: int | None) -> float | None:
        return None if lag is None else self.x(lag)

    def height(self, share: float | None) -> float | None:
        return None if share is None or share < self.bottom else self.y(share)


def completeness_chart(measured: Completeness) -> CompletenessChart | None:
    """Return the chart of a completeness curve, or None if no delays were measured."""
    points = measured.points
    if not points:
        return None
    marked = [lag for lag in (measured.lag_ms, measured.recommended_lag_ms) if lag is not None]
    nearly_all = next((point.lag_ms for point in points if point.completeness >= NEARLY_ALL), 0)
    right = max(int(max([*marked, nearly_all]) * MARGIN), 1)
    scale = _Scale(right, min(math.floor(10 * points[0].completeness) / 10, 0.9))
    drawn = [(point.lag_ms, point.completeness) for point in points if point.lag_ms <= right]
    drawn.append((right, max(share for _, share in drawn)))
    # Between two lags, the completeness of the lower lag applies.
    steps = [drawn[0]]
    for (_, before), (lag, share) in pairwise(drawn):
        steps += [(lag, before), (lag, share)]
    shares = [scale.bottom + (1 - scale.bottom) * part / 2 for part in range(3)]
    return CompletenessChart(
        polyline((scale.x(lag), scale.y(share)) for lag, share in steps),
        tuple((lag, scale.x(lag)) for lag in range(0, right + 1, step_for(right, MAX_LABELS))),
        tuple((share, scale.y(share)) for share in shares),
        scale.position(measured.lag_ms),
        scale.position(measured.recommended_lag_ms),
        scale.height(measured.target),
        scale.height(measured.achieved),
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """One hour of the chart of late rows.

    Attributes:
        start: Event time at which the hour starts.
        x: Position in percent.
        title: Number of rows by class.
        parts: Row class, top and height of each part.
    """

    start: int
    x: float
    title: str
    parts: tuple[tuple[str, float, float], ...]


@dataclass(frozen=True, slots=True)
class LateChart:
    """The share of updated, dropped and diverted rows by hour, in a box of 100 by 100.

    Attributes:
        bars: Hours with updated, dropped or diverted rows.
        width: Width of a bar.
        highest: Share at the top of the chart.
        first: Event time at which the first hour starts.
        last: Event time at which the last hour ends.
        axis: The event times on the horizontal axis, or None if the hours are not drawn to scale.
    """

    bars: tuple[Bar, ...]
    width: float
    highest: float
    first: int
    last: int
    axis: Range | None


PARTS = ("dropped", "diverted", "updated")
MIN_SHARE = 0.01
"""Minimum share at the top of the chart."""
MAX_HOURS = 10 * HOURS_KEPT
"""Maximum number of hours drawn to scale. In a longer range, the hours with rows are drawn side by side."""


def late_chart(hours: Sequence[LateHour]) -> LateChart | None:
    """Return the chart of the hours of a job, or None if all rows were on time."""
    if not any(map(_not_on_time, hours)):
        return None
    first, last = hours[0].start, hours[-1].start + HOUR
    highest = max(MIN_SHARE, *(_not_on_time(hour) / _rows(hour) for hour in hours))
    slots = (last - first) // HOUR
    to_scale = slots <= MAX_HOURS
    slots = slots if to_scale else len(hours)
    places = [(hour.start - first) // HOUR if to_scale else index for index, hour in enumerate(hours)]
    bars = tuple(
        _bar(hour, round(100 * place / slots, 3), highest)
        for place, hour in zip(places, hours, strict=True)
        if _not_on_time(hour)
    )
    axis = Range(first, last, max(step_for(last - first), HOUR)) if to_scale else None
    return LateChart(bars, round(90 / slots, 3), highest, first, last, axis)


def _bar(hour: LateHour, x: float, highest: float) -> Bar:
    counts = {part: getattr(hour, part) for part in PARTS if getattr(hour, part)}
    parts, top = [], 100.0
    for part, count in counts.items():
        height = 100 * count / _rows(hour) / highest
        top -= height
        parts.append((part, round(top, 2), round(height, 2)))
    listed = ", ".join(f"{count:,} {part}" for part, count in counts.items())
    return Bar(hour.start, x, f"{listed} of {_rows(hour):,} rows", tuple(parts))


def _rows(hour: LateHour) -> int:
    return max(hour.rows or 0, 1)


def _not_on_time(hour: LateHour) -> int:
    return hour.dropped + hour.diverted + hour.updated
