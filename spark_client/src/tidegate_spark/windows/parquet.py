"""The default store of windows: Parquet files beside the checkpoint."""

from pyspark.sql import DataFrame, SparkSession

from tidegate_spark.protocol.checkpoint import Checkpoint


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
