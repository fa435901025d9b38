"""The Spark session, local or on a cluster, and the stream of landings."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyspark
from pyspark.sql import DataFrame, SparkSession

from examples.flights.settings import KAFKA_JARS, DemoError, Settings

COLUMNS = "origin string, dest string, carrier string, flight long, departed_at timestamp, landed_at timestamp"

FOR_SMALL_BATCHES = {
    # Each shuffle partition is a task and a state store. A batch has 40 rows on average.
    "spark.sql.shuffle.partitions": "1",
    # To choose the number of partitions, adaptive execution runs each stage as a separate Spark job.
    "spark.sql.adaptive.enabled": "false",
    # Generated code contains the watermark, so Spark would compile it again for each batch.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # For error messages, Spark records the line of each operation on a column, in several calls to the JVM.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Spark's default class starts about 60 processes for each batch to set the permissions of files. This class is safe
    # if a single process writes the checkpoints.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Settings of a local session. They make batches of few rows faster and large batches slower."""


def connector() -> str:
    """Return the jars of Spark's connector for Kafka, for this version of Spark, separated by commas.

    Raises:
        DemoError: If there are none.
    """
    folder = KAFKA_JARS / f"connector-{'.'.join(pyspark.__version__.split('.')[:2])}"
    jars = sorted(map(str, folder.glob("*.jar")))
    if not jars:
        raise DemoError(
            f"The jars of Spark's connector for Kafka are missing in {folder}; install Maven, and run: "
            "make demo SOURCE=kafka."
        )
    return ",".join(jars)


@contextmanager
def spark_session(settings: Settings) -> Iterator[SparkSession]:
    """Start a Spark session with UTC as its time zone, and stop it at the end of the context."""
    builder = (
        SparkSession.builder.appName("flights")
        .master(settings.master)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", 2)
        # Spark parses the Python traceback of a stopped batch with a regular expression that needs a deep stack.
        .config("spark.driver.extraJavaOptions", "-Xss16m")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.driver.host", settings.driver_host)
        .config("spark.driver.bindAddress", settings.driver_host)
    )
    if settings.master.startswith("local["):
        for name, value in FOR_SMALL_BATCHES.items():
            builder = builder.config(name, value)
    if settings.kafka is not None:
        builder = builder.config("spark.jars", connector())
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


@dataclass(frozen=True)
class FlightsSource:
    """A stream of the files of landings, one file per batch, in the order of the landings.

    A file contains all landings of its hours, so a later batch has no landings of these hours.

    Attributes:
        spark: The Spark session.
        directory: Directory of the files.
        destinations: The destinations, which are the substreams.
    """

    spark: SparkSession
    directory: Path
    destinations: list[str]

    substream: ClassVar[str] = "dest"
    complete_batches: ClassVar[bool] = True

    @property
    def names(self) -> list[str]:
        return self.destinations

    def batches(self, _rows: int) -> int:
        return len(list(self.directory.glob("*.parquet")))

    def stream(self) -> DataFrame:
        reader = self.spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.directory))
