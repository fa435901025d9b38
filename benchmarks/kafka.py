"""The cost of coordination for a query on Kafka, beside two passes over the same rows that are written by hand.

- Large batches: JSON is parsed, and hourly windows by substream are counted. ``by hand`` persists the rows,
  because two reads from Kafka took 1.3 times as long.
- Small batches: the seconds that coordination adds, by number of partitions. The client asks Spark and the broker for
  the offsets of all partitions in each batch.
"""

import json
import statistics
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.overhead import batches_of, session, two_passes
from benchmarks.paired import BASELINE, CONTROL, COORDINATED, compare, interleave
from benchmarks.results import Row, Spread
from examples.flights.broker import LocalBroker
from examples.flights.spark import connector
from tidegate_spark import limiting_lag
from tidegate_spark.testing import CoordinatorProcess

ROWS, LARGE_PARTITIONS, LARGE_BATCHES = 400_000, 4, 3
"""Rows of a large batch, and number of its partitions. The first batch of a query is not measured."""
SUBSTREAMS = (1, 64, 256)
SMALL_ROWS, SMALL_BATCHES, WARM_UP = 100, 12, 4
PARTITIONS = (1, 10, 100)
START = 1_700_000_000_000


class Topic:
    """A topic whose rows are spread evenly over its partitions, in the order of their event times."""

    def __init__(self, spark: SparkSession, broker: LocalBroker, partitions: int, rows: int, batches: int) -> None:
        self._spark, self._broker, self.rows, self.batches = spark, broker, rows, batches
        self._name = f"bench-{uuid.uuid4()}"
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic(self._name, partitions, 1)])[self._name].result(60)
        producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 20})
        for number in range(rows * batches):
            value = json.dumps({"n": number, "t": START + number * 50, "text": "x" * 40})
            while True:
                try:
                    producer.produce(self._name, value, partition=number % partitions)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.flush()

    def stream(self, substreams: int) -> DataFrame:
        """Return the rows: ``k`` (the substream), ``t``, ``topic`` and ``partition``."""
        read = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._broker.address)
            .option("kafka.fetch.max.wait.ms", 20)
            .option("subscribe", self._name)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self.rows)
            .load()
        )
        value = F.from_json(F.col("value").cast("string"), "n long, t long, text string").alias("v")
        parsed = read.select("topic", "partition", value)
        return parsed.select(
            "topic",
            "partition",
            F.format_string("s%03d", F.col("v.n") % substreams).alias("k"),
            F.timestamp_millis("v.t").alias("t"),
        )


class Bench:
    """Queries on a topic. Each returns the seconds of its batches, without the first ones."""

    def __init__(self, coordinator: CoordinatorProcess, topic: Topic, out: Path, substreams: int, warm_up: int) -> None:
        self._coordinator, self._topic, self._out = coordinator, topic, out
        self._substreams, self._warm_up = substreams, warm_up

    def bare(self) -> list[float]:
        """Run the function without coordination."""
        return self._written(_aggregate)

    def by_hand(self) -> list[float]:
        """Look at all rows before the function, as any client must."""
        return self._written(two_passes(_aggregate, ["k"], persist=True))

    def coordinated(self, substream: list[str]) -> list[float]:
        """Run the function with coordination, in a new job."""
        job = self._coordinator.job(config=limiting_lag(timedelta(minutes=2), idle_timeout=timedelta(hours=1)))
        stream = job.stream(self._topic.stream(self._substreams), event_time="t", substream=substream)
        stream = stream.foreach_batch(_aggregate).trigger(availableNow=True)
        seconds = self._seconds(lambda at: stream.start(queryName="kafka", checkpointLocation=at))
        rows = job.status()["rows"]
        assert (rows["on_time"], rows["late"]) == (self._topic.rows * self._topic.batches, 0), rows
        return seconds

    def _written(self, function: Callable[[DataFrame, int], None]) -> list[float]:
        writer = self._topic.stream(self._substreams).writeStream.foreachBatch(function).trigger(availableNow=True)
        return self._seconds(lambda checkpoint: writer.option("checkpointLocation", checkpoint).start())

    def _seconds(self, start: Callable[[str], StreamingQuery]) -> list[float]:
        ran = batches_of(start, self._out)
        assert len(ran) == self._topic.batches
        return [progress.durationMs["triggerExecution"] / 1000 for progress in ran[self._warm_up :]]


def _aggregate(df: DataFrame, batch_id: int) -> None:
    df.groupBy(F.window("t", "1 hour"), "k").count().write.format("noop").mode("overwrite").save()


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Measure large batches for each number of substreams, and small ones for each number of partitions."""
    broker = LocalBroker(out / f"broker-{uuid.uuid4()}")
    try:
        broker.start()
        with (
            CoordinatorProcess(out / f"coordinator-{uuid.uuid4()}") as coordinator,
            session({"spark.jars": connector()}) as spark,
        ):
            return [
                *_large(coordinator, spark, broker, out, rounds, show),
                *_small(coordinator, spark, broker, out, rounds, show),
            ]
    finally:
        broker.stop()


def _large(
    coordinator: CoordinatorProcess,
    spark: SparkSession,
    broker: LocalBroker,
    out: Path,
    rounds: int,
    show: Callable[[str], None],
) -> list[Row]:
    rows: list[Row] = []
    topic = Topic(spark, broker, LARGE_PARTITIONS, ROWS, LARGE_BATCHES)
    for substreams in SUBSTREAMS:
        bench = Bench(coordinator, topic, out, substreams, warm_up=1)

        def total(measurement: Callable[[], list[float]]) -> Callable[[], float]:
            return lambda: sum(measurement())

        coordinated = {COORDINATED: total(partial(bench.coordinated, ["k"]))}
        name = f"{substreams} substream(s)"
        rows += compare(name, total(bench.bare), total(bench.by_hand), coordinated, rounds, show)
    return rows


def _small(
    coordinator: CoordinatorProcess,
    spark: SparkSession,
    broker: LocalBroker,
    out: Path,
    rounds: int,
    show: Callable[[str], None],
) -> list[Row]:
    rows: list[Row] = []
    for partitions in PARTITIONS:
        show(f"{SMALL_ROWS} rows per batch, {partitions} partition(s):")
        topic = Topic(spark, broker, partitions, SMALL_ROWS, SMALL_BATCHES)
        bench = Bench(coordinator, topic, out, partitions, WARM_UP)
        measurements: dict[str, Callable[[], list[float]]] = {
            BASELINE: bench.bare,
            CONTROL: bench.bare,
            "coordinated": partial(bench.coordinated, ["topic", "partition"]),
        }
        found = interleave(measurements, rounds, show)
        seconds = {name: [statistics.median(each) for each in batches] for name, batches in found.items()}
        name = f"{partitions} partition(s)"

        def added(to: str, of: dict[str, list[float]] = seconds) -> Spread:
            return Spread.of(one - bare for one, bare in zip(of[to], of[BASELINE], strict=True))

        rows += [
            Row(f"{name}: batch of {SMALL_ROWS} rows without coordination", Spread.of(seconds[BASELINE]), "s"),
            Row(f"{name}: added by nothing (control)", added(CONTROL), "s"),
            Row(f"{name}: added by coordination", added("coordinated"), "s", at_most=0.15),
        ]
    return rows
