"""Where things are in the page's pictures: an axis of event time, how the watermark's lag has been, what share of the
rows a lag would have had on time, and what share of those of an hour were not.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidegate.api.schemas.completeness import CompletenessRecord
from tidegate.api.schemas.late import HourRecord
from tidegate.domain.journal import Record
from tidegate.domain.ledger import HOUR, HOURS_KEPT

FAR = 3
"""``now`` is drawn to scale unless it is more than so many times as far away as the rest is wide."""
EDGE, BREAK, REST = 4.0, 88.0, 80.0
WIDTH, HEIGHT = 600, 60


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment on the axis, at ``x`` per cent of its width; ``anchor``: which end of its label is there."""

    name: str
    at_ms: int
    x: float

    @property
    def anchor(self) -> str:
        return "start" if self.x < 25 else "end" if self.x > 75 else "middle"


@dataclass(frozen=True, slots=True)
class Axis:
    """``breaks_at``: where the axis is not to scale, for ``now`` is far away; None: all of it is."""

    marks: tuple[Mark, ...]
    breaks_at: float | None

    def of(self, name: str) -> Mark | None:
        return next((mark for mark in self.marks if mark.name == name), None)


def axis(emitted: int | None, coalesced_watermark: int | None, max_event_time: int | None, now: int) -> Axis | None:
    """None where there is no event time yet to show."""
    named = {"emitted": emitted, "coalesced_watermark": coalesced_watermark, "max_event_time": max_event_time}
    known = {name: at_ms for name, at_ms in named.items() if at_ms is not None}
    if not known:
        return None
    low, high = min(known.values()), max(known.values())
    gap = max(now - high, low - now)
    if gap <= FAR * (high - low):
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
class Spark:
    """The lag of the watermark over processing time: ``points`` of a polyline in ``WIDTH`` by ``HEIGHT``; the lowest,
    the highest and the latest lag; and since when.
    """

    points: str
    lowest_ms: int
    highest_ms: int
    latest_ms: int
    from_ms: int


def spark(emissions: Sequence[Record], now_ms: int) -> Spark | None:
    """From emissions, oldest first. Between two of them the lag grows with time; each takes some of it away."""
    told = [(record.at_ms, record.details["watermark"]) for record in emissions if "watermark" in record.details]
    if len(told) < 2:
        return None
    lags: list[tuple[int, int]] = []
    for (before_ms, watermark), (at_ms, _) in zip(told, [*told[1:], (now_ms, 0)], strict=True):
        lags += [(before_ms, before_ms - watermark), (at_ms, at_ms - watermark)]
    lowest, highest = min(lag for _, lag in lags), max(lag for _, lag in lags)
    first, span = lags[0][0], max(now_ms - lags[0][0], 1)
    height = max(highest - lowest, 1)
    points = (
        (round(WIDTH * (at_ms - first) / span, 1), round(HEIGHT - HEIGHT * (lag - lowest) / height, 1))
        for at_ms, lag in lags
    )
    return Spark(_polyline(points), lowest, highest, lags[-1][1], first)


@dataclass(frozen=True, slots=True)
class Plot:
    """Completeness over lag: ``points`` of a polyline in 100 by 100; ``ticks`` of both axes, each with where it is in
    per cent; the lag in force and the one for the target, if they are known, likewise; and the heights of the target
    and of what was achieved, if they are within the picture.
    """

    points: str
    lags: tuple[tuple[int, float], ...]
    shares: tuple[tuple[float, float], ...]
    in_force: float | None
    recommended: float | None
    target: float | None
    achieved: float | None


BEYOND = 1.25
"""The picture goes so much further than the longest lag that is marked in it."""
NEARLY_ALL = 0.995


STEPS_MS: list[int] = [
    *(digit * 10**power for power in range(3) for digit in (1, 2, 5)),
    *(step * unit for unit in (1000, 60_000) for step in (1, 2, 5, 10, 15, 30)),
    *(hours * 3_600_000 for hours in (1, 2, 3, 6, 12, 24, 48)),
]
MOST_TICKS = 4


