"""Rows of Kafka that are unlike the rows of files: records without an event time, compaction, and times of records."""

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.support.kafka import Broker
from tests.support.kafka_queries import HOUR, START, TIMEOUT, count, late, running, states, until
from tests.support.streams import Sink, to_the_end
from tidegate_spark import SOURCE_PARTITION, Job, Stream, limiting_lag, windows
from tidegate_spark.testing import CoordinatorProcess

DAY = 24 * HOUR


@pytest.fixture
def job(tidegate: CoordinatorProcess) -> Job:
    return tidegate.job(config=limiting_lag(timedelta(seconds=1), idle_timeout=TIMEOUT))


def rows_of(job: Job, name: str) -> dict[str, int]:
    found: dict[str, int] = next(row["rows"] for row in job.substreams() if row["substream"] == name)
    return found


def test_records_without_an_event_time_are_counted_and_are_no_activity(
    spark: SparkSession, broker: Broker, job: Job, checkpoint: str
) -> None:
    """Partition 1 has tombstones and values that cannot be parsed, and no others."""
    topic, sink = broker.topic(2), Sink()
    with broker.traffic(topic, (0,), START), running(job, broker.stream(spark, topic), sink, checkpoint):
        until(lambda: len(sink.on_time) >= 2, "batches are read")
        broker.send(topic, 1, [None, b"not JSON", b"{}"])
        until(lambda: rows_of(job, f"{topic}/1")["null_event_time"] == 3, "the records are counted")
        until(lambda: (job.status()["watermark"] or 0) > START, "the watermark passes the partition")
        assert states(job)[f"{topic}/1"] == "idle"
    assert job.status()["rows"]["late"] == 0
    assert sum(k is None for rows in sink.late.values() for k, _ in rows) == 3


def test_compaction_is_no_loss(
    spark: SparkSession, broker: Broker, tidegate: CoordinatorProcess, checkpoint: str
) -> None:
    """Compaction removes records of the middle, so batches have fewer rows than offsets."""
    job, sink = tidegate.job(config=limiting_lag(timedelta(seconds=1))), Sink()
    quick = {"segment.ms": 100, "min.cleanable.dirty.ratio": 0.01, "max.compaction.lag.ms": 200}
    topic = broker.topic(config={"cleanup.policy": "compact", **quick})
    for number in range(200):
        broker.send_keyed(topic, [(f"key-{number % 5}", (f"k{number}", START + number))])
    time.sleep(1)  # the segment of the next record is a new one
    broker.send_keyed(topic, [("last", ("last", START + 1000))])
    until(lambda: broker.count(topic) < 100, "the log is compacted")
    with running(job, broker.stream(spark, topic), sink, checkpoint):
        assert job.wait_for_offsets("q", {topic: {0: 201}}, timedelta(minutes=5))
    assert count(sink) < 100
    (query,) = job.queries()
    assert (query["offsets"]["unread"], query["offsets"]["skipped"], late(sink)) == (0, 0, 0)
    assert job.status()["watermark"] == START


def test_the_time_of_a_record_may_be_any(spark: SparkSession, broker: Broker, job: Job, checkpoint: str) -> None:
    """The record's timestamp is the event time. A producer may have no clock, or a wrong one."""
    now, sink = int(time.time() * 1000), Counter[str]()
    topic = broker.topic(config={"message.timestamp.after.max.ms": 90 * DAY, "retention.ms": -1})
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.address)
    rows = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
    named = rows.select("topic", "partition", F.col("value").cast("string").alias("k"), "timestamp")

    def write(df: DataFrame, batch_id: int) -> None:
        sink.update(row.k for row in df.collect())

    stream = job.stream(named, event_time="timestamp", substream=["topic", "partition"]).foreach_batch(write)
    broker.send_at(spark, topic, [("first", now - DAY)])
    query = stream.trigger(processingTime="200 milliseconds").start(queryName="q", checkpointLocation=checkpoint)
    try:
        until(lambda: sink["first"] == 1, "the first record is read")
        broker.send_undated(topic, b"none")
        broker.send_at(spark, topic, [("zero", 0), ("ahead", now + 30 * DAY), ("next", now - DAY + 1000)])
        until(lambda: sink["next"] == 1, "the next records are read")
        until(lambda: job.status()["rows"]["future"] == 1, "the batch is committed")
    finally:
        query.stop()
    counts: Any = job.status()["rows"]
    assert (counts["on_time"], counts["late"], counts["future"]) == (2, 2, 1)
    assert job.status()["watermark"] == now - DAY, "the time of the record that is ahead moves nothing"


@pytest.mark.parametrize(
    "options", [{"minPartitions": 8}, {"maxRecordsPerPartition": 50}, {"minPartitions": 3, "maxOffsetsPerTrigger": 90}]
)
def test_tasks_that_are_not_partitions_change_nothing(
    spark: SparkSession, broker: Broker, job: Job, checkpoint: str, options: dict[str, int]
) -> None:
    """Spark splits partitions into tasks, or the other way round."""
    topic, sink = broker.topic(2), Sink()
    for partition in (0, 1):
        broker.send(topic, partition, [(f"{partition}", START + partition * HOUR + each) for each in range(200)])
    with running(job, broker.stream(spark, topic, **options), sink, checkpoint):
        assert job.wait_for_offsets("q", {topic: {0: 200, 1: 200}}, timedelta(minutes=5))
    assert (count(sink), late(sink)) == (400, 0)
    assert [row["reported"] for row in job.substreams()] == [200, 200]


