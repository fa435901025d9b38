"""The landings by way of Kafka: a topic with a partition for each destination, and a substream for each partition.

An example to read: there was no broker to run it on. What is tested is what is written to a topic and read from it, not
Kafka.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from examples.flights.spark import COLUMNS

ROWS_PER_BATCH = 400


def records(flights: DataFrame, destinations: list[str]) -> DataFrame:
    """As they are written: the partition is the destination's place in ``destinations``, the value is JSON. Those of a
    partition are in the order in which they landed.
    """
    partition = F.array_position(F.lit(destinations), F.col("dest")).cast("int") - 1
    numbered = flights.withColumn("partition", partition).repartition("partition").sortWithinPartitions("landed_at")
    return numbered.select("partition", F.to_json(F.struct(*flights.columns)).alias("value"))


def flights(records: DataFrame) -> DataFrame:
    """As they are read: flights, with the partition of each. A value that is none becomes a row without an event time,
    which is counted as such, and stops nothing.
    """
    flight = F.from_json(F.col("value").cast("string"), COLUMNS)
    return records.select("partition", flight.alias("flight")).select("partition", "flight.*")


@dataclass(frozen=True)
class KafkaSource:
    """``servers``: where Kafka is; ``directory``: the files of landings that are written to it, once."""

    spark: SparkSession
    servers: str
    directory: Path
    destinations: list[str]

    substream: ClassVar[str] = "partition"
    limited: ClassVar[bool] = True

    @property
    def names(self) -> list[str]:
        return [str(partition) for partition in range(len(self.destinations))]

    def batches(self, rows: int) -> int:
        return math.ceil(rows / ROWS_PER_BATCH)

    def stream(self) -> DataFrame:
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.servers)
        reader = reader.option("subscribe", self._topic()).option("startingOffsets", "earliest")
        return flights(reader.option("maxOffsetsPerTrigger", ROWS_PER_BATCH).load())

    def _topic(self) -> str:
        """Its name is kept once it is full: what another attempt left half-full is not used."""
        kept = self.directory.with_name("topic")
        if not kept.exists():
            topic = f"landings-{datetime.now(UTC):%Y%m%d-%H%M%S}"
            landings = self.spark.read.schema(COLUMNS).parquet(str(self.directory))
            writer = records(landings, self.destinations).write.format("kafka")
            writer.option("kafka.bootstrap.servers", self.servers).option("topic", topic).save()
            kept.write_text(topic)
        return kept.read_text()
