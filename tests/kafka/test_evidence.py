"""Silence with a real broker: a substream becomes idle only if its offsets prove that it has no unread rows."""

import time
from contextlib import ExitStack
from datetime import datetime, timedelta

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.support.kafka import Broker
from tests.support.kafka_queries import HOUR, START, TIMEOUT, count, late, running, states, until
from tests.support.streams import Sink
from tidegate_spark import Batch, Job, limiting_lag
from tidegate_spark.testing import CoordinatorProcess

LAG = timedelta(seconds=1)


@pytest.fixture
def job(tidegate: CoordinatorProcess) -> Job:
    return tidegate.job(config=limiting_lag(LAG, idle_timeout=TIMEOUT))


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": 100_000}, {"maxOffsetsPerTrigger": 20}], ids=str)
def test_a_silent_partition_does_not_hold_the_watermark(
    spark: SparkSession, broker: Broker, job: Job, checkpoint: str, limit: dict[str, int]
) -> None:
    """The other partitions always have new rows, and with the lowest limit a growing backlog."""
    topic, sink = broker.topic(3), Sink()
    broker.send(topic, 2, [("silent", START)])
    with broker.traffic(topic, (0, 1), START), running(job, broker.stream(spark, topic, **limit), sink, checkpoint):
        until(lambda: (job.status()["watermark"] or 0) > START, "the watermark passes the silent partition")
        assert states(job)[f"{topic}/2"] == "idle"
        broker.send(topic, 2, [("again", START + 24 * HOUR)])
        until(lambda: states(job)[f"{topic}/2"] == "active", "the partition is active again")
    assert late(sink) == 0


def test_rows_behind_a_limit_hold_the_watermark(spark: SparkSession, broker: Broker, job: Job, checkpoint: str) -> None:
    """The substream is a device. The rows of device ``b`` are six hours behind, and far apart in the backlog."""
    topic = broker.topic()
    for part in range(3):
        broker.send(topic, 0, [("b", START - 6 * HOUR + part * 1000)])
        broker.send(topic, 0, [("a", START + 1000 * part + each) for each in range(1000)])
    broker.send(topic, 0, [("b", START - 6 * HOUR + 3000)])
    idle: set[str] = set()

    class Watching(Sink):
        def write(self, df: DataFrame, batch_id: int, batch: Batch) -> None:
            super().write(df, batch_id, batch)
            idle.update(name for name, state in states(job).items() if state == "idle")
            time.sleep(TIMEOUT.total_seconds() / 4)

    sink = Watching()
    with running(job, broker.stream(spark, topic, maxOffsetsPerTrigger=150), sink, checkpoint, ("k",)):
        until(lambda: count(sink) == 3004, "all rows are read")
        assert (idle, late(sink)) == (set(), 0)
        until(lambda: "idle" in states(job).values(), "the devices are idle once all rows are read")


def test_too_few_rows_for_a_batch_hold_the_watermark(
    spark: SparkSession, broker: Broker, job: Job, checkpoint: str
) -> None:
    """Under ``minOffsetsPerTrigger``, Spark is idle although a partition has unread rows."""
    topic, sink = broker.topic(2), Sink()
    broker.send(topic, 0, [("a", START + each) for each in range(500)])
    broker.send(topic, 1, [("b", START + each) for each in range(500)])
    waits = {"minOffsetsPerTrigger": 500, "maxTriggerDelay": "12s"}
    with running(job, broker.stream(spark, topic, **waits), sink, checkpoint):
        until(lambda: count(sink) == 1000, "the first batch is read")
        broker.send(topic, 0, [("a", START + HOUR + each) for each in range(100)])
        broker.send(topic, 1, [("b", START + 1000 + each) for each in range(100)])
        seen: set[str] = set()

        def read() -> bool:
            seen.update(states(job).values())
            return count(sink) == 1200

        until(read, "the rest is read")
    assert "idle" not in seen
    assert late(sink) == 0


