"""The points of lines that show a watermark or its lag over processing time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from tidegate.domain.history import Sample

REPLAYED_MS = 90 * 86_400_000
"""Distance from processing time above which event times are replayed or simulated, so that a lag has no meaning."""

Point = tuple[int, int]
"""Processing time, and the lag or the watermark."""


@dataclass(frozen=True, slots=True)
class LagPoints:
    """The points of a job in a range of processing time.

    Lines are straight between two samples. This is exact while the watermark does not move. If the watermark moves, its
    lag between the two samples is unknown.

    Attributes:
        lines: Points of each line. A line ends where the job had no watermark.
        is_event_time: Whether the values are watermarks instead of lags, because event times are replayed.
        lowest: Lowest value.
        highest: Highest value.
    """

    lines: Sequence[Sequence[Point]]
    is_event_time: bool
    lowest: int
    highest: int


def is_replayed(watermark: int | None, now_ms: int) -> bool:
    """Return whether the event times of a job are replayed or simulated."""
    return watermark is not None and abs(now_ms - watermark) > REPLAYED_MS


def lag_points(samples: Sequence[Sample], watermark: int | None, range_ms: int, now_ms: int) -> LagPoints | None:
    """Return the points from samples, oldest first, to the current watermark; None if no line has two points."""
    is_event_time = is_replayed(watermark, now_ms)
    known = [(sample.at_ms, sample.watermark) for sample in samples if sample.at_ms < now_ms]
    values = [
        (at_ms, value if value is None or is_event_time else at_ms - value)
        for at_ms, value in (*known, (now_ms, watermark))
    ]
    lines = [line for line in _lines(values, now_ms - range_ms) if len(line) > 1]
    if not lines:
        return None
    shown = [value for line in lines for _, value in line]
    return LagPoints(lines, is_event_time, min(shown), max(shown))


def _lines(values: Sequence[tuple[int, int | None]], start_ms: int) -> Iterator[Sequence[Point]]:
    """Yield the points of each line, from ``start_ms``."""
    for is_known, group in groupby(values, key=lambda point: point[1] is not None):
        if is_known:
            points = [(at_ms, value) for at_ms, value in group if value is not None]
            crossings = [
                (start_ms, value + (following - value) * (start_ms - at_ms) // (until_ms - at_ms))
                for (at_ms, value), (until_ms, following) in pairwise(points)
                if at_ms < start_ms < until_ms
            ]
            yield crossings + [point for point in points if point[0] >= start_ms]
