"""A Kafka broker of the tests, and rows in its topics."""

import json
import os
import secrets
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec  # type: ignore[attr-defined]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from examples.flights.broker import LocalBroker
from examples.flights.settings import KAFKA_JARS
from tests.support.waiting import until

Row = tuple[str, int]
"""An id, and an event time in milliseconds."""


class Broker(LocalBroker):
    """A broker on loopback, with clients."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(directory, settings)
        self.admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        self._producer = Producer({"bootstrap.servers": self.address, "log_level": 0, "linger.ms": 0})

    @contextmanager
    def away(self) -> Iterator[None]:
        """Suspend the broker, so that it does not answer."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def topic(self, partitions: int = 1, name: str | None = None, config: Mapping[str, object] | None = None) -> str:
        """Create a topic with a configuration, and return its name."""
        name = name or f"t{secrets.token_hex(4)}"
        given = {key: str(value) for key, value in (config or {}).items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=given)])[name].result(60)
        until(lambda: len(self._partitions(name)) == partitions, f"{name} exists")
        return name

    def add_partitions(self, topic: str, total: int) -> None:
        """Add partitions to a topic."""
        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(60)
        until(lambda: len(self._partitions(topic)) == total, f"{topic} has {total} partitions")

    def leader(self, topic: str, partition: int) -> int:
        """Return the id of the broker that leads a partition; -1 if this broker knows no leader."""
        found = self._partitions(topic).get(partition)
        return -1 if found is None else int(found.leader)

    def _partitions(self, topic: str) -> dict[int, Any]:
        metadata = self.admin.list_topics(topic, timeout=60).topics[topic]
        return {} if metadata.error is not None else metadata.partitions

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        self.admin.delete_topics([topic])[topic].result(60)
        until(lambda: topic not in self.admin.list_topics(timeout=60).topics, f"{topic} is deleted")

    def delete_rows(self, topic: str, partition: int, before: int) -> None:
        """Delete the records of a partition before an offset, as the retention of a topic does."""
        ((_, deleted),) = self.admin.delete_records([TopicPartition(topic, partition, before)]).items()
        deleted.result(60)

    def end(self, topic: str, partition: int) -> int:
        """Return the offset after the last record of a partition."""
        asked = {TopicPartition(topic, partition): OffsetSpec.latest()}  # type: ignore[no-untyped-call]
        ((_, found),) = self.admin.list_offsets(asked).items()
        return int(found.result(60).offset)

    def send(self, topic: str, partition: int, rows: Iterable[Row | bytes | None], to: Producer | None = None) -> None:
        """Send rows ``(id, event time)`` as JSON, or values as they are."""
        producer = to or self._producer
        for row in rows:
            value = row if row is None or isinstance(row, bytes) else json.dumps({"k": row[0], "t": row[1]}).encode()
            while True:
                try:
                    producer.produce(topic, value, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()

    def send_keyed(self, topic: str, rows: Iterable[tuple[str, Row]]) -> None:
        """Send rows with keys to partition 0."""
        for key, (k, t) in rows:
            self._producer.produce(topic, json.dumps({"k": k, "t": t}).encode(), key, partition=0)
        self._producer.flush()

    def send_undated(self, topic: str, value: bytes) -> None:
        """Send a value without a time, which is the time -1, to partition 0. The producer of Java refuses it."""
        self._producer.produce(topic, value, partition=0, timestamp=-1)
        self._producer.flush()

    def send_at(self, spark: SparkSession, topic: str, records: Iterable[tuple[str, int]]) -> None:
        """Send values with the times of their records, in milliseconds, to partition 0.

        The producer of Java accepts any time; that of librdkafka replaces times long ago.
        """
        jvm: Any = spark._jvm  # noqa: SLF001 - there is no public way to the classes of Java
        settings, client = jvm.java.util.HashMap(), jvm.org.apache.kafka.clients.producer
        settings.put("bootstrap.servers", self.address)
        for kind in ("key", "value"):
            settings.put(f"{kind}.serializer", "org.apache.kafka.common.serialization.StringSerializer")
        producer = client.KafkaProducer(settings)
        try:
            for value, at_ms in records:
                producer.send(client.ProducerRecord(topic, 0, jvm.java.lang.Long.valueOf(at_ms), None, value)).get()
        finally:
            producer.close()

    def count(self, topic: str) -> int:
        """Return the number of records in partition 0."""
        end = self.end(topic, 0)
        consumer = Consumer(
            {"bootstrap.servers": self.address, "log_level": 0, "group.id": topic, "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        try:
            found = 0
            while (message := consumer.poll(30)) is not None:
                found += 1
                if (message.offset() or 0) >= end - 1:
                    return found
            raise AssertionError("the broker does not answer")
        finally:
            consumer.close()

    @contextmanager
    def transaction(self, topic: str, partition: int, rows: Iterable[Row], commits: bool = True) -> Iterator[None]:
        """Send rows in a transaction that is open in the block, and then committed or aborted."""
        producer = Producer(
            {"bootstrap.servers": self.address, "log_level": 0, "transactional.id": secrets.token_hex(8)}
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        self.send(topic, partition, rows, producer)
        try:
            yield
        finally:
            (producer.commit_transaction if commits else producer.abort_transaction)(60)

    @contextmanager
    def traffic(self, topic: str, partitions: Iterable[int], start: int) -> Iterator[None]:
        """Send rows in the block, 50 in a second to each partition; their event times ascend from ``start``."""
        stopped = threading.Event()
        producer = Producer({"bootstrap.servers": self.address, "log_level": 0, "linger.ms": 0})

        def run() -> None:
            number = 0
            while not stopped.wait(0.1):
                for partition in partitions:
                    rows = [(f"{topic}-{partition}-{number + each}", start + 20 * (number + each)) for each in range(5)]
                    self.send(topic, partition, rows, producer)
                number += 5

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def stream(self, spark: SparkSession, topics: str, **options: object) -> DataFrame:
        """Return the rows of topics, or of a pattern: ``topic``, ``partition``, ``offset``, ``k`` and ``t``."""
        reader = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.address)
            .option("startingOffsets", "earliest")
            .option("subscribePattern" if "*" in topics else "subscribe", topics)
        )
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), str(value))
        value = F.from_json(F.col("value").cast("string"), "k string, t long").alias("v")
        return reader.load().select("topic", "partition", "offset", value).select("topic", "partition", "offset", "v.*")


def second_broker(directory: Path, first: Broker) -> LocalBroker:
    """Return another broker in the cluster of a broker."""
    broker = LocalBroker(directory, {"process.roles": "broker", "node.id": "2"})
    broker.cluster_id = first.cluster_id
    broker.settings["controller.quorum.voters"] = first.settings["controller.quorum.voters"]
    broker.settings["listeners"] = broker.settings["advertised.listeners"]
    return broker


def is_ready() -> bool:
    """Return whether the jars are there."""
    return (KAFKA_JARS / ".ready").exists()


def without_maven() -> str:
    """Return why the tests with Kafka are skipped."""
    if os.environ.get("CI"):
        raise AssertionError("CI needs Maven, which copies Kafka's jars")
    return "needs Kafka's jars: install Maven, and run make test-kafka"
