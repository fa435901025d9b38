"""Handlers of the rows of a batch: a user's function, or windows."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidegate_spark.batch import Batch
from tidegate_spark.columns import Columns
from tidegate_spark.errors import TidegateError
from tidegate_spark.frame import Frame
from tidegate_spark.hook.classify import RowClassifier
from tidegate_spark.protocol.fold import Fold

UserFunction = Callable[[DataFrame, Batch], Any]

AfterCommit = Callable[[int | None], None]
"""A function to call after the commit with the job's coalesced watermark, or None if the coordinator did not answer."""


class UserFunctionError(Exception):
    """A user's function raised a ``TidegateError``, which is the cause of this error."""

    def __init__(self, error: TidegateError) -> None:
        super().__init__(error)
        self.error = error


def call_user(function: UserFunction, df: DataFrame, batch: Batch) -> None:
    """Call a user's function; raise UserFunctionError if it raises a TidegateError."""
    try:
        function(df, batch)
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
    """

    frame: Frame | None = None
    lateness = 0

    @abstractmethod
    def handle(self, rows: BatchRows) -> AfterCommit:
        """Handle the rows of a batch before its commit; return a function to call after the commit."""

    def end(self, spark: SparkSession, batch: Batch, watermark: int | None) -> None:
        """Emit the last windows, in a batch without rows after the end of the input."""
        raise NotImplementedError


class RowHandler(BatchHandler):
    """A handler that passes the on-time rows to a user's function."""

    def __init__(self, function: UserFunction) -> None:
        self._function = function

    def handle(self, rows: BatchRows) -> AfterCommit:
        """Call the function with the on-time rows."""
        call_user(self._function, rows.on_time(), rows.batch)
        return lambda _: None
