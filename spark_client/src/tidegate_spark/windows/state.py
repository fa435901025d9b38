"""Where the state of windows is stored between batches."""

from typing import Protocol

from pyspark.sql import DataFrame, SparkSession


class StateStore(Protocol):
    """Versions of a table, by number: files, or a table format such as Delta or Iceberg.

    One query at a time writes versions. It reads a version only after it was written completely. It writes a number
    again if it has not used that version yet; the new rows replace the old ones. The store must be picklable: it is
    used in any process that runs the query's batch function.
    """

    def write(self, version: int, rows: DataFrame) -> None:
        """Store rows as a version, in place of the one that may exist."""

    def read(self, spark: SparkSession, version: int) -> DataFrame:
        """Return the rows of a version, in the schema in which they were written."""

    def delete(self, version: int) -> None:
        """Delete a version, if it exists."""
