"""Frames: the intervals of event time that a job declares, such as hours, or days of a time zone.

Frames have numbers. A frame of a fixed length starts at ``number * every + offset``. A day or a month is numbered by
its date in the time zone, so a day on which the clocks change has 23 or 25 hours and is one frame.

This is the model. In a coordinator, ``store/lua/calendar.lua`` does the same.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from typing import Literal
from zlib import crc32
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidegate.domain.errors import InvalidConfig
from tidegate.domain.values import EXACT_DOUBLE, check_declared, parameter

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
QUARTER_MS = HOUR_MS // 4
"""Since 1980, each time zone differs from UTC by a multiple of this duration."""

Unit = Literal["hour", "day", "month"]
UNITS: tuple[Unit, ...] = ("hour", "day", "month")
UTC_NAME = "UTC"

_FIRST, _LAST = datetime(1980, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
"""Range in which the changes of a time zone count. Before and after, its clocks do not change."""


@dataclass(frozen=True, slots=True)
class TimeZoneOffsets:
    """The offsets of a time zone from UTC, in milliseconds.

    Attributes:
        offsets: ``offsets[0]`` applies before the first change, and ``offsets[i]`` from ``changes[i - 1]`` on.
        changes: The times at which the offset changes, in Unix milliseconds.
    """

    offsets: Sequence[int]
    changes: Sequence[int]

    def moment_of(self, shown_ms: int) -> int:
        """Return the time at which the clocks show a local time, given in milliseconds since 1970-01-01 00:00.

        If the clocks show the local time twice, the result is the first time. If they skip it, the result is as much
        after the change as the local time is in the skipped part.
        """
        # An offset is less than a day.
        last = bisect_right(self.changes, shown_ms + DAY_MS)
        for at in range(bisect_right(self.changes, shown_ms - DAY_MS), last):
            before, after = shown_ms - self.offsets[at], shown_ms - self.offsets[at + 1]
            if before < self.changes[at] or after < self.changes[at]:
                return before
        return shown_ms - self.offsets[last]


@lru_cache(maxsize=1024)
def offsets_of(time_zone: str) -> TimeZoneOffsets:
    """Return the offsets of a time zone.

    Raises:
        InvalidConfig: If the time zone is unknown.
    """
    try:
        zone = ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        problem = f"{time_zone!r} is no time zone; write a name such as 'Europe/Berlin'."
        raise InvalidConfig("frames.time_zone", problem) from None

    def offset_at(time: datetime) -> int:
        offset = time.astimezone(zone).utcoffset()
        assert offset is not None
        return offset // timedelta(milliseconds=1)

    step, time = timedelta(days=4), _FIRST  # no zone has two changes within this time
    offsets, changes = [offset_at(_FIRST)], list[int]()
    while time < _LAST:
        following = offset_at(time + step)
        if following != offsets[-1]:
            before, after = time, time + step
            while after - before > timedelta(seconds=1):
                middle = (before + (after - before) / 2).replace(microsecond=0)
                before, after = (before, middle) if offset_at(middle) == following else (middle, after)
            offsets.append(following)
            changes.append(round(after.timestamp() * 1000))
        time += step
    return TimeZoneOffsets(offsets, changes)


@dataclass(frozen=True)
class Frames:
    """The declaration of a job's frames.

    Attributes:
        every: Length in milliseconds (the unit of the event times), or the unit of the calendar.
        time_zone: Name of the time zone of days and months; None for UTC.

    Raises:
        InvalidConfig: If a parameter is outside its range, or the time zone is unknown.
    """

    every: int | Unit
    time_zone: str | None = None
    offset_ms: int = parameter(
        "Offset of the starts of the frames in milliseconds: from the epoch, or from midnight in the time zone.",
        example=0,
        default=0,
    )
    correction_delay_ms: int = parameter(
        "Time for which changes of a finished frame are collected before they make a new generation of it.",
        example=60_000,
        default=60_000,
    )

    def __post_init__(self) -> None:
        """Validate the parameters."""
        check_declared(self, "frames.")
        if not self.is_calendar:
            if self.time_zone is not None:
                problem = "Only days and months have a time zone; for hours of a zone with half hours, set offset_ms."
                raise InvalidConfig("frames.time_zone", problem)
            if not 1 <= self.length <= EXACT_DOUBLE.highest:
                problem = f"A frame must be 1 ms or longer, or one of {', '.join(UNITS)}; it is {self.every!r}."
                raise InvalidConfig("frames.every", problem)
        longest = DAY_MS if self.is_calendar else self.length
        if self.offset_ms >= longest:
            problem = f"The offset of a frame must be from 0 to {longest - 1}; it is {self.offset_ms}."
            raise InvalidConfig("frames.offset_ms", problem)
        if self.is_calendar and self.offset_ms % QUARTER_MS:
            problem = f"The offset of days and months must be a multiple of {QUARTER_MS}; it is {self.offset_ms}."
            raise InvalidConfig("frames.offset_ms", problem)
        _ = self.zone

    @property
    def is_calendar(self) -> bool:
        """Whether the frames are days or months, whose lengths vary."""
        return self.every in ("day", "month")

    @property
    def length(self) -> int:
        """The length of each frame that is no day and no month."""
        return HOUR_MS if self.every == "hour" else int(self.every)

    @cached_property
    def zone(self) -> TimeZoneOffsets:
        """The offsets of the time zone."""
        return offsets_of(self.time_zone or UTC_NAME)

    @property
    def identity(self) -> tuple[object, ...]:
        """The parameters whose change starts new frames. Another time zone database may change the clocks of a zone."""
        zone = (self.time_zone or UTC_NAME, crc32(repr(self.zone).encode())) if self.is_calendar else ()
        return self.every, self.offset_ms, *zone

    def start_of(self, number: int) -> int:
        """Return the start of a frame, limited to exact numbers."""
        if self.is_calendar:
            day = number if self.every == "day" else first_day_of(number)
            start = self.zone.moment_of(day * DAY_MS + self.offset_ms)
        else:
            start = number * self.length + self.offset_ms
        return min(max(start, EXACT_DOUBLE.lowest), EXACT_DOUBLE.highest)

    def number_of(self, time: int) -> int:
        """Return the number of the frame that contains a time."""
        if not self.is_calendar:
            return (time - self.offset_ms) // self.length
        day = time // DAY_MS + 1  # a clock is less than a day ahead of UTC
        number = day if self.every == "day" else month_of(day)
        while self.start_of(number) > time:
            number -= 1
        return number

    def end_after(self, time: int) -> int:
        """Return the end of the frame that contains a time."""
        return self.start_of(self.number_of(time) + 1)


# Months are counted from January 1970, and days from its first. The calendar is the Gregorian one.

_DAYS_BEFORE = (306, 337, 0, 31, 61, 92, 122, 153, 184, 214, 245, 275)
"""Days before each month, January first, in a year that starts with March."""
_EPOCH = 719_468
"""Days from the first of March of the year 0 to 1970-01-01."""
_ERA = 146_097
"""Days of 400 years, after which the calendar repeats."""


def first_day_of(month: int) -> int:
    """Return the first day of a month."""
    year, index = 1970 + month // 12, month % 12
    year -= index < 2  # a year that starts with March
    return year * 365 + year // 4 - year // 100 + year // 400 + _DAYS_BEFORE[index] - _EPOCH


def month_of(day: int) -> int:
    """Return the month that contains a day."""
    # The average length of a month is exact to a day, so at most one month is wrong.
    month = math.floor(day * 4800 / _ERA)
    while first_day_of(month) > day:
        month -= 1
    while first_day_of(month + 1) <= day:
        month += 1
    return month
