"""What becomes of the rows of a batch: a user's function gets them, or windows do."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame, SparkSession

from tidegate_spark.batch import Batch
from tidegate_spark.columns import Columns
from tidegate_spark.errors import TidegateError
from tidegate_spark.frame import Frame
from tidegate_spark.hook.classify import RowClassifier
from tidegate_spark.protocol.fold import Fold

UserFunction = Callable[[DataFrame, Batch], Any]

AfterCommit = Callable[[int | None], None]
"""Called after the commit, with the job's coalesced watermark; None if the coordinator did not answer."""


class UserFunctionError(Exception):
    """A ``TidegateError`` of a user's function, which is not the protocol's."""

    def __init__(self, error: TidegateError) -> None:
        super().__init__(error)
        self.error = error


def call_user(function: UserFunction, df: DataFrame, batch: Batch) -> None:
    """Call a user's function."""
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
        """The number of rows of each class that goes with the late rows, if there are any."""
        counts = {name: self.fold.count(name) for name in self.classifier.classes_routed_late}
        return {name: count for name, count in counts.items() if count}

    @cached_property
    def _is_routed_late(self) -> Column | None:
        # Most batches have no such rows, and a filter for nothing costs a pass over an expression.
        return self.classifier.is_routed_late(self.columns.time(self.df)) if self.routed_late else None

    def on_time(self) -> DataFrame:
        """Return the rows that go with those on time."""
        return self.df if self._is_routed_late is None else self.df.filter(~self._is_routed_late)

    def late(self) -> DataFrame | None:
        """Return the rows that go with the late ones; None if there are none."""
        return None if self._is_routed_late is None else self.df.filter(self._is_routed_late)


class BatchHandler(Protocol):
    """Handles the rows of each batch.

    The rows are classified by ``frame`` and ``lateness``. :meth:`handle` gets them before the batch is committed. What
    it returns is called after the commit.

    Attributes:
        frame: The windows that rows are judged by; None: they are judged by row.
        lateness: How far the watermark may be beyond the end of a window that still takes rows.
        has_results_at_end: Whether there may be results to give out after the end of the input.
    """

    frame: Frame | None
    lateness: int
    has_results_at_end: bool

    def handle(self, rows: BatchRows) -> AfterCommit:
        """Handle the rows of a batch."""

    def end(self, spark: SparkSession, batch: Batch, watermark: int | None) -> None:
        """Give out the last results, in a batch without rows after the end of the input."""


class RowHandler:
    """Passes the rows that are on time to a user's function."""

    frame: Frame | None = None
    lateness = 0
    has_results_at_end = False

    def __init__(self, function: UserFunction) -> None:
        self._function = function

    def handle(self, rows: BatchRows) -> AfterCommit:
        """Call the function."""
        call_user(self._function, rows.on_time(), rows.batch)
        return _do_nothing

    def end(self, spark: SparkSession, batch: Batch, watermark: int | None) -> None:
        """Do nothing."""


def _do_nothing(_: int | None) -> None:
    pass