def test_aborted_records_hold_the_watermark_until_they_are_passed(
    spark: SparkSession, broker: Broker, job: Job, checkpoint: str
) -> None:
    """Partition 1 has aborted records before its rows. With the limit, many batches contain none of its rows."""
    topic, sink = broker.topic(2), Sink()
    broker.send(topic, 1, [("b", START - 6 * HOUR)])
    with broker.transaction(topic, 1, [("aborted", START)] * 400, commits=False):
        pass
    broker.send(topic, 1, [("b", START - 6 * HOUR + each) for each in range(10)])
    options = {"kafka__isolation__level": "read_committed", "maxOffsetsPerTrigger": 80}
    with broker.traffic(topic, (0,), START), running(job, broker.stream(spark, topic, **options), sink, checkpoint):
        until(lambda: sum(k == "b" for rows in sink.on_time.values() for k, _ in rows) == 11, "the rows are read")
        until(lambda: states(job)[f"{topic}/1"] == "idle", "the partition is then idle")
    assert late(sink) == 0
    assert len(sink.on_time) > 5


def test_committed_and_aborted_transactions_are_not_silence_and_silence(
    spark: SparkSession, broker: Broker, job: Job, checkpoint: str
) -> None:
    """Markers of transactions have offsets, and are no rows."""
    topic, sink = broker.topic(2), Sink()
    with broker.transaction(topic, 0, [("a", START + each) for each in range(50)]):
        pass
    with broker.transaction(topic, 1, [("aborted", START - HOUR)], commits=False):
        pass
    broker.send(topic, 1, [("b", START - HOUR)])
    options = {"kafka__isolation__level": "read_committed"}
    with (
        broker.traffic(topic, (0,), START + 60_000),
        running(job, broker.stream(spark, topic, **options), sink, checkpoint),
    ):
        until(lambda: (job.status()["watermark"] or 0) > START, "the watermark passes the silent partition")
    assert late(sink) == 0
    assert "aborted" not in {k for rows in sink.on_time.values() for k, _ in rows}


def test_the_first_rows_of_new_partitions_hold_the_watermark(
    spark: SparkSession, broker: Broker, tidegate: CoordinatorProcess, checkpoint: str
) -> None:
    """A partition is added to a topic with traffic, and its first rows come later, at the watermark."""
    job = tidegate.job(config=limiting_lag(LAG, idle_timeout=timedelta(minutes=5)))
    topic, sink = broker.topic(2), Sink()
    with broker.traffic(topic, (0, 1), START), running(job, broker.stream(spark, topic), sink, checkpoint):
        until(lambda: (job.status()["watermark"] or 0) > START, "the watermark moves")
        broker.add_partitions(topic, 3)
        until(lambda: f"{topic}/2" in states(job), "the new partition is declared")
        assert job.status()["watermark"] is not None
        at = int(job.status()["watermark"])
        broker.send(topic, 2, [("new", at + each) for each in range(10)])
        until(
            lambda: sum(k == "new" for rows in sink.on_time.values() for k, _ in rows) + late(sink) == 10, "it is read"
        )
        assert late(sink) == 0
        job.configure(limiting_lag(LAG, idle_timeout=TIMEOUT))
        until(lambda: states(job)[f"{topic}/2"] == "idle", "the partition is idle later")


def test_an_empty_partition_holds_the_watermark_until_it_is_proven_empty(
    spark: SparkSession, broker: Broker, job: Job, checkpoint: str
) -> None:
    topic, sink = broker.topic(2), Sink()
    with broker.traffic(topic, (0,), START), running(job, broker.stream(spark, topic), sink, checkpoint):
        until(lambda: len(sink.on_time) >= 1, "a batch is read")
        assert states(job).keys() == {f"{topic}/0", f"{topic}/1"}
        until(lambda: (job.status()["watermark"] or 0) > START, "the watermark passes the empty partition")
        assert states(job)[f"{topic}/1"] == "idle"


def test_without_an_idle_timeout_an_empty_partition_does_not_hold_the_watermark(
    spark: SparkSession, broker: Broker, tidegate: CoordinatorProcess, checkpoint: str
) -> None:
    """It would do so for ever, and many topics have partitions that never get a row."""
    job, topic, sink = tidegate.job(config=limiting_lag(LAG)), broker.topic(2), Sink()
    broker.send(topic, 0, [("a", START), ("a", START + HOUR)])
    with running(job, broker.stream(spark, topic), sink, checkpoint):
        until(lambda: job.status()["watermark"] is not None, "the watermark moves")
    assert states(job).keys() == {f"{topic}/0"}


