"""Local Spark sessions."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyspark
from pyspark.sql import SparkSession

from tidegate_spark.testing import ensure_java

_VERSION = tuple(map(int, pyspark.__version__.split(".")[:2]))
_PACKAGE = "org.apache.spark.sql.execution.streaming" + (".checkpointing" if _VERSION >= (4, 1) else "")
LOCAL_CHECKPOINTS = f"{_PACKAGE}.FileSystemBasedCheckpointFileManager"
"""Spark's class for checkpoints that one local process writes. The default starts about 60 processes for each batch."""


@contextmanager
def local_session(**settings: str) -> Iterator[SparkSession]:
    """Run a session on two cores; ``a__b`` sets ``spark.a.b``."""
    ensure_java()
    builder = (
        SparkSession.builder.appName("tests")
        .master("local[2]")
        .config("spark.sql.session.timeZone", "America/New_York")  # no test may depend on the time zone of the session
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.python.authenticate.socketTimeout", "300s")  # a Python worker may start slowly
        .config("spark.python.sql.dataFrameDebugging.enabled", False)  # it doubles the time to build a query
        .config("spark.sql.streaming.checkpointFileManagerClass", LOCAL_CHECKPOINTS)
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
    )
    for name, value in settings.items():
        builder = builder.config(f"spark.{name.replace('__', '.')}", value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
