"""Geometry of the picture of a job: its substreams on the axis of event time."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.domain.values import SubstreamKey, by_value
from tidegate.domain.views import SubstreamStatus
from tidegate.page.charts import SMALLEST_MS, Range, Scales
from tidegate.store.replies import Distribution
from tidegate.views.job_page import ACTIVE

COLUMN = 0.9
"""Width of a column of marks, in percent."""
FLOOR, HEIGHT, SPACING = 150.0, 88.0, 9.0
"""Height of the axis and of the tallest column, and the largest distance of marks in a column, in pixels."""
MAX_GAP = 1
"""Maximum distance of ``now`` from the event times, as a multiple of their span. A distant ``now`` is not drawn."""
STRAGGLERS = 5
"""Number of substreams that the density names."""


@dataclass(frozen=True, slots=True)
class Line:
    """A watermark, the max event time or the processing time, in percent of the axis."""

    name: str
    at_ms: int
    x: float

    @property
    def anchor(self) -> str:
        """The end of the label that is next to the line: start or end."""
        return "start" if self.x < 70 else "end"


@dataclass(frozen=True, slots=True)
class Mark:
    """A substream: its horizontal position in percent, its vertical position in pixels, and its state.

    ``is_holder`` is true if the substream has the lowest watermark of the active substreams and a substream holds W. A
    substream without a watermark is at the left end.
    """

    row: SubstreamStatus
    x: float
    y: float
    is_holder: bool


@dataclass(frozen=True, slots=True)
class DensityBar:
    """The substreams of a large job whose watermarks are in one bin. Heights are in pixels."""

    from_ms: int
    to_ms: int
    x: float
    width: float
    active: int
    others: int
    active_height: float
    others_height: float


@dataclass(frozen=True, slots=True)
class Picture:
    """The substreams of a job on the axis of event time.

    Attributes:
        axis: The range of event time.
        lines: The watermark, C, the max event time, and ``now`` if it is near.
        marks: The substreams of a small job.
        bars: The substreams of a large job.
        stragglers: The slowest substreams of a large job.
        earlier: Number of idle and done substreams left of the axis.
    """

    axis: Range
    lines: Sequence[Line]
    marks: Sequence[Mark]
    bars: Sequence[DensityBar]
    stragglers: Sequence[Mark]
    earlier: int

    def line(self, name: str) -> Line | None:
        """Return the line with this name, or None if the picture has no such line."""
        return next((line for line in self.lines if line.name == name), None)


def picture(
    job: Mapping[str, Any],
    rows: Sequence[SubstreamStatus] | None,
    slowest: Sequence[SubstreamStatus],
    distribution: Distribution | None,
    scales: Scales,
) -> Picture | None:
    """Return the picture of a job, or None if no event time is known.

    The axis begins at the slowest active substream, or at the slowest substream if none is active.

    Args:
        job: Members of a ``JobStatus``.
        rows: All substreams of a small job; None for a large job.
        slowest: The slowest substreams of a large job.
        distribution: Watermarks of a large job in bins.
        scales: Ranges of the page.
    """
    active = [row for row in (slowest if rows is None else rows) if row.state in ACTIVE]
    watermarks = [row.watermark for row in active or rows or () if row.watermark is not None]
    if not watermarks and distribution is not None:
        watermarks = [distribution.start]
    named = {name: job[name] for name in ("watermark", "coalesced_watermark", "max_event_time")}
    known = [*watermarks, *(value for value in named.values() if value is not None)]
    if not known:
        return None
    low, high, now = min(known), max(known), job["now_ms"]
    if max(now - high, low - now) <= MAX_GAP * (high - low):
        named["now"], low, high = now, min(low, now), max(high, now)
    axis = scales.range_of("picture", low, high, SMALLEST_MS)
    lines = [Line(name, value, axis.position(value)) for name, value in named.items() if value is not None]
    holders = _holders(active, job["held_by"])
    if rows is not None:
        marks, earlier = _marks(rows, holders, axis)
        return Picture(axis, lines, marks, (), (), earlier)
    bars = [] if distribution is None else _bars(distribution, axis)
    stragglers, _ = _marks(active[:STRAGGLERS], holders, axis)
    stragglers.sort(key=lambda mark: (mark.x, mark.row.query, mark.row.substream))
    earlier = 0 if distribution is None else distribution.earlier
    return Picture(axis, lines, (), bars, stragglers, earlier)


def _holders(active: Sequence[SubstreamStatus], held_by: Mapping[str, Any] | None) -> Collection[SubstreamKey]:
    """Return the substreams with the lowest watermark, if a substream holds W. No watermark is lower than any."""
    if held_by is None or held_by["substream"] is None:
        return set()
    lowest = min((by_value(row.watermark) for row in active), default=None)
    return {(row.query, row.substream) for row in active if by_value(row.watermark) == lowest}


def _marks(rows: Iterable[SubstreamStatus], holders: Collection[SubstreamKey], axis: Range) -> tuple[list[Mark], int]:
    """Return the marks of the substreams on the axis, and the number of substreams left of the axis."""
    columns: dict[int, list[tuple[float, SubstreamStatus]]] = {}
    earlier = 0
    for row in sorted(rows, key=lambda row: (row.state not in ACTIVE, row.query, row.substream)):
        if row.watermark is not None and row.watermark < axis.start:
            earlier += 1
            continue
        x = 0.0 if row.watermark is None else min(axis.position(row.watermark), 100.0)
        columns.setdefault(int(x / COLUMN), []).append((x, row))
    tallest = max(map(len, columns.values()), default=1)
    spacing = min(SPACING, HEIGHT / tallest)
    marks = [
        Mark(row, x, round(FLOOR - 8 - place * spacing, 1), (row.query, row.substream) in holders)
        for column in columns.values()
        for place, (x, row) in enumerate(column)
    ]
    return sorted(marks, key=lambda mark: mark.is_holder), earlier


def _bars(found: Distribution, axis: Range) -> list[DensityBar]:
    tallest = max(*(one + other for one, other in zip(found.active, found.others, strict=True)), 1)

    def height(count: int) -> float:
        return round(max(HEIGHT * count / tallest, 2.0 if count else 0.0), 1)

    bars = []
    for number, (active, others) in enumerate(zip(found.active, found.others, strict=True)):
        start = found.start + number * found.width_ms
        x, end = max(axis.position(start), 0.0), min(axis.position(start + found.width_ms), 100.0)
        if active + others and x < end:
            bars.append(
                DensityBar(
                    start,
                    start + found.width_ms,
                    x,
                    round(max(end - x - 0.1, 0.2), 3),
                    active,
                    others,
                    height(active),
                    height(others),
                )
            )
    return bars
