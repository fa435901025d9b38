"""Aggregates for windows that span batches. Each aggregate is computed per batch and then merged.

::

    stream.windows(timedelta(hours=1)).agg("dest", flights=windows.count(), delay=windows.avg("delay"),
                                           airlines=windows.merged(lambda: F.hll_sketch_agg("carrier"),
                                                                   F.hll_union_agg, F.hll_sketch_estimate))
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidegate_spark.errors import InvalidUsage


def _identity(part: Column) -> Column:
    return part


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An aggregate that is computed per batch and merged over batches.

    The result must not depend on the order of rows and batches, except for the last digits of floating-point sums.

    Attributes:
        partial: Returns the aggregate over the rows of one batch.
        merge: Takes a column of results of ``partial``, and returns the aggregate that merges them.
        finish: Takes a merged value, and returns the result.
        kind: Function and column, such as ``sum(delay)``. A query whose kinds have changed needs a new checkpoint.
    """

    partial: Callable[[], Column]
    merge: Callable[[Column], Column]
    finish: Callable[[Column], Column] = _identity
    kind: str = "merged"


def merged(
    partial: Callable[[], Column], merge: Callable[[Column], Column], finish: Callable[[Column], Column] = _identity
) -> Aggregate:
    """Return an aggregate made of Spark functions.

    Args:
        partial: Returns Spark's aggregate over the rows of one batch, such as ``F.hll_sketch_agg("carrier")``.
        merge: Takes a column of results of ``partial`` and returns the aggregate that merges them, such as
            ``F.hll_union_agg``.
        finish: Takes the merged value and returns the result; default: the result is the merged value.

    Raises:
        InvalidUsage: If an argument is not a function.
    """
    if not all(map(callable, (partial, merge, finish))):
        raise InvalidUsage(f"merged() takes functions, not {partial!r}, {merge!r}, {finish!r}; see its documentation.")
    return Aggregate(partial, merge, finish)


def _checked_name(column: Any) -> None:
    if not isinstance(column, str):
        raise InvalidUsage(f"{column!r} must be the name of a column. For an expression, use merged(...).")


def count(column: str | None = None) -> Aggregate:
    """Count the rows or, with a column, the rows in which the column is not null."""
    if column is not None:
        _checked_name(column)
    return Aggregate(
        lambda: F.count(F.lit(1) if column is None else F.col(column)), F.sum, kind=f"count({column or '*'})"
    )


def sum(column: str) -> Aggregate:
    """Sum the values of a column. The sum is null if all values are null."""
    _checked_name(column)
    return Aggregate(lambda: F.sum(column), F.sum, kind=f"sum({column})")


def min(column: str) -> Aggregate:
    """Return the lowest value of a column; null if all values are null."""
    _checked_name(column)
    return Aggregate(lambda: F.min(column), F.min, kind=f"min({column})")


def max(column: str) -> Aggregate:
    """Return the highest value of a column; null if all values are null."""
    _checked_name(column)
    return Aggregate(lambda: F.max(column), F.max, kind=f"max({column})")


def avg(column: str) -> Aggregate:
    """Average the values of a column. The average is null if all values are null."""
    _checked_name(column)
    return Aggregate(
        lambda: F.struct(F.sum(column).alias("sum"), F.count(column).alias("count")),
        lambda part: F.struct(F.sum(part["sum"]).alias("sum"), F.sum(part["count"]).alias("count")),
        lambda part: F.try_divide(part["sum"], part["count"]),
        kind=f"avg({column})",
    )
