"""Settings of a Spark session."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

IDLE_EVENT_INTERVAL = "spark.sql.streaming.noDataProgressEventInterval"
BATCHES_RETAINED = "spark.sql.streaming.minBatchesToRetain"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
ADAPTIVE = "spark.sql.adaptive.enabled"
"""Setting for adaptive execution: it sizes partitions by their data, but runs each shuffle as a job of its own."""


@contextmanager
def setting(spark: SparkSession, name: str, value: str | int) -> Iterator[None]:
    """Change the setting ``name`` within the block, and restore its value afterwards."""
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)
