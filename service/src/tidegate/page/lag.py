"""Geometry of the lag over processing time: the chart of a job with its holders, and its small line in the job list."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, takewhile
from typing import Any

from tidegate.domain.history import COARSE_MS, Sample
from tidegate.domain.results import JobWatermark
from tidegate.page.charts import SMALLEST_MS, Range, Scales, polyline, step_for
from tidegate.views.holders import HolderKey, Stretch, held_by_key, key_of, key_of_sample, stretches
from tidegate.views.sentences import Fragment, holder_over_time, plain_text

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


SHORTEST_MS = 10_000
"""Shortest range in milliseconds, for a job that has just begun."""
COLORS = 5
"""Number of holders with a color of their own. The others share one color."""


@dataclass(frozen=True, slots=True)
class HeldSpan:
    """A range of processing time with one holder, in percent of the chart."""

    color: str
    x: float
    width: float
    from_ms: int
    to_ms: int
    holder: Sequence[Fragment]


@dataclass(frozen=True, slots=True)
class HeldShare:
    """The share of the range during which one holder, or the holders without a color, held the watermark."""

    color: str
    holder: Sequence[Fragment]
    held_ms: int
    share: float


@dataclass(frozen=True, slots=True)
class LagChart:
    """The watermark lag over processing time. Positions are in percent, from the left and from the top.

    Attributes:
        lines: Points of polylines. A line ends where the job had no watermark.
        is_event_time: Whether the vertical axis shows the watermark itself, because event times are replayed.
        vertical: The lags or watermarks on the vertical axis.
        times: The processing times on the horizontal axis.
        lowest: Lowest value on the vertical axis that occurs.
        highest: Highest value that occurs.
        lag_at_start: Lag at the start of the range; None if it is unknown, or the event times are replayed.
        spans: Holders, in order of time.
        shares: Holders, longest first.
        points: Time, watermark and holder of each sample, and the current watermark, for the script of the page.
    """

    lines: Sequence[str]
    is_event_time: bool
    vertical: Range
    times: Range
    lowest: int
    highest: int
    lag_at_start: int | None
    spans: Sequence[HeldSpan]
    shares: Sequence[HeldShare]
    points: Sequence[tuple[int, int | None, str]]


def lag_chart(
    samples: Sequence[Sample], watermark: int | None, range_ms: int, now_ms: int, scales: Scales
) -> LagChart | None:
    """Return the chart of the samples, oldest first, and of the current watermark; None if it has no line.

    The chart covers the range, or the time since the first sample if that is shorter.
    """
    points = lag_points(samples, watermark, range_ms, now_ms)
    if points is None:
        return None
    start = min(max(samples[0].at_ms, now_ms - range_ms), now_ms - SHORTEST_MS)
    times = Range(start, now_ms, step_for(now_ms - start))
    if points.is_event_time:
        vertical = scales.range_of("watermark", points.lowest, points.highest, SMALLEST_MS)
    else:
        vertical = scales.range_of("lag", min(points.lowest, 0), points.highest)
    parts = list(stretches(samples, times.start, times.end))
    colors, shares = _held(parts)
    known = [(part.sample.at_ms, part.sample.watermark, plain_text(_named(part.sample), now_ms)) for part in parts]
    return LagChart(
        [_line(line, times, vertical) for line in points.lines],
        points.is_event_time,
        vertical,
        times,
        points.lowest,
        points.highest,
        _lag_at_start(points, now_ms - range_ms),
        list(_spans(parts, times, colors)),
        shares,
        [*known, (now_ms, watermark, "")],
    )


def _lag_at_start(points: LagPoints, start_ms: int) -> int | None:
    at_ms, lag = points.lines[0][0]
    return lag if at_ms == start_ms and not points.is_event_time else None


def held_since(samples: Sequence[Sample], held_by: Mapping[str, Any]) -> int | None:
    """Return the time of the first of the latest samples that have the current holder; None if the latest has not.

    Args:
        samples: The samples, oldest first.
        held_by: The current holder.
    """
    name = held_by["substream"] or held_by["hold"] or ""
    current = key_of(held_by["reason"], held_by["query"], name)
    latest = list(takewhile(lambda sample: key_of_sample(sample) == current, reversed(samples)))
    return latest[-1].at_ms if latest else None


def _line(points: Iterable[Point], times: Range, vertical: Range) -> str:
    return polyline((times.position(at_ms), round(100 - vertical.position(value), 3)) for at_ms, value in points)


def _named(sample: Sample) -> Sequence[Fragment]:
    key = key_of_sample(sample)
    return [] if key is None else _fragments(key)


def _fragments(key: HolderKey) -> Sequence[Fragment]:
    kind, query, name = key
    return holder_over_time({"reason": kind, "query": query, "substream": name, "hold": name})


def _held(parts: Sequence[Stretch]) -> tuple[Mapping[HolderKey, str], Sequence[HeldShare]]:
    """Return the colors of the holders that held longest, and the share of each color."""
    held = held_by_key(parts)
    longest = held.most_common(COLORS)
    colors = {key: f"holder-{number}" for number, (key, _) in enumerate(longest)}
    total = max(parts[-1].to_ms - parts[0].from_ms, 1)
    shares = [HeldShare(colors[key], _fragments(key), ms, ms / total) for key, ms in longest]
    rest = held.total() - sum(ms for _, ms in longest)
    if rest:
        others = [f"{len(held) - len(longest)} others"]
        shares.append(HeldShare("holder-other", others, rest, rest / total))
    return colors, shares


def _spans(parts: Sequence[Stretch], times: Range, colors: Mapping[HolderKey, str]) -> Iterator[HeldSpan]:
    """Yield the holders in order of time, with neighboring stretches of one holder as one span."""
    for key, group in groupby(parts, key=lambda part: key_of_sample(part.sample)):
        if key is not None:
            held = list(group)
            from_ms, to_ms = held[0].from_ms, held[-1].to_ms
            x, end = times.position(from_ms), times.position(to_ms)
            yield HeldSpan(colors.get(key, "holder-other"), x, round(end - x, 3), from_ms, to_ms, _fragments(key))


LINE_RANGE_MS = 3 * 3_600_000
LINE_SAMPLES = LINE_RANGE_MS // COARSE_MS + 1
"""Number of samples in the range, with one before it."""
LINE_WIDTH, LINE_HEIGHT, LINE_MARGIN = 240, 48, 3
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
    points = lag_points(samples, state.watermark, LINE_RANGE_MS, state.now_ms)
    if points is None:
        return None
    bottom = points.lowest if points.is_event_time else min(points.lowest, 0)
    times = Range(state.now_ms - LINE_RANGE_MS, state.now_ms, 1)
    vertical = Range(bottom, max(points.highest, bottom + 1), 1)
    lines = [_small_line(line, times, vertical) for line in points.lines]
    return LagLine(lines, points.is_event_time, points.lowest, points.highest)


def _small_line(points: Iterable[Point], times: Range, vertical: Range) -> str:
    x, y = LINE_WIDTH / 100, (LINE_HEIGHT - 2 * LINE_MARGIN) / 100
    positions = [(times.position(at_ms), 100 - vertical.position(value)) for at_ms, value in points]
    return polyline((round(x * left), round(LINE_MARGIN + y * top)) for left, top in positions)
