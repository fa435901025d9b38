"""Geometry of the small line of a job in the list of jobs: its watermark lag over the last three hours."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidegate.domain.history import COARSE_MS, Sample
from tidegate.domain.results import JobWatermark
from tidegate.page.lag_points import Point, lag_points
from tidegate.page.scales import Range, polyline

RANGE_MS = 3 * 3_600_000
SAMPLES = RANGE_MS // COARSE_MS + 1
"""Number of samples in the range, with one before it."""
WIDTH, HEIGHT, MARGIN = 240, 48, 3
"""Size of the line in units of half a pixel, and the distance from the upper and the lower edge."""


@dataclass(frozen=True, slots=True)
class LagLine:
    """The line of a job.

    Attributes:
        lines: Points of polylines. A line ends where the job had no watermark.
        is_event_time: Whether the line shows the watermark itself, because event times are replayed.
        lowest: Lowest lag or watermark in the range.
        highest: Highest lag or watermark in the range.
    """

    lines: Sequence[str]
    is_event_time: bool
    lowest: int
    highest: int


def lag_line(samples: Sequence[Sample], state: JobWatermark) -> LagLine | None:
    """Return the line of a job from samples, oldest first, to its current state; None if it has no line."""
    points = lag_points(samples, state.watermark, RANGE_MS, state.now_ms)
    if points is None:
        return None
    bottom = points.lowest if points.is_event_time else min(points.lowest, 0)
    times = Range(state.now_ms - RANGE_MS, state.now_ms, 1)
    vertical = Range(bottom, max(points.highest, bottom + 1), 1)
    lines = [_line(line, times, vertical) for line in points.lines]
    return LagLine(lines, points.is_event_time, points.lowest, points.highest)


def _line(points: Iterable[Point], times: Range, vertical: Range) -> str:
    x, y = WIDTH / 100, (HEIGHT - 2 * MARGIN) / 100
    positions = [(times.position(at_ms), 100 - vertical.position(value)) for at_ms, value in points]
    return polyline((round(x * left), round(MARGIN + y * top)) for left, top in positions)
