"""How the rows of one batch are judged: by its pin, the same in every replay.

A row is of one class: *late* (below the pin), *null* (without an event time), *future* (so far ahead of the clock that
its event time cannot be true; it moves no watermark), or *on time*.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

HIGHEST = 2**53 - 1
LOWEST = -HIGHEST
"""Event times that a coordinator can hold exactly, as JSON and Redis can."""

RULE = "row: event_time < pin"
"""The name of the rule, as the coordinator keeps it with the counts."""

Goes = Literal["late", "on_time"]
"""Whether rows go with the late ones, or with those on time."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """``pin``: rows with an event time below it are late; None: none is. ``latest``: event times beyond it are no true
    ones. ``null_goes``, ``future_goes``: to which of the user's functions those go.
    """

    pin: int | None
    latest: int
    null_goes: Goes = "late"
    future_goes: Goes = "on_time"

    def aside(self, time: Column) -> Column:
        """Whether a row does not go to the function for those on time. Never null."""
        pin, latest = _long(self.pin), _long(self.latest)
        tests = {
            "late": late(time, pin), "null_event_time": time.isNull(), "future": future(time, pin, latest),
        }  # fmt: skip
        return reduce(Column.__or__, (tests[row_class] for row_class in self.classes_aside))

    def is_plain(self, bottom: int | None, top: int | None) -> bool:
        """Whether rows between these event times are on time, all of them."""
        if bottom is None or top is None:
            return True
        return bottom >= (LOWEST if self.pin is None else self.pin) and top <= self.latest

    @property
    def classes_aside(self) -> list[str]:
        """The classes whose rows do not go to the function for those on time."""
        goes = {"late": "late", "null_event_time": self.null_goes, "future": self.future_goes}
        return [row_class for row_class, where in goes.items() if where == "late"]

    def bounds(self, spark: SparkSession) -> DataFrame:
        """One row with the columns ``pin`` and ``latest``, of the type long; a relation, whose values are data.

        Columns of literals would be put in their place wherever they are used.
        """
        return spark.sql(
            "SELECT pin, latest FROM VALUES (CAST(:pin AS BIGINT), CAST(:latest AS BIGINT)) AS bounds (pin, latest)",
            {"pin": self.pin, "latest": self.latest},
        )


def late(time: Column, pin: Column) -> Column:
    """Whether a row is late. Never null."""
    return F.coalesce(time < pin, F.lit(False))


def future(time: Column, pin: Column, latest: Column) -> Column:
    """Whether a row is of the class future. Never null."""
    return F.coalesce(time > latest, F.lit(False)) & ~late(time, pin)


def credible(time: Column, latest: Column) -> Column:
    """The event time, or null where it cannot move a watermark: it is too far ahead, or no coordinator can hold it."""
    return F.when((time >= LOWEST) & (time <= latest), time)


def _long(value: int | None) -> Column:
    return F.lit(value).cast("long")
