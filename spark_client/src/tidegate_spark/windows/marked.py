"""The markers of a job, as a stream."""

from dataclasses import asdict

from pyspark import cloudpickle
from pyspark.sql import DataFrame

from tidegate_spark.coordinator import Coordinator
from tidegate_spark.windows import markers
from tidegate_spark.windows.frame import Frame


def markers_of(coordinator: Coordinator, df: DataFrame, frame: Frame) -> DataFrame:
    """A stream of the schema of ``df`` that has no rows, and a batch whenever the watermark closes a window."""
    spark = df.sparkSession
    cloudpickle.register_pickle_by_value(markers)  # type: ignore[no-untyped-call]
    try:
        spark.dataSource.register(markers.Markers)
    finally:
        cloudpickle.unregister_pickle_by_value(markers)  # type: ignore[no-untyped-call]
    options: dict[str, str | int] = {"url": coordinator.watermark_url(), **asdict(frame)}
    if coordinator.authorization:
        options["authorization_token"] = coordinator.authorization
    return spark.readStream.format(markers.Markers.name()).schema(df.schema).options(**options).load()
