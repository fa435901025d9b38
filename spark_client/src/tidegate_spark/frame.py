"""Windows of event time."""

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyspark.sql.types import TimestampNTZType

from tidegate_spark.columns import from_time, of_ntz
from tidegate_spark.config import event_time_length
from tidegate_spark.days import DAY_MS, LocalDays
from tidegate_spark.errors import InvalidUsage

MAX_WINDOWS_PER_ROW = 1_000
RESERVED_PREFIX = "tidegate_"
"""Prefix of the columns that the client adds to a stream."""

_EACH = f"{RESERVED_PREFIX}each"
"""Name of an element of an array in SQL. It would hide a user's column of the same name."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Windows ``[start, start + size)``, where ``start = offset + k * slide`` for every integer ``k``.

    With a time zone, the windows are the days of this time zone, from ``offset`` after midnight on. Their size and
    slide are a day of 24 hours, but a day on which the clocks change is shorter or longer.

    All numbers are in the unit of the event times. Timestamps are in epoch milliseconds.
    """

    size: int
    slide: int
    offset: int = 0
    time_zone: str | None = None

    def __post_init__(self) -> None:
        """Raise InvalidUsage if there are gaps between the windows, or a row would be in too many windows."""
        if self.size < 1 or self.slide < 1 or self.slide > self.size:
            raise InvalidUsage(
                f"A window's slide must be 1 or more and at most the size; the size is {self.size}, the slide "
                f"{self.slide}."
            )
        if self.size > MAX_WINDOWS_PER_ROW * self.slide:
            raise InvalidUsage(
                f"A row would be in {self.size // self.slide:,} windows; the maximum is {MAX_WINDOWS_PER_ROW:,}. "
                "Choose a longer slide."
            )
        if self.time_zone is not None:
            self._check_days()

    def _check_days(self) -> None:
        if not isinstance(self.time_zone, str):
            raise InvalidUsage(f"time_zone must be a name such as 'Europe/Berlin'; it is {self.time_zone!r}.")
        if (self.size, self.slide) != (DAY_MS, DAY_MS) or self.offset >= DAY_MS:
            raise InvalidUsage(
                "With time_zone, windows are the days of this time zone: pass a size of timedelta(days=1), no slide, "
                "and an offset of less than a day."
            )
        try:
            ZoneInfo(self.time_zone)
        except (ZoneInfoNotFoundError, ValueError):
            raise InvalidUsage(
                f"time_zone={self.time_zone!r} is unknown: pass a name such as 'Europe/Berlin'. If Python has no time "
                "zones, install the package tzdata."
            ) from None

    @classmethod
    def of(
        cls,
        size: timedelta | int,
        slide: timedelta | int | None,
        offset: timedelta | int | None,
        *,
        of_timestamps: bool,
        called: str = "size",
        time_zone: str | None = None,
    ) -> Self:
        """Return the windows for a user's arguments.

        Args:
            size: Length of a window.
            slide: Step between windows; None for ``size``.
            offset: Distance of the window boundaries from the epoch; None for 0.
            of_timestamps: Whether the event times are timestamps. If so, lengths are timedeltas, else whole numbers.
            called: Name of the argument ``size`` in errors.
            time_zone: Time zone of windows that are days; None for UTC.

        Raises:
            InvalidUsage: If a length has the wrong type, or the windows are invalid.
        """
        length = event_time_length(called, size, of_timestamps, 1)
        step = length if slide is None else event_time_length("slide", slide, of_timestamps, 1)
        if time_zone is not None and not of_timestamps:
            raise InvalidUsage("time_zone needs event times that are timestamps; cast the column, or omit time_zone.")
        begins = 0 if offset is None else event_time_length("offset", offset, of_timestamps)
        return cls(length, step, begins, time_zone)

    @property
    def _days(self) -> LocalDays | None:
        return None if self.time_zone is None else LocalDays(self.time_zone, self.offset)

    def options(self) -> dict[str, Any]:
        """Return the fields as options of a source."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def cut(self, watermark: int) -> int:
        """Return the end of the last window that a watermark closes: the highest end at or below it.

        The result is also the lowest event time whose windows are all open. A row's first window has the lowest end
        above the row's event time.
        """
        if self._days is not None:
            return self._days.start_before(watermark)
        return watermark - (watermark - self.offset - self.size) % self.slide

    def cut_at_the_end(self, watermark: int) -> int:
        """Return the end of the last window that starts below a watermark. A complete job closes this window too."""
        if self._days is not None:
            return self._days.end_after(watermark - 1)
        return self.cut(watermark - 1 + self.size)

    def first_open(self, watermark: int) -> int:
        """Return the lowest start of a window that ends above a watermark."""
        if self._days is not None:
            return self._days.start_before(watermark)
        return watermark - self.size + 1

    def end(self, start: str) -> str:
        """Return the end of the window with a start as SQL text."""
        if self.time_zone is not None:
            return f"array_min(filter({self._starts_around(start)}, {_EACH} -> {_EACH} > {start}))"
        return f"({start} + {self.size}L)"

    def starts(self, time: str) -> str:
        """Return the start of each window of a row as SQL text, exploded if windows overlap.

        The start is null if the event time is null. If windows overlap, the explosion removes such rows.
        """
        if self.time_zone is not None:
            return f"array_max(filter({self._starts_around(time)}, {_EACH} -> {_EACH} <= {time}))"
        into_the_last = f"pmod({time} - {self.offset}L, {self.slide}L)"
        last = f"({time} - {into_the_last})"
        if self.slide == self.size:
            return last
        before = f"({self.size - 1}L - {into_the_last}) div {self.slide}L"
        return f"explode(sequence({last} - ({before}) * {self.slide}L, {last}, {self.slide}L))"

    def _starts_around(self, time: str) -> str:
        """Return an array with the starts of the days around a time as SQL text."""
        clock = f"convert_timezone('UTC', '{self.time_zone}', {from_time(TimestampNTZType(), time)})"
        day = f"unix_date(cast({clock} as date))"
        seconds = f"cast(cast({self.offset}L as decimal(18,3)) / cast(1000 as decimal(4,0)) as decimal(18,6))"
        begins = f"timestamp_ntz'1970-01-01 00:00:00' + make_dt_interval({_EACH}, 0, 0, {seconds})"
        moment = f"convert_timezone('{self.time_zone}', 'UTC', {begins})"
        moments = f"transform(sequence({day} - 1, {day} + 2), {_EACH} -> {moment})"
        return f"transform({moments}, {_EACH} -> {of_ntz(_EACH)})"
