"""Stores for the state of windows: their interface, and the default."""

from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from tidegate_spark.protocol.checkpoint import Checkpoint


class StateStore(Protocol):
    """A store of numbered versions of a table, as files or in a table format such as Delta or Iceberg.

    One query at a time uses the store. The query reads a version only after it has written the whole version. After a
    failure, the query may write a version again, which replaces the rows. The store must be picklable, because the
    process that runs the query's batch function uses it.
    """

    def write(self, version: int, rows: DataFrame) -> None:
        """Store rows as a version, and replace the version if it exists."""

    def read(self, spark: SparkSession, version: int) -> DataFrame:
        """Return the rows of a version, with their original schema."""

    def delete(self, version: int) -> None:
        """Delete a version, if it exists."""


class ParquetState:
    """A :class:`StateStore` of Parquet files in ``<checkpointLocation>/tidegate/state/<version>``."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def write(self, version: int, rows: DataFrame) -> None:
        """Store rows as a version."""
        rows.write.mode("overwrite").parquet(self._path(version))

    def read(self, spark: SparkSession, version: int) -> DataFrame:
        """Return the rows of a version."""
        return spark.read.parquet(self._path(version))

    def delete(self, version: int) -> None:
        """Delete a version, if it exists."""
        self._checkpoint.delete_directory(f"state/{version}")

    def _path(self, version: int) -> str:
        return f"{self._checkpoint.location}/tidegate/state/{version}"
