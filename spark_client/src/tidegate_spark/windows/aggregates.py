"""Aggregates that can be taken in parts, and the parts merged: what a window needs that is filled by many batches.

::

    stream.windows(timedelta(hours=1)).agg("dest", flights=windows.count(), delay=windows.avg("delay"),
                                           airlines=windows.merged(lambda: F.hll_sketch_agg("carrier"),
                                                                   F.hll_union_agg, F.hll_sketch_estimate))
"""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F


def _as_it_is(part: Column) -> Column:
    return part


@dataclass(frozen=True, slots=True)
class Aggregate:
    """``partial``: Spark's aggregate over the rows of one batch. ``merge``: the aggregate that makes one of many such.
    ``finish``: the result, from the one that is left.

    The order of rows and batches must not matter; with sums of floating-point numbers it does, in the last digits.
    """

    partial: Callable[[], Column]
    merge: Callable[[Column], Column]
    finish: Callable[[Column], Column] = _as_it_is
    kind: str = "merged"
    """Function and column, such as ``sum(delay)``. A checkpoint refuses an aggregate of another kind."""


def merged(
    partial: Callable[[], Column],
    merge: Callable[[Column], Column],
    finish: Callable[[Column], Column] = _as_it_is,
) -> Aggregate:
    """Any aggregate of Spark's that can be merged: see :class:`Aggregate`. Functions, for they are called where the
    query runs.
    """
    return Aggregate(partial, merge, finish)


def count(column: str | None = None) -> Aggregate:
    """How many rows; or how many in which a column is not null."""
    return Aggregate(
        lambda: F.count(F.lit(1) if column is None else F.col(column)), F.sum, kind=f"count({column or '*'})"
    )


def sum(column: str) -> Aggregate:
    """The sum of a column; null where all are."""
    return Aggregate(lambda: F.sum(column), F.sum, kind=f"sum({column})")


def min(column: str) -> Aggregate:
    """The lowest of a column."""
    return Aggregate(lambda: F.min(column), F.min, kind=f"min({column})")


def max(column: str) -> Aggregate:
    """The highest of a column."""
    return Aggregate(lambda: F.max(column), F.max, kind=f"max({column})")


def avg(column: str) -> Aggregate:
    """The mean of a column; null where all are."""
    return Aggregate(
        lambda: F.struct(F.sum(column).alias("sum"), F.count(column).alias("count")),
        lambda part: F.struct(F.sum(part["sum"]).alias("sum"), F.sum(part["count"]).alias("count")),
        lambda part: F.try_divide(part["sum"], part["count"]),
        kind=f"avg({column})",
    )
