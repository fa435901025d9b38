"""Windows of event time, as numbers: where they begin, where they end, and which of them a row is in."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidegate_spark.config import in_the_unit
from tidegate_spark.errors import InvalidUsage

MOST_WINDOWS_OF_A_ROW = 1_000


@dataclass(frozen=True, slots=True)
class Frame:
    """Windows ``[start, start + size)`` with ``start = offset + k * slide`` for every whole ``k``.

    In the unit of the event times: epoch milliseconds, or whatever a numeric event time counts in.
    """

    size: int
    slide: int
    offset: int = 0

    def __post_init__(self) -> None:
        """:raises InvalidUsage: for windows with gaps between them, and for too many windows at once."""
        if self.size < 1 or self.slide < 1 or self.slide > self.size:
            raise InvalidUsage(
                f"A window's slide is 1 or more, and its size or less; size={self.size}, slide={self.slide}."
            )
        if self.size > MOST_WINDOWS_OF_A_ROW * self.slide:
            raise InvalidUsage(
                f"A row would be in {self.size // self.slide:,} windows; {MOST_WINDOWS_OF_A_ROW:,} is the most. "
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
        """Windows as users say them: timedeltas where event times are timestamps, else whole numbers in their unit.

        ``slide`` None: as long as the size, which is ``called`` so in errors. ``offset`` None: at the epoch.

        :raises InvalidUsage: for what is neither, and for windows that cannot be.
        """
        length = in_the_unit(called, size, of_timestamps, 1)
        step = length if slide is None else in_the_unit("slide", slide, of_timestamps, 1)
        return cls(length, step, 0 if offset is None else in_the_unit("offset", offset, of_timestamps))

    def cut(self, watermark: int) -> int:
        """The end of the last window that a watermark closes: the highest end at or below it.

        It is also the lowest event time of which no window is closed: a row's first window ends at the first end above
        its event time.
        """
        return watermark - (watermark - self.offset - self.size) % self.slide

    def cut_at_the_end(self, watermark: int) -> int:
        """The end of the last window that has an event time below the watermark, after which none comes any more."""
        return self.cut(watermark - 1 + self.size)

    def starts(self, time: Column) -> Column:
        """The starts of the windows that a row is in, a row for each; none where the event time is null."""
        into_the_last = F.pmod(time - F.lit(self.offset), F.lit(self.slide))
        last = time - into_the_last
        if self.slide == self.size:
            return last
        before = F.floor((F.lit(self.size - 1) - into_the_last) / F.lit(self.slide)).cast("long")
        return F.explode(F.sequence(last - before * F.lit(self.slide), last, F.lit(self.slide)))
