"""Windows of event time."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from tidegate_spark.config import event_time_length
from tidegate_spark.errors import InvalidUsage

MAX_WINDOWS_PER_ROW = 1_000


@dataclass(frozen=True, slots=True)
class Frame:
    """Windows ``[start, start + size)``, where ``start = offset + k * slide`` for every integer ``k``.

    All numbers are in the unit of the event times. Timestamps are in epoch milliseconds.
    """

    size: int
    slide: int
    offset: int = 0

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

    @classmethod
    def of(
        cls,
        size: timedelta | int,
        slide: timedelta | int | None,
        offset: timedelta | int | None,
        *,
        of_timestamps: bool,
        called: str = "size",
    ) -> Self:
        """Return the windows for a user's arguments.

        Args:
            size: Length of a window.
            slide: Step between windows; None for ``size``.
            offset: Distance of the window boundaries from the epoch; None for 0.
            of_timestamps: Whether the event times are timestamps. If so, lengths are timedeltas, else whole numbers.
            called: Name of the argument ``size`` in errors.

        Raises:
            InvalidUsage: If a length has the wrong type, or the windows are invalid.
        """
        length = event_time_length(called, size, of_timestamps, 1)
        step = length if slide is None else event_time_length("slide", slide, of_timestamps, 1)
        return cls(length, step, 0 if offset is None else event_time_length("offset", offset, of_timestamps))

    def cut(self, watermark: int) -> int:
        """Return the end of the last window that a watermark closes: the highest end at or below it.

        The result is also the lowest event time whose windows are all open. A row's first window has the lowest end
        above the row's event time.
        """
        return watermark - (watermark - self.offset - self.size) % self.slide

    def cut_at_the_end(self, watermark: int) -> int:
        """Return the end of the last window that starts below a watermark. A complete job closes this window too."""
        return self.cut(watermark - 1 + self.size)

    def starts(self, time: str) -> str:
        """Return the start of each window of a row as SQL text, exploded if windows overlap.

        The start is null if the event time is null. If windows overlap, the explosion removes such rows.
        """
        into_the_last = f"pmod({time} - {self.offset}L, {self.slide}L)"
        last = f"({time} - {into_the_last})"
        if self.slide == self.size:
            return last
        before = f"({self.size - 1}L - {into_the_last}) div {self.slide}L"
        return f"explode(sequence({last} - ({before}) * {self.slide}L, {last}, {self.slide}L))"
