"""The state of windows as Parquet files beside the checkpoint: what is used where nothing else is said."""

from pyspark.sql import DataFrame, SparkSession

from tidegate_spark.checkpoint import Checkpoint


class ParquetState:
    """Versions as directories of Parquet files, ``<checkpointLocation>/tidegate/state/<version>``."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def write(self, version: int, rows: DataFrame) -> None:
        rows.write.mode("overwrite").parquet(self._path(version))

    def read(self, spark: SparkSession, version: int) -> DataFrame:
        return spark.read.parquet(self._path(version))

    def delete(self, version: int) -> None:
        self._checkpoint.delete_directory(f"state/{version}")

    def _path(self, version: int) -> str:
        return f"{self._checkpoint.location}/tidegate/state/{version}"
