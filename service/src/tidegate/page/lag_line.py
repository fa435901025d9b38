"""Geometry of the small line of a job in the list of jobs: its watermark lag over the last three hours."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from tidegate.domain.results import WatermarkState
from tidegate.domain.timeline import COARSE_MS, Sample
from tidegate.page.lag import is_replayed
from tidegate.page.scales import Range

RANGE_MS = 3 * 3_600_000
SAMPLES = RANGE_MS // COARSE_MS + 1
"""Number of samples in the range, with one before it."""
WIDTH, HEIGHT, MARGIN = 240, 48, 3
"""Size of the line in units of half a pixel, and the distance from the upper and the lower edge."""

Point = tuple[int, int]
"""Processing time and value."""


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


def lag_line(samples: Sequence[Sample], state: WatermarkState) -> LagLine | None:
    """Return the line of a job from samples, oldest first, to its current state; None if it has fewer than two points.

    The line is straight between two samples. This is exact while the watermark does not move. If the watermark moves,
    its lag between the two samples is unknown.
    """
    now_ms, is_event_time = state.now_ms, is_replayed(state.watermark, state.now_ms)
    known = [(sample.at_ms, sample.watermark) for sample in samples if sample.at_ms < now_ms]
    values = [
        (at_ms, watermark if watermark is None or is_event_time else at_ms - watermark)
        for at_ms, watermark in (*known, (now_ms, state.watermark))
    ]
    parts = [part for part in _in_range(values, now_ms - RANGE_MS) if len(part) > 1]
    if not parts:
        return None
    shown = [value for part in parts for _, value in part]
    lowest, highest = min(shown), max(shown)
    bottom = lowest if is_event_time else min(lowest, 0)
    times, vertical = Range(now_ms - RANGE_MS, now_ms, 1), Range(bottom, max(highest, bottom + 1), 1)
    return LagLine([_line(part, times, vertical) for part in parts], is_event_time, lowest, highest)


def _in_range(values: Iterable[tuple[int, int | None]], start_ms: int) -> Iterator[list[Point]]:
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


def _line(points: Iterable[Point], times: Range, vertical: Range) -> str:
    x, y = WIDTH / 100, (HEIGHT - 2 * MARGIN) / 100
    positions = [(times.position(at_ms), 100 - vertical.position(value)) for at_ms, value in points]
    return " ".join(f"{round(x * left)},{round(MARGIN + y * top)}" for left, top in positions)
