"""Windows of event time."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidegate_spark.config import event_time_length
from tidegate_spark.errors import InvalidUsage

MOST_WINDOWS_PER_ROW = 1_000


@dataclass(frozen=True, slots=True)
class Frame:
    """Windows ``[start, start + size)``, where ``start = offset + k * slide`` for every integer ``k``.

    All numbers are in the unit of the event times: epoch milliseconds, or that of a numeric event time.
    """

    size: int
    slide: int
    offset: int = 0

    def __post_init__(self) -> None:
        """Raise InvalidUsage if there are gaps between the windows, or a row is in too many windows."""
        if self.size < 1 or self.slide < 1 or self.slide > self.size:
            raise InvalidUsage(
                f"A window's slide is 1 or more, and its size or less; size={self.size}, slide={self.slide}."
            )
        if self.size > MOST_WINDOWS_PER_ROW * self.slide:
            raise InvalidUsage(
                f"A row would be in {self.size // self.slide:,} windows; {MOST_WINDOWS_PER_ROW:,} is the most. "
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
        """Return the windows that a user described.

        Args:
            size: Length of a window.
            slide: Step between windows; None: ``size``.
            offset: Distance of the window boundaries from the epoch; None: 0.
            of_timestamps: Whether the event times are timestamps. Lengths are then timedeltas, else whole numbers.
            called: Name of ``size`` in errors.

        Raises:
            InvalidUsage: A length has the wrong type, or the windows are invalid.
        """
        length = event_time_length(called, size, of_timestamps, 1)
        step = length if slide is None else event_time_length("slide", slide, of_timestamps, 1)
        return cls(length, step, 0 if offset is None else event_time_length("offset", offset, of_timestamps))

    def cut(self, watermark: int) -> int:
        """Return the end of the last window that a watermark closes: the highest end at or below it.

        It is also the lowest event time whose windows are all open: a row's first window has the first end above its
        event time.
        """
        return watermark - (watermark - self.offset - self.size) % self.slide

    def cut_at_the_end(self, watermark: int) -> int:
        """Return the end of the last window with an event time below a watermark: the cut of a complete job."""
        return self.cut(watermark - 1 + self.size)

    def starts(self, time: Column) -> Column:
        """Return the start of each window of a row, exploded if windows overlap.

        Without an event time it is null, or the row has no result if windows overlap.
        """
        into_the_last = F.pmod(time - F.lit(self.offset), F.lit(self.slide))
        last = time - into_the_last
        if self.slide == self.size:
            return last
        before = F.floor((F.lit(self.size - 1) - into_the_last) / F.lit(self.slide)).cast("long")
        return F.explode(F.sequence(last - before * F.lit(self.slide), last, F.lit(self.slide)))
