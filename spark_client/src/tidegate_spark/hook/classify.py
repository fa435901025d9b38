"""Classification of a batch's rows by the batch's pinned watermark, the same in every replay.

A row is *late*, *updated*, *null_event_time* (without an event time), *future* (its event time is too far ahead of the
clock and moves no watermark), or *on time*.

In a query without windows, a row is late if its event time is below the pinned watermark. In a query with windows:

* A row is on time if all of its windows are open.
* A row is updated if at least one of its windows is closed, and all of its windows accept it (allowed lateness).
* A row is late if at least one of its windows does not accept it. Its other windows may still accept it.

Spark's own operators have another rule, see :meth:`tidegate_spark.native.folding.Folding.late_below`.

In any query, an event time below :data:`LOWEST` is late, and one above :data:`HIGHEST` is future. Arithmetic on such
event times can overflow, and Spark then fails the batch in every replay.

The conditions are SQL text, like the expressions of :class:`Columns`.
"""

from dataclasses import dataclass
from typing import Literal

from pyspark.sql import DataFrame, SparkSession

from tidegate_spark.frame import Frame
from tidegate_spark.protocol.fold import LOWEST, LateDisposition

RowRoute = Literal["late", "on_time"]
"""Route of the rows of a class: they go with the late rows or with the on-time rows."""


@dataclass(frozen=True, slots=True)
class RowClassifier:
    """The classifier of one batch's rows.

    Attributes:
        pinned_watermark: The watermark by which rows are classified; None if only rows below :data:`LOWEST` are late.
        latest: Highest event time that is not too far ahead of the clock.
        null_route: Route of rows without an event time.
        future_route: Route of rows with event times too far ahead of the clock.
        late_disposition: Whether late rows are dropped or diverted.
        frame: The windows by which rows are classified; None if rows are classified by their event times.
        lateness: Allowed lateness: a window accepts rows while the watermark is below its end plus ``lateness``.
    """

    pinned_watermark: int | None
    latest: int
    null_route: RowRoute = "late"
    future_route: RowRoute = "on_time"
    late_disposition: LateDisposition = "dropped"
    frame: Frame | None = None
    lateness: int = 0

    @property
    def on_time_from(self) -> int:
        """The lowest event time of on-time rows."""
        return self._cut(0)

    @property
    def late_below(self) -> int:
        """The lowest event time that is not late. Rows from this time until :attr:`on_time_from` are updated."""
        return self._cut(self.lateness)

    def _cut(self, lateness: int) -> int:
        if self.pinned_watermark is None:
            return LOWEST
        cut = self.pinned_watermark if self.frame is None else self.frame.cut(self.pinned_watermark - lateness)
        return max(cut, LOWEST)

    @property
    def classes_routed_late(self) -> list[str]:
        """The classes whose rows go with the late rows."""
        routes = {"late": "late", "null_event_time": self.null_route, "future": self.future_route}
        return [row_class for row_class, route in routes.items() if route == "late"]

    def is_routed_late(self, time: str) -> str:
        """Return whether a row goes with the late rows; never null."""
        tests = {
            "late": is_late(time, f"{self.late_below}L"),
            "null_event_time": f"({time} IS NULL)",
            "future": self.is_future(time),
        }
        return f"({' OR '.join(tests[row_class] for row_class in self.classes_routed_late)})"

    def is_future(self, time: str) -> str:
        """Return the condition :func:`is_future` with the bounds of the batch."""
        return is_future(time, f"{self.on_time_from}L", f"{self.latest}L")

    def all_on_time(self, min_event_time: int | None, max_event_time: int | None) -> bool:
        """Return whether every row between two event times is on time."""
        if min_event_time is None or max_event_time is None:
            return True
        return min_event_time >= self.on_time_from and max_event_time <= self.latest

    def bounds(self, spark: SparkSession) -> DataFrame:
        """Return one row with the longs ``late_below``, ``on_time_from`` and ``latest``.

        The bounds are a relation, because Spark would inline literals wherever they are used. They are part of the
        text, because a parser of a session extension may not bind arguments (Delta Lake's on Spark 4.1 does not).
        """
        return spark.sql(
            f"VALUES ({self.late_below}L, {self.on_time_from}L, {self.latest}L)"
            " AS bounds (late_below, on_time_from, latest)"
        )


def is_late(time: str, late_below: str) -> str:
    """Return whether a row is late; never null."""
    return f"coalesce({time} < {late_below}, false)"


def is_updated(time: str, late_below: str, on_time_from: str) -> str:
    """Return whether a row is updated; never null."""
    return f"coalesce({time} >= {late_below} AND {time} < {on_time_from}, false)"


def is_future(time: str, on_time_from: str, latest: str) -> str:
    """Return whether an event time is too far ahead of the clock, and its row neither late nor updated; never null."""
    return f"coalesce({time} > {latest} AND {time} >= {on_time_from}, false)"


def not_too_low(time: str) -> str:
    """Return the event time; null if it is too low for an exact number, and for arithmetic."""
    return f"CASE WHEN {time} >= {LOWEST}L THEN {time} END"


def credible(time: str, latest: str) -> str:
    """Return the event time; null if it is too far ahead of the clock, or too low for an exact number."""
    return f"CASE WHEN {time} >= {LOWEST}L AND {time} <= {latest} THEN {time} END"


def slot_number(time: str, slot: int) -> str:
    """Return the number of the slot of an event time: the time divided by the length of a slot, rounded down."""
    return f"({time} - pmod({time}, {slot}L)) div {slot}L"