def test_a_query_that_starts_at_a_timestamp_continues_the_watermark(
    spark: SparkSession, broker: Broker, tidegate: CoordinatorProcess, checkpoint: str
) -> None:
    """A new checkpoint of an old job reads from a time on."""
    job, topic, sink = tidegate.job(config=limiting_lag(timedelta(0))), broker.topic(), Sink()
    old = int(time.time() * 1000) - 3 * HOUR
    broker.send_at(spark, topic, [(f'{{"k":"a","t":{START + each}}}', old + each) for each in range(10)])
    with running(job, broker.stream(spark, topic), sink, checkpoint):
        assert job.wait_for_offsets("q", {topic: {0: 10}}, timedelta(minutes=5))
    broker.send_at(spark, topic, [(f'{{"k":"b","t":{START + 100 + each}}}', old + HOUR + each) for each in range(10)])
    broker.send_at(
        spark, topic, [(f'{{"k":"c","t":{START + 200 + each}}}', old + 2 * HOUR + each) for each in range(10)]
    )
    later = broker.stream(spark, topic, startingTimestamp=old + 2 * HOUR)
    with running(job, later, sink, checkpoint + "-2"):
        assert job.wait_for_offsets("q", {topic: {0: 30}}, timedelta(minutes=5))
    assert job.status()["watermark"] == START + 209
    assert late(sink) == 0
    assert "b" not in {k for rows in sink.on_time.values() for k, _ in rows}


@pytest.mark.parametrize(
    ("options", "substream", "change", "are_few"),
    [
        ({}, ["topic", "partition"], lambda stream: stream, True),
        ({}, None, lambda stream: stream, True),
        ({}, None, lambda stream: stream.measure_delays("row"), False),
        ({}, SOURCE_PARTITION, lambda stream: stream, False),
        ({"minPartitions": 25}, ["topic", "partition"], lambda stream: stream, False),
    ],
)
def test_small_batches_of_many_partitions_have_few_tasks(
    spark: SparkSession,
    broker: Broker,
    tidegate: CoordinatorProcess,
    checkpoint: str,
    options: dict[str, int],
    substream: Any,
    change: Callable[[Stream], Stream],
    are_few: bool,
) -> None:
    """Not if the tasks are the substreams, nor if the user has chosen the number of tasks."""
    job, topic, sizes = tidegate.job(config=limiting_lag(timedelta(seconds=1))), broker.topic(20), list[int]()
    stream = job.stream(broker.stream(spark, topic, **options), event_time="t", substream=substream)
    stream = change(stream).foreach_batch(lambda df, batch_id: sizes.append(df.rdd.getNumPartitions()))
    for number, each in enumerate((2, 30, 2000)):
        for partition in range(20):
            broker.send(topic, partition, [("k", START + 10_000 * number + row) for row in range(each)])
        to_the_end(stream, checkpoint)
    first, small, large = sizes
    slots = spark.sparkContext.defaultParallelism
    assert first >= 20, "where the first batch starts is unknown"
    assert (small == 2 * slots < 20) if are_few else small >= 20
    assert large >= 20
    rows: Any = job.status()["rows"]
    assert (rows["on_time"], rows["late"]) == (20 * 2032, 0)


def test_windows_of_a_partition_that_is_behind_equal_those_of_pandas(
    spark: SparkSession, broker: Broker, tidegate: CoordinatorProcess, checkpoint: str
) -> None:
    """Partition 3 is six hours behind. Spark's own watermark, the highest event time, would lose its rows."""
    job, topic = tidegate.job(config=limiting_lag(timedelta(seconds=1))), broker.topic(4)
    rows = [
        (f"{partition}", START + 60_000 * number - 6 * HOUR * (partition == 3))
        for number in range(600)
        for partition in range(4)
    ]
    for partition in range(4):
        broker.send(topic, partition, [row for row in rows if row[0] == str(partition)])
    found: dict[tuple[int, str], int] = {}

    def keep(df: DataFrame, batch_id: int) -> None:
        for row in df.collect():
            assert (row.window.start, row.k) not in found, "a window is emitted once"
            found[row.window.start, row.k] = row.rows

    limited = broker.stream(spark, topic, maxOffsetsPerTrigger=400)
    stream = job.stream(limited, event_time="t", substream=["topic", "partition"])
    stream = stream.windows(HOUR).agg("k", rows=windows.count()).foreach_batch(keep)
    to_the_end(stream, checkpoint)
    assert found, "windows close while partitions have rows"
    job.complete()
    to_the_end(stream, checkpoint)
    frame = pd.DataFrame(rows, columns=["k", "t"])
    assert found == frame.groupby([frame.t // HOUR * HOUR, "k"]).size().to_dict()
    counts: Any = job.status()["rows"]
    assert (counts["on_time"], counts["late"]) == (2400, 0)


def test_hundreds_of_partitions(spark: SparkSession, broker: Broker, job: Job, checkpoint: str) -> None:
    """Each partition is a substream. Partition 0 is six hours behind, and 100 partitions are empty."""
    topic, sink = broker.topic(200), Sink()
    for partition in range(100):
        base = START - 6 * HOUR * (partition == 0)
        broker.send(topic, partition, [(f"{partition}", base + each) for each in range(3)])
    quick = broker.stream(spark, topic, kafka__fetch__max__wait__ms=20)
    with running(job, quick, sink, checkpoint):
        assert job.wait_for_offsets("q", {topic: dict.fromkeys(range(100), 3)}, timedelta(minutes=5))
        assert (count(sink), late(sink)) == (300, 0)
        assert len(job.substreams()) == 200
        until(lambda: job.status()["substreams"]["active"] == 0, "all partitions are idle once they are read")
    assert job.status()["watermark"] == START + 2 - 1000
