"""Settings of a Spark session."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

IDLE_EVENT_INTERVAL = "spark.sql.streaming.noDataProgressEventInterval"
BATCHES_RETAINED = "spark.sql.streaming.minBatchesToRetain"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
ADAPTIVE = "spark.sql.adaptive.enabled"
"""Off in the session of a streaming query, so the number of shuffle partitions is SHUFFLE_PARTITIONS."""


@contextmanager
def setting(spark: SparkSession, name: str, value: str | int) -> Iterator[None]:
    """Set ``name`` within the block, and restore it afterwards."""
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)
