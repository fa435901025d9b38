"""Geometry of the charts of the page: event-time axis, watermark lag, completeness, late rows."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidegate.domain.journal import Record
from tidegate.domain.ledger import HOUR, HOURS_KEPT
from tidegate.reads.completeness import Completeness
from tidegate.reads.late import LateHour

MAX_GAP = 3
"""Maximum distance of ``now`` from the other times, as a multiple of their span. Otherwise, the axis has a break."""
EDGE, BREAK, REST = 4.0, 88.0, 80.0
WIDTH, HEIGHT = 600, 60


@dataclass(frozen=True, slots=True)
class Mark:
    """A time on the axis, at ``x`` percent of the axis width."""

    name: str
    at_ms: int
    x: float

    @property
    def anchor(self) -> str:
        """The part of the label that is placed at ``x``: start, middle or end."""
        return "start" if self.x < 25 else "end" if self.x > 75 else "middle"


@dataclass(frozen=True, slots=True)
class Axis:
    """The axis of event time.

    Attributes:
        marks: The times on the axis.
        breaks_at: Position of the break next to a distant ``now``, in percent; None if the axis is to scale.
    """

    marks: tuple[Mark, ...]
    breaks_at: float | None

    def of(self, name: str) -> Mark | None:
        """Return the mark with this name, or None if the axis has no such mark."""
        return next((mark for mark in self.marks if mark.name == name), None)


def axis(watermark: int | None, coalesced_watermark: int | None, max_event_time: int | None, now: int) -> Axis | None:
    """Return the axis with these times, or None if no event time is known."""
    times = {"emitted": watermark, "coalesced_watermark": coalesced_watermark, "max_event_time": max_event_time}
    known = {name: at_ms for name, at_ms in times.items() if at_ms is not None}
    if not known:
        return None
    low, high = min(known.values()), max(known.values())
    gap = max(now - high, low - now)
    if gap <= MAX_GAP * (high - low):
        low, high = min(low, now), max(high, now)
        return Axis(tuple(_marks(known | {"now": now}, low, high, EDGE, 100 - EDGE)), None)
    if now > high:
        marks = _marks(known, low, high, EDGE, REST)
        return Axis((*marks, Mark("now", now, 100 - EDGE)), BREAK)
    return Axis((*_marks(known, low, high, 100 - REST, 100 - EDGE), Mark("now", now, EDGE)), 100 - BREAK)


def _marks(known: dict[str, int], low: int, high: int, start: float, end: float) -> list[Mark]:
    width = max(high - low, 1)
    middle = (end - start) / 2 if high == low else 0
    return [
        Mark(name, at_ms, round(start + middle + (end - start) * (at_ms - low) / width, 2))
        for name, at_ms in known.items()
    ]


@dataclass(frozen=True, slots=True)
class LagChart:
    """The watermark lag over processing time.

    Attributes:
        points: Points of a polyline in a box of ``WIDTH`` by ``HEIGHT``.
        lowest_ms: Lowest lag.
        highest_ms: Highest lag.
        latest_ms: Latest lag.
        from_ms: Processing time of the first point.
    """

    points: str
    lowest_ms: int
    highest_ms: int
    latest_ms: int
    from_ms: int


def lag_chart(emissions: Sequence[Record], now_ms: int) -> LagChart | None:
    """Return the chart of emissions, oldest first, or None for fewer than two emissions with a watermark.

    The lag grows with time, and falls with each emission.
    """
    watermarks = [(record.at_ms, record.details["watermark"]) for record in emissions if "watermark" in record.details]
    if len(watermarks) < 2:
        return None
    lags: list[tuple[int, int]] = []
    for (start_ms, watermark), (end_ms, _) in pairwise([*watermarks, (now_ms, 0)]):
        lags += [(start_ms, start_ms - watermark), (end_ms, end_ms - watermark)]
    lowest, highest = min(lag for _, lag in lags), max(lag for _, lag in lags)
    first, span = lags[0][0], max(now_ms - lags[0][0], 1)
    height = max(highest - lowest, 1)
    points = (
        (round(WIDTH * (at_ms - first) / span, 1), round(HEIGHT - HEIGHT * (lag - lowest) / height, 1))
        for at_ms, lag in lags
    )
    return LagChart(_polyline(points), lowest, highest, lags[-1][1], first)


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
STEPS_MS: list[int] = [
    *(digit * 10**power for power in range(3) for digit in (1, 2, 5)),
    *(step * unit for unit in (1000, 60_000) for step in (1, 2, 5, 10, 15, 30)),
    *(hours * 3_600_000 for hours in (1, 2, 3, 6, 12, 24, 48)),
]
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

    def label_step(self) -> int:
        """Return the distance between labels on the horizontal axis, as a round number."""
        longest = STEPS_MS[-1]
        steps = (step for step in STEPS_MS if self.right <= MAX_LABELS * step)
        return next(steps, -(-self.right // MAX_LABELS // longest) * longest)


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
        _polyline((scale.x(lag), scale.y(share)) for lag, share in steps),
        tuple((lag, scale.x(lag)) for lag in range(0, right + 1, scale.label_step())),
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
    """

    bars: tuple[Bar, ...]
    width: float
    highest: float
    first: int
    last: int


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
    return LateChart(bars, round(90 / slots, 3), highest, first, last)


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


def _polyline(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)
