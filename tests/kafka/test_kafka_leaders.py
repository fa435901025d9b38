"""Two brokers: the leader of a partition moves while a query runs."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

from tests.support.kafka import Broker, second_broker
from tests.support.kafka_queries import START, TIMEOUT, late, running, until
from tests.support.streams import Sink
from tidegate_spark import limiting_lag
from tidegate_spark.testing import CoordinatorProcess

FENCED_MS = 6000
"""Time without a sign of life after which a broker is no leader: three times the idle timeout."""


@pytest.fixture
def brokers(tmp_path: Path, broker: Broker) -> Iterator[tuple[Broker, object]]:
    """Yield two brokers of one cluster. (The fixture ``broker`` skips the test without Kafka.)"""
    first = Broker(
        tmp_path / "first", {"broker.session.timeout.ms": str(FENCED_MS), "broker.heartbeat.interval.ms": "500"}
    )
    second = second_broker(tmp_path / "second", first)
    try:
        first.start()
        second.start()
        yield first, second
    finally:
        second.stop()
        first.stop()


def test_a_moved_leader_changes_nothing(
    spark: SparkSession, tidegate: CoordinatorProcess, brokers: tuple[Broker, Broker], checkpoint: str
) -> None:
    """The leader of partition 0 is killed. Until the other broker leads it, its rows wait, and it is not idle."""
    (first, second), sink = brokers, Sink()
    job = tidegate.job(config=limiting_lag(timedelta(seconds=1), idle_timeout=TIMEOUT))
    created = NewTopic("moved", 2, replica_assignment=[[2, 1], [1, 2]])
    until(lambda: len(first.admin.list_topics(timeout=60).brokers) == 2, "both brokers are in the cluster")
    first.admin.create_topics([created])["moved"].result(60)
    until(lambda: (first.leader("moved", 0), first.leader("moved", 1)) == (2, 1), "each broker leads a partition")

    def read() -> dict[str, int]:
        """Return the highest number of the rows that were read of each partition."""
        found: dict[str, int] = {"0": -1, "1": -1}
        for k, _ in (row for rows in sink.on_time.values() for row in rows):
            _, partition, number = (k or "").split("-")
            found[partition] = max(found[partition], int(number))
        return found

    with running(job, first.stream(spark, "moved"), sink, checkpoint) as query:
        with first.traffic("moved", (0,), START), first.traffic("moved", (1,), START):
            until(lambda: min(read().values()) > 50, "both partitions are read")
            second.stop()
            until(lambda: first.leader("moved", 0) == 1, "the other broker leads partition 0")
            moved = read()
            until(lambda: all(read()[each] > moved[each] + 50 for each in moved), "both partitions are read again")
            second.start()
        query.processAllAvailable()
        ends = {each: first.end("moved", each) for each in (0, 1)}
        assert job.wait_for_offsets("q", {"moved": ends}, timedelta(minutes=5))
    ids = [k for rows in sink.on_time.values() for k, _ in rows]
    assert late(sink) == 0
    assert read() == {each: max(int(k.split("-")[2]) for k in ids if k and k.split("-")[1] == each) for each in "01"}
    assert len(set(ids)) == sum(number + 1 for number in read().values()), "no row is missing"
