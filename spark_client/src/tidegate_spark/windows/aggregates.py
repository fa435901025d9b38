"""Aggregates that can be computed in parts and merged, as windows that many batches fill need them.

::

    stream.windows(timedelta(hours=1)).agg("dest", flights=windows.count(), delay=windows.avg("delay"),
                                           airlines=windows.merged(lambda: F.hll_sketch_agg("carrier"),
                                                                   F.hll_union_agg, F.hll_sketch_estimate))
"""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F


def _identity(part: Column) -> Column:
    return part


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An aggregate that can be merged.

    The order of rows and batches must not matter. With sums of floating-point numbers it does, in the last digits.

    Attributes:
        partial: Returns Spark's aggregate over the rows of one batch.
        merge: Returns the aggregate that merges the results of ``partial``.
        finish: Returns the result from what is merged.
        kind: Function and column, such as ``sum(delay)``. A checkpoint refuses an aggregate of another kind.
    """

    partial: Callable[[], Column]
    merge: Callable[[Column], Column]
    finish: Callable[[Column], Column] = _identity
    kind: str = "merged"


def merged(
    partial: Callable[[], Column], merge: Callable[[Column], Column], finish: Callable[[Column], Column] = _identity
) -> Aggregate:
    """Return any aggregate of Spark that can be merged.

    The arguments are functions because they are called where the query runs; see :class:`Aggregate`.
    """
    return Aggregate(partial, merge, finish)


def count(column: str | None = None) -> Aggregate:
    """Return the number of rows, or of rows in which a column is not null."""
    return Aggregate(
        lambda: F.count(F.lit(1) if column is None else F.col(column)), F.sum, kind=f"count({column or '*'})"
    )


def sum(column: str) -> Aggregate:
    """Return the sum of a column; null if all its values are."""
    return Aggregate(lambda: F.sum(column), F.sum, kind=f"sum({column})")


def min(column: str) -> Aggregate:
    """Return the lowest value of a column."""
    return Aggregate(lambda: F.min(column), F.min, kind=f"min({column})")


def max(column: str) -> Aggregate:
    """Return the highest value of a column."""
    return Aggregate(lambda: F.max(column), F.max, kind=f"max({column})")


def avg(column: str) -> Aggregate:
    """Return the mean of a column; null if all its values are."""
    return Aggregate(
        lambda: F.struct(F.sum(column).alias("sum"), F.count(column).alias("count")),
        lambda part: F.struct(F.sum(part["sum"]).alias("sum"), F.sum(part["count"]).alias("count")),
        lambda part: F.try_divide(part["sum"], part["count"]),
        kind=f"avg({column})",
    )
