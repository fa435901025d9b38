"""A Spark for a laptop, and the stream of landings."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

COLUMNS = "origin string, dest string, carrier string, flight long, departed_at timestamp, landed_at timestamp"


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """A local session on two cores. The flights' times are read as UTC, so it counts in UTC."""
    spark = (
        SparkSession.builder.appName("flights")
        .master("local[2]")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", 2)
        # Spark looks through a stopped batch's Python traceback by a regular expression that needs a deep stack.
        .config("spark.driver.extraJavaOptions", "-Xss16m")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    try:
        yield spark
    finally:
        spark.stop()


@dataclass(frozen=True)
class FlightsSource:
    """Files of landings, one a batch, in the order in which they were landed."""

    spark: SparkSession
    directory: Path

    def stream(self) -> DataFrame:
        reader = self.spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.directory))
