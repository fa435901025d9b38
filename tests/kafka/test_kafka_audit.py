"""The audit of a query on Kafka: the offsets of its batches, a partition that is added, and records that are gone."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.support.kafka import Broker
from tests.support.waiting import until
from tidegate_spark import InvalidUsage, audit

EVENT_TIME = "timestamp_millis(from_json(CAST(value AS STRING), 'k string, t long').t)"
BASE = 1_357_034_400_000


def run(spark: SparkSession, broker: Broker, topic: str, checkpoint: Path, counts: dict[Any, int]) -> None:
    rows = broker.stream(spark, topic, maxOffsetsPerTrigger=20).withColumn("at", F.timestamp_millis("t"))

    def write(df: DataFrame, batch_id: int) -> None:
        counts.update({row.window.start: row["count"] for row in df.collect()})

    counted = rows.withWatermark("at", "10 seconds").groupBy(F.window("at", "10 seconds")).count()
    query = counted.writeStream.outputMode("update").foreachBatch(write).trigger(availableNow=True)
    query.option("checkpointLocation", str(checkpoint)).start().awaitTermination()


@pytest.mark.timeout(300)
def test_the_audit_counts_what_the_output_lacks(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    topic, checkpoint, sent = broker.topic(2), tmp_path / "checkpoint", 0
    counts: dict[Any, int] = {}
    client: dict[str, Any] = {"bootstrap.servers": broker.address, "log_level": 0}
    admin = AdminClient(client)
    for turn in range(3):  # the second partition is 40 s behind the first, and the third 80 s
        for partition in range(2 + (turn == 2)):
            start = BASE + 60_000 * turn - 40_000 * partition
            rows = [(f"{number}", start + 2_000 * number) for number in range(30)]
            broker.send(topic, partition, rows, Producer(client))  # a new one knows the new partition
            sent += 30
        run(spark, broker, topic, checkpoint, counts)
        if turn == 1:
            admin.create_partitions([NewPartitions(topic, 3)])[topic].result(60)
            until(lambda: len(admin.list_topics(topic, 10).topics[topic].partitions) == 3, "the partition exists")
    options = {"kafka.bootstrap.servers": broker.address}
    arguments: dict[str, Any] = {"event_time": EVENT_TIME, "window": timedelta(seconds=10), "options": options}
    found = audit(spark, str(checkpoint), **arguments)
    lost = sent - sum(counts.values())
    assert (found.kinds, found.differences, found.losses.total.rows) == (("kafka",), (), sent)
    assert found.losses.total.least == found.losses.total.most == lost > 0
    by_partition = {name: loss.most for (_, name), loss in found.losses.by_substream.items()}
    assert by_partition[f"{topic}/0"] < by_partition[f"{topic}/1"]
    assert f"{topic}/2" in by_partition
    with pytest.raises(InvalidUsage, match="pass its servers, with --kafka"):
        audit(spark, str(checkpoint), **{**arguments, "options": None})
    admin.delete_records([TopicPartition(topic, 0, 30)])[TopicPartition(topic, 0)].result(60)
    until(lambda: audit(spark, str(checkpoint), **arguments).losses.total.rows == sent - 30, "the records are gone", 60)
    assert "30 of 210 records" in audit(spark, str(checkpoint), **arguments).missing[0]
