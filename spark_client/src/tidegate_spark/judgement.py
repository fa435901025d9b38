"""How the rows of one batch are judged: by its pin, the same in every replay.

A row is of one class: *late*, *updated*, *null* (without an event time), *future* (so far ahead of the clock that its
event time cannot be true; it moves no watermark), or *on time*.

By row, it is late below the pin. By window, it is on time where all of its windows are open; updated where one is
closed but all of them still take it, for the allowed lateness is not over; and late where one does not, so that a
result lacks it. (With windows that overlap, the others of a late row may take it.)
"""

from dataclasses import dataclass
from functools import reduce
from typing import Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidegate_spark.windows.frame import Frame

HIGHEST = 2**53 - 1
LOWEST = -HIGHEST
"""Event times that a coordinator can hold exactly, as JSON and Redis can."""

_BELOW_ALL = -(2**63)
"""No long is below it."""

Goes = Literal["late", "on_time"]
"""Whether rows go with the late ones, or with those on time."""


LateDisposition = Literal["dropped", "diverted"]
"""Whether nobody gets late rows, or a function of the user's does."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """``pinned_watermark``: the watermark that rows are judged by; None: none is late. ``latest``: event times beyond
    it are no true
    ones. ``null_goes``, ``future_goes``: to which of the user's functions those go. ``late_disposition``: where those
    do that
    are late. ``frame``: the windows that rows
    are judged by, None: by row. ``lateness``: how far the pin may be beyond a window's end that still takes rows.
    """

    pinned_watermark: int | None
    latest: int
    null_goes: Goes = "late"
    future_goes: Goes = "on_time"
    late_disposition: LateDisposition = "dropped"
    frame: Frame | None = None
    lateness: int = 0

    @property
    def rule(self) -> str:
        """The name of the rule, as the coordinator keeps it with the counts."""
        if self.frame is None:
            return "row: event_time < pin"
        return "window: end <= pin" if not self.lateness else f"window: end + {self.lateness} <= pin"

    @property
    def on_time_from(self) -> int:
        """The lowest event time of rows that are on time."""
        return self._cut(0)

    @property
    def late_below(self) -> int:
        """Rows with an event time below this are late; those from here on, if they are not on time, update."""
        return self._cut(self.lateness)

    def _cut(self, lateness: int) -> int:
        if self.pinned_watermark is None:
            return _BELOW_ALL
        return self.pinned_watermark if self.frame is None else self.frame.cut(self.pinned_watermark - lateness)

    def aside(self, time: Column) -> Column:
        """Whether a row does not go to the function for those on time. Never null."""
        tests = {
            "late": late(time, F.lit(self.late_below)),
            "null_event_time": time.isNull(),
            "future": future(time, F.lit(self.on_time_from), F.lit(self.latest)),
        }
        return reduce(Column.__or__, (tests[row_class] for row_class in self.classes_aside))

    def is_plain(self, min_event_time: int | None, max_event_time: int | None) -> bool:
        """Whether rows between these event times are on time, all of them."""
        if min_event_time is None or max_event_time is None:
            return True
        return min_event_time >= max(LOWEST, self.on_time_from) and max_event_time <= self.latest

    @property
    def classes_aside(self) -> list[str]:
        """The classes whose rows do not go to the function for those on time."""
        goes = {"late": "late", "null_event_time": self.null_goes, "future": self.future_goes}
        return [row_class for row_class, where in goes.items() if where == "late"]

    def bounds(self, spark: SparkSession) -> DataFrame:
        """One row with the columns ``late_below``, ``on_time_from`` and ``latest``, of the type long; a relation, whose
        values are data.

        Columns of literals would be put in their place wherever they are used.
        """
        return spark.sql(
            "SELECT * FROM VALUES (CAST(:late_below AS BIGINT), CAST(:on_time_from AS BIGINT), CAST(:latest AS BIGINT))"
            " AS bounds (late_below, on_time_from, latest)",
            {"late_below": self.late_below, "on_time_from": self.on_time_from, "latest": self.latest},
        )


def late(time: Column, late_below: Column) -> Column:
    """Whether a row is late. Never null."""
    return F.coalesce(time < late_below, F.lit(False))


def updated(time: Column, late_below: Column, on_time_from: Column) -> Column:
    """Whether a row changes the result of a window that was closed. Never null."""
    return F.coalesce((time >= late_below) & (time < on_time_from), F.lit(False))


def future(time: Column, on_time_from: Column, latest: Column) -> Column:
    """Whether a row is of the class future. Never null."""
    return F.coalesce((time > latest) & (time >= on_time_from), F.lit(False))


def credible(time: Column, latest: Column) -> Column:
    """The event time, or null where it cannot move a watermark: it is too far ahead, or no coordinator can hold it."""
    return F.when((time >= LOWEST) & (time <= latest), time)
