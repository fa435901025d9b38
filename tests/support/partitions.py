"""A source of four partitions. Each is in order, and the last one is far behind."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from tidegate_spark.spark_session import PYTHON_SOURCES, version_of

try:
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
except ImportError:  # four_partitions() skips tests on PySpark 3.5
    DataSource = DataSourceStreamReader = InputPartition = object  # type: ignore[misc,assignment]

SECOND = 1000
PARTITIONS = 4
PER_BATCH = 100
BATCHES = 10
TOTAL = PARTITIONS * PER_BATCH * BATCHES
BEHIND_S = 250

# Spark's workers do not know the modules of the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def four_partitions(spark: SparkSession) -> DataFrame:
    """Return a stream of the source; skip the test if this version of Spark has no Python data sources."""
    if version_of(spark) < PYTHON_SOURCES:
        pytest.skip("needs Spark 4.0")
    spark.dataSource.register(FourPartitions)
    return spark.readStream.format("four_partitions").load()


class Slice(InputPartition):
    def __init__(self, partition: int, start: int, end: int) -> None:
        super().__init__(partition)
        self.partition, self.start, self.end = partition, start, end


class FourPartitions(DataSource):
    """Four partitions with one event per second, all in order. The last partition is ``BEHIND_S`` behind."""

    @classmethod
    def name(cls) -> str:
        return "four_partitions"

    def schema(self) -> str:
        return "partition int, t timestamp_ntz, millis long"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return FourPartitionsReader()


class FourPartitionsReader(DataSourceStreamReader):
    """A reader of batches of ``PER_BATCH`` seconds. With ``availableNow``, there would be only one."""

    second = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"second": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:  # noqa: N802
        # Before version 4.2, Spark does not pass the end of the last batch. It asks once for each batch.
        self.second = min((self.second if start is None else start["second"]) + PER_BATCH, PER_BATCH * BATCHES)
        return {"second": self.second}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [Slice(partition, start["second"], end["second"]) for partition in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, Any, int]]:
        from datetime import datetime, timedelta

        assert isinstance(partition, Slice)
        behind = BEHIND_S if partition.partition == PARTITIONS - 1 else 0
        for second in range(partition.start, partition.end):
            millis = (1_000_000 + second - behind) * SECOND
            yield partition.partition, datetime(1970, 1, 1) + timedelta(milliseconds=millis), millis