def test_an_open_transaction_holds_the_watermark(
    spark: SparkSession, broker: Broker, job: Job, checkpoint: str
) -> None:
    """Its rows cannot be read yet, and Spark's latest offset ends before them."""
    topic, sink = broker.topic(2), Sink()
    broker.send(topic, 1, [("b", START)])
    options = {"kafka__isolation__level": "read_committed"}
    df = broker.stream(spark, topic, **options)
    with ExitStack() as opened:
        # The transaction is open before the first batch, which may take longer than the timeout.
        opened.enter_context(broker.transaction(topic, 1, [("b", START + 500 + each) for each in range(20)]))
        with broker.traffic(topic, (0,), START), running(job, df, sink, checkpoint):
            until(lambda: len(sink.on_time) >= 2, "batches are read")
            began = time.monotonic()
            while time.monotonic() < began + 3 * TIMEOUT.total_seconds():
                assert states(job)[f"{topic}/1"] != "idle"
                time.sleep(0.2)
            opened.close()
            until(
                lambda: sum(k == "b" for rows in sink.on_time.values() for k, _ in rows) + late(sink) == 21, "it ends"
            )
            assert late(sink) == 0
            until(lambda: states(job)[f"{topic}/1"] == "idle", "the partition is idle later")


@pytest.mark.skipif(pyspark.__version__ < "4", reason="needs Spark 4.0")
def test_sparks_own_windows_pass_a_silent_partition(
    spark: SparkSession, broker: Broker, job: Job, checkpoint: str
) -> None:
    """The progress of each batch is the evidence, which the source of markers reads from the checkpoint."""
    topic, ends = broker.topic(3), set[datetime]()
    broker.send(topic, 2, [("silent", START)])
    rows = broker.stream(spark, topic, maxOffsetsPerTrigger=100_000).withColumn("at", F.timestamp_millis("t"))
    watermarked = job.with_watermark(
        rows,
        event_time="at",
        substream=["topic", "partition"],
        queryName="q",
        checkpointLocation=checkpoint,
        windows=timedelta(seconds=1),
    )
    counted = watermarked.groupBy(F.window("at", "1 second").alias("w")).count().select("w.end")

    def write(df: DataFrame, batch_id: int) -> None:
        ends.update(row.end for row in df.collect())

    with broker.traffic(topic, (0, 1), START):
        query = (
            counted.writeStream.foreachBatch(write)
            .trigger(processingTime="300 milliseconds")
            .start(checkpointLocation=checkpoint)
        )
        try:
            until(lambda: len(ends) >= 2, "windows close behind the silent partition")
        finally:
            query.stop()
    assert states(job)[f"{topic}/2"] == "idle"


def test_three_topics_under_available_now_of_which_one_is_empty_in_each_run(
    spark: SparkSession, broker: Broker, tidegate: CoordinatorProcess, checkpoint: str
) -> None:
    """The watermark follows the lowest topic, also in a run in which the topic has no rows."""
    job, sink = tidegate.job(config=limiting_lag(LAG)), Sink()
    topics = [broker.topic() for _ in range(3)]
    stream = sink.after(
        job.stream(broker.stream(spark, ",".join(topics)), event_time="t", substream=["topic", "partition"])
    ).declare(*((topic, 0) for topic in topics))
    ends = [0, 0, 0]
    for run in range(4):
        for number, topic in enumerate(topics):
            if run == 0 or number != run % 3:
                ends[number] = START + run * HOUR + number * 60_000
                broker.send(topic, 0, [(topic, ends[number] - each * 1000) for each in range(20)][::-1])
        query = stream.trigger(availableNow=True).start(queryName="q", checkpointLocation=checkpoint)
        assert query.awaitTermination(120)
        assert job.status()["watermark"] == min(ends) - 1000
    assert late(sink) == 0
    assert count(sink) == 20 * (3 + 3 * 2)


def test_nobody_is_idle_while_the_broker_is_away(
    spark: SparkSession, broker: Broker, job: Job, checkpoint: str
) -> None:
    topic, sink = broker.topic(2), Sink()
    with broker.traffic(topic, (0, 1), START), running(job, broker.stream(spark, topic), sink, checkpoint) as query:
        until(lambda: len(sink.on_time) >= 3, "batches are read")
        with broker.away():
            time.sleep(3 * TIMEOUT.total_seconds())
            assert "idle" not in states(job).values()
        read = count(sink)
        until(lambda: count(sink) > read, "the query goes on")
        assert query.isActive
    assert late(sink) == 0
