"""The offsets of a query with a real broker: how far it is behind, and which records it never read."""

from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.kafka import Broker
from tests.support.kafka_queries import START, count, late, running, states, until
from tests.support.streams import Sink
from tidegate_spark import Job, limiting_lag
from tidegate_spark.testing import CoordinatorProcess


@pytest.fixture
def job(tidegate: CoordinatorProcess) -> Job:
    return tidegate.job(config=limiting_lag(timedelta(seconds=1)))


def offsets(job: Job) -> Any:
    return (job.queries() or [{}])[0].get("offsets")


def watermarks(job: Job) -> dict[str, int | None]:
    return {row["substream"]: row["watermark"] for row in job.substreams()}


def skipped(job: Job, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = job.history(kind=[kind])["records"]
    return found


def read_a_hundred_rows_of_each_partition(
    job: Job, broker: Broker, topic: str, df: DataFrame, sink: Sink, checkpoint: str
) -> None:
    for partition in (0, 1):
        broker.send(topic, partition, [("a", START + each) for each in range(100)])
    with running(job, df, sink, checkpoint) as query:
        assert job.wait_for_offsets("q", {topic: {0: 100, 1: 100}}, timedelta(minutes=5))
        # Spark records the end of a batch after the coordinator. Without it, the next run would repeat the batch.
        query.processAllAvailable()


def test_the_status_tells_how_far_partitions_are_behind(
    spark: SparkSession, broker: Broker, job: Job, checkpoint: str
) -> None:
    """Partition 0 has a backlog behind the limit of the batches. The others have none."""
    topic, sink = broker.topic(3), Sink()
    broker.send(topic, 0, [("a", START + each) for each in range(2000)])
    broker.send(topic, 1, [("b", START)])
    limited = broker.stream(spark, topic, maxOffsetsPerTrigger=100)
    with running(job, limited, sink, checkpoint):
        until(lambda: (offsets(job) or {}).get("batch_id", 0) >= 2, "some batches are committed")
        seen = offsets(job)
        assert seen["partitions"] == 3
        assert 0 < seen["unread"] < 2000
        (behind,) = seen["most_behind"]
        assert behind == {
            "partition": f"{topic}/0",
            "committed": 2000 - seen["unread"],
            "latest": 2000,
            "unread": seen["unread"],
            "behind_ms": None,  # the records were there before the query started
            "open_transaction": False,
        }
        explained = job.explain()["offsets"]["q"]
        assert explained["most_behind"][0]["partition"] == f"{topic}/0"
        assert not job.wait_for_offsets("q", {topic: {0: 2001}}, timedelta(0))
        assert job.wait_for_offsets("q", {topic: {0: 2000, 1: 1, 2: 0}}, timedelta(minutes=5))
        assert count(sink) == 2001, "the batches with these records are committed"
        assert (offsets(job)["unread"], offsets(job)["most_behind"]) == (0, [])
        broker.send(topic, 1, [("b", START + each) for each in range(1000)])
        until(lambda: (offsets(job)["most_behind"] or [{}])[0].get("behind_ms", 0) > 0, "the age of the backlog")
    assert (late(sink), offsets(job)["skipped"]) == (0, 0)


def test_records_that_kafka_has_deleted_before_they_were_read_are_recorded(
    spark: SparkSession, broker: Broker, job: Job, checkpoint: str
) -> None:
    """As the retention of the topic does while the query is stopped. Spark reads on and says nothing."""
    topic, sink = broker.topic(2), Sink()
    df = broker.stream(spark, topic, failOnDataLoss="false")
    read_a_hundred_rows_of_each_partition(job, broker, topic, df, sink, checkpoint)
    broker.send(topic, 1, [("b", START + 1000 + each) for each in range(100)])
    broker.delete_rows(topic, 1, before=150)
    broker.delete_rows(topic, 0, before=100)  # all of them were read
    with running(job, df, sink, checkpoint):
        assert job.wait_for_offsets("q", {topic: {1: 200}}, timedelta(minutes=5))
    assert count(sink) == 250
    (record,) = skipped(job, "offsets_skipped")
    assert (record["query"], record["count"], record["partitions"]) == ("q", 50, [f"{topic}/1"])
    assert offsets(job)["skipped"] == 50


def test_the_substreams_of_a_topic_that_was_created_again_start_again(
    spark: SparkSession, broker: Broker, job: Job, checkpoint: str
) -> None:
    """Spark continues at the end of the new topic, so the rows that it already has are never read.

    The new partitions hold the watermark until each has a row, whatever the old partitions had.
    """
    topic, sink = broker.topic(2), Sink()
    df = broker.stream(spark, topic, failOnDataLoss="false")
    read_a_hundred_rows_of_each_partition(job, broker, topic, df, sink, checkpoint)
    broker.delete_topic(topic)
    broker.topic(2, topic)
    broker.send(topic, 0, [("b", START + 1000 + each) for each in range(40)])
    with running(job, df, sink, checkpoint):
        until(lambda: bool(skipped(job, "offsets_restarted")), "the batch that reads the new topic is committed")
        before = job.status()["watermark"]
        assert watermarks(job) == {f"{topic}/0": None, f"{topic}/1": None}
        broker.send(topic, 0, [("c", START + 60_000)])
        until(lambda: "c" in {k for rows in sink.on_time.values() for k, _ in rows}, "the query goes on")
        until(lambda: watermarks(job)[f"{topic}/0"] == START + 59_000, "the batch is committed")
        assert job.status()["watermark"] == before, "the other partition has had no row yet"
        broker.send(topic, 1, [("d", START + 50_000)])
        until(lambda: job.status()["watermark"] == START + 49_000, "the watermark goes on")
    assert late(sink) == 0
    (restarted,) = skipped(job, "restarted")
    assert (restarted["count"], len(restarted["substreams"])) == (2, 2)
    (record,) = skipped(job, "offsets_restarted")
    assert (record["count"], sorted(record["partitions"])) == (40, [f"{topic}/0", f"{topic}/1"])
    assert "b" not in {k for rows in sink.on_time.values() for k, _ in rows}


def test_a_topic_that_has_left_the_pattern_does_not_hold_the_watermark(
    spark: SparkSession, broker: Broker, tidegate: CoordinatorProcess, checkpoint: str
) -> None:
    """When it is there again, its first rows hold the watermark, as those of a new topic do."""
    job = tidegate.job(config=limiting_lag(timedelta(seconds=1), idle_timeout=timedelta(minutes=5)))
    name, sink = broker.topic(1), Sink()
    other = broker.topic(1, f"{name}-other")
    broker.send(other, 0, [("b", START)])
    with (
        broker.traffic(name, (0,), START),
        running(job, broker.stream(spark, f"{name}.*", failOnDataLoss="false"), sink, checkpoint),
    ):
        until(lambda: job.status()["watermark"] == START - 1000, "the topic that is behind holds the watermark")
        broker.delete_topic(other)
        until(lambda: (job.status()["watermark"] or 0) > START, "the watermark passes the topic that has gone")
        assert states(job)[f"{other}/0"] == "done"
        broker.topic(1, other)
        until(lambda: states(job)[f"{other}/0"] == "active", "the new topic holds the watermark")
        at = int(job.status()["watermark"])
        broker.send(other, 0, [("new", at + each) for each in range(10)])
        until(lambda: watermarks(job)[f"{other}/0"] == at + 9 - 1000, "its rows are read")
    assert late(sink) == 0
    assert [record["substreams"] for kind in ("ended", "restarted") for record in skipped(job, kind)] == [
        [f"q/{other}/0"],
        [f"q/{other}/0"],
    ]


def test_an_open_transaction_is_named(spark: SparkSession, broker: Broker, job: Job, checkpoint: str) -> None:
    topic, sink = broker.topic(2), Sink()
    df = broker.stream(spark, topic, kafka__isolation__level="read_committed")
    with (
        broker.traffic(topic, (0,), START),
        broker.transaction(topic, 1, [("b", START + each) for each in range(20)]),
        running(job, df, sink, checkpoint),
    ):

        def named() -> bool:
            rows = (offsets(job) or {"most_behind": []})["most_behind"]
            return any(row["partition"] == f"{topic}/1" and row["open_transaction"] for row in rows)

        until(named, "the partition of the transaction is named")
