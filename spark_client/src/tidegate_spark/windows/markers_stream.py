"""The stream of a job's markers."""

from dataclasses import asdict

from pyspark import cloudpickle
from pyspark.sql import DataFrame

from tidegate_spark.frame import Frame
from tidegate_spark.protocol.connection import JobConnection
from tidegate_spark.windows import markers


def markers_stream(connection: JobConnection, df: DataFrame, frame: Frame) -> DataFrame:
    """Return a stream without rows, with the schema of ``df``, that causes a batch whenever a window closes."""
    spark = df.sparkSession
    cloudpickle.register_pickle_by_value(markers)  # type: ignore[no-untyped-call]
    try:
        spark.dataSource.register(markers.Markers)
    finally:
        cloudpickle.unregister_pickle_by_value(markers)  # type: ignore[no-untyped-call]
    options: dict[str, str | int] = {"url": connection.watermark_url, **asdict(frame)}
    if connection.authorization:
        options["authorization_token"] = connection.authorization
    return spark.readStream.format(markers.Markers.name()).schema(df.schema).options(**options).load()
