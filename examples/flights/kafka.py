"""The landings in a Kafka topic: one partition for each destination, and one substream for each partition.

This example was not run against a Kafka broker. The tests cover the records that it writes and reads.
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
    """Return the flights as Kafka records, in the order of their landings within each partition.

    The partition is the index of the destination in ``destinations``, and the value is JSON.
    """
    partition = F.array_position(F.lit(destinations), F.col("dest")).cast("int") - 1
    numbered = flights.withColumn("partition", partition).repartition("partition").sortWithinPartitions("landed_at")
    return numbered.select("partition", F.to_json(F.struct(*flights.columns)).alias("value"))


def flights(records: DataFrame) -> DataFrame:
    """Return the flights in Kafka records, with their partitions.

    A value that is not a flight becomes a row without an event time. The hook counts this row and continues.
    """
    flight = F.from_json(F.col("value").cast("string"), COLUMNS)
    return records.select("partition", flight.alias("flight")).select("partition", "flight.*")


@dataclass(frozen=True)
class KafkaSource:
    """A stream of the landings from a Kafka topic.

    Attributes:
        spark: The Spark session.
        servers: Addresses of the Kafka servers.
        directory: Directory of the landings. The first call of ``stream`` writes them to a new topic.
        destinations: The destinations in the order of their partitions.
    """

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
        """Return the name of the topic. On the first call of a run, write the landings to a new topic.

        The name is stored after the last landing, so a continued run does not use an incomplete topic.
        """
        kept = self.directory.with_name("topic")
        if not kept.exists():
            topic = f"landings-{datetime.now(UTC):%Y%m%d-%H%M%S}"
            landings = self.spark.read.schema(COLUMNS).parquet(str(self.directory))
            writer = records(landings, self.destinations).write.format("kafka")
            writer.option("kafka.bootstrap.servers", self.servers).option("topic", topic).save()
            kept.write_text(topic)
        return kept.read_text()
