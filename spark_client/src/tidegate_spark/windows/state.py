"""The interface of stores for the state of windows."""

from typing import Protocol

from pyspark.sql import DataFrame, SparkSession


class StateStore(Protocol):
    """Numbered versions of a table: files, or a table format such as Delta or Iceberg.

    One query at a time writes versions, and reads a version only after it was written completely. After a failure it
    may write a version again, which replaces the rows. The store must be picklable: the process that runs the query's
    batch function uses it.
    """

    def write(self, version: int, rows: DataFrame) -> None:
        """Store rows as a version, and replace the version if it exists."""

    def read(self, spark: SparkSession, version: int) -> DataFrame:
        """Return the rows of a version, with the schema they were written with."""

    def delete(self, version: int) -> None:
        """Delete a version, if it exists."""
