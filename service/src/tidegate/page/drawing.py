"""Where things are in the page's two pictures: an axis of event time, and how the watermark's lag has been."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidegate.domain.journal import Record

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


def axis(emitted: int | None, coalesced: int | None, top: int | None, now: int) -> Axis | None:
    """None where there is no event time yet to show."""
    named = {"emitted": emitted, "coalesced": coalesced, "top": top}
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


def _polyline(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)
