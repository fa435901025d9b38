"""Where the state of windows lies between batches: a version for each batch that changed it, whole or overwritten."""

from typing import Protocol

from pyspark.sql import DataFrame, SparkSession


class StateStore(Protocol):
    """Versions of a table, by number. A table format (Delta, Iceberg) may keep them as well as files do.

    Versions are written by one query at a time. It reads a version only after it was written as a whole, and writes a
    number again only where it has not come to use it: then what was there is to go. It is asked for in any process that
    runs the query's batch function, and so can be pickled.
    """

    def write(self, version: int, rows: DataFrame) -> None:
        """Keeps rows as a version, in place of what may lie under that number."""

    def read(self, spark: SparkSession, version: int) -> DataFrame:
        """The rows of a version, in the schema in which they were written."""

    def delete(self, version: int) -> None:
        """Forgets a version, if there is one."""