def _step(right: int) -> int:
    """From tick to tick, so that they are at round numbers."""
    days = STEPS_MS[-1]
    return next((step for step in STEPS_MS if right <= MOST_TICKS * step), -(-right // MOST_TICKS // days) * days)


def plot(known: CompletenessRecord) -> Plot | None:
    """None where nothing is known of delays."""
    if not known.points:
        return None
    marked = [lag for lag in (known.lag_ms, known.recommended_lag_ms) if lag is not None]
    nearly = next((point.lag_ms for point in known.points if point.completeness >= NEARLY_ALL), 0)
    right = max(int(max([*marked, nearly]) * BEYOND), 1)
    lowest_share = known.points[0].completeness
    drawn: list[tuple[float, float]] = []
    for point in known.points:
        if point.lag_ms <= right:
            drawn.append((point.lag_ms, point.completeness))
    drawn.append((right, max(point.completeness for point in known.points if point.lag_ms <= right)))
    lowest_share = min(math.floor(10 * lowest_share) / 10, 0.9)

    def x(lag: float) -> float:
        return round(100 * lag / right, 2)

    def y(share: float | None) -> float | None:
        return (
            None
            if share is None or share < lowest_share
            else round(100 - 100 * (share - lowest_share) / (1 - lowest_share), 2)
        )

    # Between two lags of the curve it is as it was at the lower one.
    steps = [(drawn[0][0], drawn[0][1])]
    for (_, before), (lag, share) in pairwise(drawn):
        steps += [(lag, before), (lag, share)]
    shares = [lowest_share + (1 - lowest_share) * part / 2 for part in range(3)]
    return Plot(
        _polyline((x(lag), y(share) or 0.0) for lag, share in steps),
        tuple((lag, x(lag)) for lag in range(0, right + 1, _step(right))),
        tuple((share, y(share) or 0.0) for share in shares),
        None if known.lag_ms is None else x(known.lag_ms),
        None if known.recommended_lag_ms is None else x(known.recommended_lag_ms),
        y(known.target),
        y(known.achieved),
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """One hour, from ``start`` on: what is ``said`` of it, and its ``parts``, each of a class, from ``y`` down, so
    high.
    """

    start: int
    x: float
    said: str
    parts: tuple[tuple[str, float, float], ...]


@dataclass(frozen=True, slots=True)
class Bars:
    """The share of the rows of each hour that were not on time, in 100 by 100: the ``highest`` is at the top. ``first``
    and ``last``: where the hours begin and end.
    """

    bars: tuple[Bar, ...]
    width: float
    highest: float
    first: int
    last: int


PARTS = ("dropped", "diverted", "updated")
LEAST_SHARE = 0.01
"""The picture is not so steep that less than this fills it."""
MOST_HOURS = 10 * HOURS_KEPT
"""Hours may lie far apart: then they are drawn side by side, and not to scale."""


def bars(hours: Sequence[HourRecord]) -> Bars | None:
    """Of the hours of a job. None where none had any such rows."""
    if not any(_not_on_time(hour) for hour in hours):
        return None
    rows = {hour.start: max(hour.rows or 0, 1) for hour in hours}
    first, last = hours[0].start, hours[-1].start + HOUR
    highest = max(LEAST_SHARE, *(_not_on_time(hour) / rows[hour.start] for hour in hours))
    slots = (last - first) // HOUR
    to_scale = slots <= MOST_HOURS
    slots = slots if to_scale else len(hours)
    drawn = []
    for at, hour in enumerate(hours):
        if not _not_on_time(hour):
            continue
        place = (hour.start - first) // HOUR if to_scale else at
        parts, below = [], 100.0
        for part in PARTS:
            height = 100 * getattr(hour, part) / rows[hour.start] / highest
            if height:
                below -= height
                parts.append((part, round(below, 2), round(height, 2)))
        counted = ", ".join(f"{getattr(hour, part):,} {part}" for part in PARTS if getattr(hour, part))
        drawn.append(
            Bar(hour.start, round(100 * place / slots, 3), f"{counted} of {rows[hour.start]:,} rows", tuple(parts))
        )
    return Bars(tuple(drawn), round(90 / slots, 3), highest, first, last)


def _not_on_time(hour: HourRecord) -> int:
    return hour.dropped + hour.diverted + hour.updated


def _polyline(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)
