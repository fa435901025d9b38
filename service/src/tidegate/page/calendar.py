"""The calendar of a job's frames: a row for each day, month or year, and a cell for each frame."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, tzinfo
from itertools import groupby
from typing import Any
from zoneinfo import ZoneInfo

from tidegate.domain.calendar import DAY_MS, HOUR_MS, UNITS
from tidegate.domain.frames import FrameStatus
from tidegate.page.render import MONTHS
from tidegate.times import EARLIEST_MS, LATEST_MS, MS
from tidegate.views.sentences import frame_sentence, plain_text

ROWS_SHOWN = 14
"""Maximum number of rows of the calendar, the latest ones."""


@dataclass(frozen=True, slots=True)
class FrameCell:
    """One frame of the calendar.

    Attributes:
        start: Start of the frame.
        state: State of the frame, or ``overdue`` for an open frame that is.
        corrected: Whether it has a generation after its first.
        text: The frame in words.
    """

    start: int
    state: str
    corrected: bool
    text: str


@dataclass(frozen=True, slots=True)
class FrameRow:
    """A row of the calendar.

    Attributes:
        label: Day, month or year of the row.
        before: Number of places before the first cell.
        cells: The frames, earliest first.
    """

    label: str
    before: int
    cells: Sequence[FrameCell]


def calendar(
    frames: Sequence[FrameStatus], declaration: Mapping[str, Any], now_ms: int, written_watermark: int | None
) -> list[FrameRow]:
    """Return the rows of the calendar, the latest one first.

    Args:
        frames: Frames in any order.
        declaration: The member ``frames`` of the configuration.
        now_ms: Processing time of the coordinator.
        written_watermark: Written watermark of the job.
    """
    every = declaration["every"]
    zone = ZoneInfo(declaration["time_zone"]) if declaration.get("time_zone") else UTC
    in_order = sorted(frames, key=lambda frame: frame.start)
    rows: list[FrameRow] = []
    for label, of_row in groupby(in_order, key=lambda frame: _row_of(frame.start, every, zone)):
        found = list(of_row)
        before = 0 if rows else _place(found[0].start, every, zone)
        rows.append(FrameRow(label, before, [_cell(frame, now_ms, written_watermark) for frame in found]))
    return rows[::-1][:ROWS_SHOWN]


def _cell(frame: FrameStatus, now_ms: int, written_watermark: int | None) -> FrameCell:
    text = plain_text(frame_sentence(asdict(frame), written_watermark), now_ms)
    state = "overdue" if frame.prediction and frame.prediction.overdue else frame.state
    return FrameCell(frame.start, state, len(frame.generations) > 1, text)


def _shown_at(start: int, zone: tzinfo) -> datetime | None:
    """Return the local time at which a frame starts; None if event times are no times of the calendar."""
    is_shown = EARLIEST_MS + DAY_MS <= start <= LATEST_MS - DAY_MS
    return datetime.fromtimestamp(start / MS, zone) if is_shown else None


def _row_of(start: int, every: int | str, zone: tzinfo) -> str:
    """Return the label of the row of a frame; "" if event times are no times of the calendar."""
    at = _shown_at(start, zone)
    if at is None:
        return ""
    if every == "month":
        return f"{at.year}"
    return f"{MONTHS[at.month - 1]} {at.year}" if every == "day" else f"{at.day} {MONTHS[at.month - 1]}"


def _place(start: int, every: int | str, zone: tzinfo) -> int:
    """Return the number of frames of a row before a frame; 0 if a row has no fixed places."""
    at = _shown_at(start, zone)
    if at is None or every not in (*UNITS, HOUR_MS):
        return 0
    return {"day": at.day - 1, "month": at.month - 1}.get(str(every), at.hour)
