"""The Spark session: its version, what older versions lack, and its settings."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.listener import StreamingQueryListener

from tidegate_spark.errors import InvalidUsage

PYTHON_SOURCES = (4, 0)
"""The first version of Spark with data sources in Python."""

AVAILABLE_NOW_OF_PYTHON_SOURCES = (4, 2)
"""The first version of Spark that runs ``availableNow`` with a Python source in several batches, not in one."""

IDLE_EVENT_INTERVAL = "spark.sql.streaming.noDataProgressEventInterval"
BATCHES_RETAINED = "spark.sql.streaming.minBatchesToRetain"
IGNORE_MISSING_FILES = "spark.sql.files.ignoreMissingFiles"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
ADAPTIVE = "spark.sql.adaptive.enabled"
"""Setting for adaptive execution: it sizes partitions by their data, but runs each shuffle as a job of its own."""


def version_of(spark: SparkSession) -> tuple[int, int]:
    """Return Spark's major and minor version; under Spark Connect, the server's."""
    major, minor = re.findall(r"\d+", spark.version)[:2]
    return int(major), int(minor)


def is_connect(spark: SparkSession) -> bool:
    """Return whether the session is a Spark Connect session."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def check_session(spark: SparkSession) -> None:
    """Raise InvalidUsage if this session is not supported."""
    if is_connect(spark) and version_of(spark) < (4, 0):
        raise InvalidUsage(
            f"Tidegate over Spark Connect needs Spark 4.0 or later, and this is {spark.version}: use a classic session."
        )


def check_native(spark: SparkSession) -> None:
    """Raise InvalidUsage if ``with_watermark()`` does not support this session."""
    if version_of(spark) < PYTHON_SOURCES:
        raise InvalidUsage(
            f"with_watermark() needs Spark 4.0 or later, and this is {spark.version}: use stream() or a later Spark."
        )
    if is_connect(spark) and version_of(spark) < AVAILABLE_NOW_OF_PYTHON_SOURCES:
        raise InvalidUsage(
            f"with_watermark() over Spark Connect needs Spark 4.2 or later, and this is {spark.version}: use stream(), "
            "or a classic session."
        )


def add_listener(spark: SparkSession, listener: StreamingQueryListener) -> None:
    """Add a listener to a session, so that it can be removed at any time.

    Until Spark Connect's client has removed the last listener, it keeps a lock and waits for its event thread. This
    thread needs the lock for each event that is left, so that both wait for ever (SPARK-59623). The client does not
    wait for a thread that it does not know. The thread ends with the server's answer.
    """
    spark.streams.addListener(listener)
    bus = getattr(spark.streams, "_sqlb", None)
    if bus is not None:
        bus._execution_thread = None


def to_arrow(df: DataFrame) -> pa.Table:
    """Return the rows of a DataFrame as an Arrow table; timestamps are in microseconds."""
    if hasattr(df, "toArrow"):
        return df.toArrow()
    # PySpark 3.5. DataFrame.toPandas() also calls this method, but converts a column of integers and nulls to floats.
    batches: list[pa.RecordBatch] = cast(Any, df)._collect_as_arrow()
    return pa.Table.from_batches(batches) if batches else to_arrow_schema(df.schema).empty_table()


def from_arrow(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return the rows of an Arrow table as a DataFrame."""
    if version_of(spark) >= (4, 0):
        return spark.createDataFrame(table)
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return spark.createDataFrame(rows, from_arrow_schema(table.schema))


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
