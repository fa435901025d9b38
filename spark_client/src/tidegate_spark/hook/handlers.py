"""Handlers of the rows of a batch: a user's function, or windows."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidegate_spark.batch import Batch
from tidegate_spark.columns import Columns
from tidegate_spark.errors import InvalidUsage, TidegateError
from tidegate_spark.frame import Frame
from tidegate_spark.hook.appends import TableAppends
from tidegate_spark.hook.classify import RowClassifier
from tidegate_spark.protocol.fold import Fold

UserFunction = Callable[[DataFrame, int], Any] | Callable[[DataFrame, int, Batch], Any]
"""A function of a DataFrame and its batch id, as for Spark's ``foreachBatch``, and of its :class:`Batch` on request."""

AfterCommit = Callable[[int | None], int | None]
"""A function to call after the commit with the job's coalesced watermark, or None if the coordinator did not answer.

It returns the output watermark of the query, or None if the handler has none.
"""


class UserFunctionError(Exception):
    """A user's function raised a ``TidegateError``, which is the cause of this error."""

    def __init__(self, error: TidegateError) -> None:
        super().__init__(error)
        self.error = error


def check_function(method: str, function: Any) -> None:
    """Raise InvalidUsage if the argument of a method is not a function."""
    if not callable(function):
        raise InvalidUsage(f"{method}() takes a function, not {function!r}.")


def takes_batch(method: str, function: Any) -> bool:
    """Return whether a user's function gets the :class:`Batch` as third argument.

    It does if its third parameter has no default or is named ``batch``. Every function that Spark can call with two
    arguments thus gets the same two arguments here.

    Args:
        method: Name of the method that got the function, for errors.
        function: The function.

    Raises:
        InvalidUsage: If the function takes neither two nor three arguments.
    """
    check_function(method, function)
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function in C may have no signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in signature.parameters.values() if parameter.kind in positional]
    for arguments in (3, 2) if names[2:3] == ["batch"] else (2, 3):
        try:
            signature.bind(*range(arguments))
        except TypeError:
            continue
        return arguments == 3
    raise InvalidUsage(
        f"{method}() takes a function of (df, batch_id) or (df, batch_id, batch); the parameters of {function!r} are "
        f"{signature}."
    )


def call_user(function: UserFunction, df: DataFrame, batch: Batch) -> None:
    """Call a user's function; raise UserFunctionError if it raises a TidegateError."""
    # Spark's createDataFrame() accepts a batch id only if its type is exactly int.
    arguments = (df, batch.batch_id, batch) if takes_batch("foreach_batch", function) else (df, batch.batch_id)
    try:
        function(*arguments)
    except TidegateError as error:
        raise UserFunctionError(error) from error


@dataclass(frozen=True)
class BatchRows:
    """The rows of a batch, and their classes."""

    df: DataFrame
    columns: Columns
    classifier: RowClassifier
    fold: Fold
    batch: Batch

    @cached_property
    def routed_late(self) -> dict[str, int]:
        """Number of rows by class, for the non-empty classes that go with the late rows."""
        counts = {name: self.fold.count(name) for name in self.classifier.classes_routed_late}
        return {name: count for name, count in counts.items() if count}

    @cached_property
    def _is_routed_late(self) -> str | None:
        # Most batches have no rows that go with the late rows. A filter would slow them down.
        return self.classifier.is_routed_late(self.columns.time(self.df)) if self.routed_late else None

    def on_time(self) -> DataFrame:
        """Return the rows that go with the on-time rows."""
        return self.df if self._is_routed_late is None else self.df.filter(f"NOT {self._is_routed_late}")

    def late(self) -> DataFrame | None:
        """Return the rows that go with the late rows; None if the batch has no such rows."""
        return None if self._is_routed_late is None else self.df.filter(self._is_routed_late)


class BatchHandler(ABC):
    """A handler of the rows of each batch.

    Attributes:
        frame: The windows by which rows are classified; None if rows are classified by their event times.
        lateness: Allowed lateness: a window accepts rows while the watermark is below its end plus ``lateness``.
        incarnation: Incarnation of the job that the output watermark belongs to; None: that of the latest answer.
    """

    frame: Frame | None = None
    lateness = 0
    incarnation: int | None = None

    @abstractmethod
    def handle(self, rows: BatchRows) -> AfterCommit:
        """Handle the rows of a batch before its commit; return a function to call after the commit."""

    def written_before(self, batch_id: int) -> int | None:
        """Return the output watermark of the query before a batch; None if the handler has none."""
        return None

    def end(self, spark: SparkSession, batch: Batch, watermark: int | None) -> int | None:
        """Emit the last windows, in a batch without rows after the end of the input; return the output watermark."""
        raise NotImplementedError


class RowHandler(BatchHandler):
    """A handler that passes the on-time rows to a user's function."""

    def __init__(self, function: UserFunction, appends: TableAppends) -> None:
        self._function, self._appends = function, appends

    def handle(self, rows: BatchRows) -> AfterCommit:
        """Call the function with the on-time rows."""
        call_user(self._function, rows.on_time(), self._appends.during(rows.batch, "on"))
        return lambda _: None
