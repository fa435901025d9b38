"""A setting of a Spark session for a moment."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

IDLE_EVENT_INTERVAL = "spark.sql.streaming.noDataProgressEventInterval"
BATCHES_RETAINED = "spark.sql.streaming.minBatchesToRetain"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
ADAPTIVE = "spark.sql.adaptive.enabled"
"""Off in the session of a streaming query, whose batches then have as many partitions as the setting above says."""


@contextmanager
def setting(spark: SparkSession, name: str, value: str | int) -> Iterator[None]:
    """Sets ``name`` in the block; after it all is as it was, whether it had been set or not."""
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)
