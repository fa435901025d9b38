"""The landings in a Kafka topic: one partition for each destination, and one substream for each partition."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

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
    complete_batches: ClassVar[bool] = False

    @property
    def names(self) -> list[str]:
        return [str(partition) for partition in range(len(self.destinations))]

    def batches(self, rows: int) -> int:
        return math.ceil(rows / ROWS_PER_BATCH)

    def stream(self) -> DataFrame:
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.servers)
        reader = reader.option("subscribe", self._topic()).option("startingOffsets", "earliest")
        # Spark's consumer waits this long for each partition without new rows, one after the other.
        reader = reader.option("kafka.fetch.max.wait.ms", 10)
        return flights(reader.option("maxOffsetsPerTrigger", ROWS_PER_BATCH).load())

    def _create(self, topic: str) -> None:
        """Create the topic.

        A broker that creates a topic for a writer does so while the writer sends, and the writer may then fail.
        """
        jvm: Any = self.spark._jvm  # noqa: SLF001 - PySpark has no client of Kafka
        admin = jvm.org.apache.kafka.clients.admin
        settings = jvm.java.util.Properties()
        settings.setProperty("bootstrap.servers", self.servers)
        optional = jvm.java.util.Optional
        new = admin.NewTopic(topic, optional.of(len(self.destinations)), optional.empty())
        client = admin.Admin.create(settings)
        try:
            client.createTopics([new]).all().get()
        finally:
            client.close()

    def _topic(self) -> str:
        """Return the name of the topic. On the first call of a run, write the landings to a new topic.

        The name is stored after the last landing, so a continued run does not use an incomplete topic.
        """
        kept = self.directory.with_name("topic")
        if not kept.exists():
            topic = f"landings-{datetime.now(UTC):%Y%m%d-%H%M%S}"
            self._create(topic)
            landings = self.spark.read.schema(COLUMNS).parquet(str(self.directory))
            writer = records(landings, self.destinations).write.format("kafka")
            writer.option("kafka.bootstrap.servers", self.servers).option("topic", topic).save()
            kept.write_text(topic)
        return kept.read_text()
