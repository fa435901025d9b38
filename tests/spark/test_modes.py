"""Who reports, and what makes a substream, are choices of cost and convenience: nothing else may depend on them."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.partitions import BATCHES, PARTITIONS, PER_BATCH, TOTAL, FourPartitions
from tests.support.streams import LAG, Sink, rows, to_the_end
from tidegate_spark import SOURCE_PARTITION, Gate, fold, hook, limiting_lag
from tidegate_spark.testing import CoordinatorProcess, FileBatches


@pytest.mark.parametrize("mode", ["executor", "driver"])
@pytest.mark.parametrize("persist", [True, False])
def test_every_mode_tells_the_same(
    spark: SparkSession, source: FileBatches, gate: Gate, checkpoint: str, mode: Any, persist: bool
) -> None:
    """A program that is moved to another mode must get the same rows, counts and watermarks."""
    source.add(*rows(("a", 100_000), ("b", 40_000), (None, 39_000), ("x" * 300, 50_000), ("tab\t", 50_000)))
    source.add(*rows(("a", 28_999), ("b", 29_000), ("", None), ("(null)", 70_000), (None, 60_000)))
    sink = Sink()
    stream = sink.after(gate.stream(source.stream(spark), event_time="t", substream="k"))
    to_the_end(stream.reporting(mode).persisted(persist), checkpoint)
    assert sink.pins == {0: None, 1: 29_000}
    assert sink.on_time[1] == [("(null)", 70_000), ("b", 29_000), (None, 60_000)]
    assert sink.late[1] == [("", None), ("a", 28_999)]
    assert gate.status()["rows"] == {"on_time": 8, "updated": 0, "late": 1, "null_event_time": 1, "future": 0}
    told = [(row["substream"][:5], row["top"], row["reported"]) for row in gate.substreams()]
    # What cannot be a name has one that stands for it alone; null is not the word for it.
    assert sorted(told) == [
        ("(null", 60_000, 2), ("(null", 70_000, 1), ("a", 100_000, 2), ("b", 40_000, 2),
        ("tab\\u", 50_000, 1), ("xxxxx", 50_000, 1),
    ]  # fmt: skip


def test_tasks_that_report_twice_change_nothing(
    spark: SparkSession, source: FileBatches, gate: Gate, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that failed after its report runs again, a slow one twice at once: rows must not be counted twice."""

    def twice(*args: Any) -> Any:
        fold.on_executors(*args)
        return fold.on_executors(*args)

    monkeypatch.setattr(hook, "on_executors", twice)
    source.add(*rows(("a", 100_000), ("b", 40_000), ("b", 41_000), ("a", None), ("a", 9_999_999_999_999)))
    sink = Sink()
    to_the_end(sink.after(gate.stream(source.stream(spark), event_time="t", substream="k")), checkpoint)
    told = {row["substream"]: (row["top"], row["reported"], row["future_reported"]) for row in gate.substreams()}
    assert told == {"a": (100_000, 1, 1), "b": (41_000, 2, 0)}
    assert gate.status()["rows"] == {"on_time": 3, "updated": 0, "late": 0, "null_event_time": 1, "future": 1}


def test_a_stream_that_is_one_substream_is_observed(
    spark: SparkSession, source: FileBatches, gate: Gate, checkpoint: str
) -> None:
    """The cheapest mode judges and counts as the others do; a batch of nothing but nulls is no news."""
    source.add(*rows(("a", 100_000), ("b", 40_000)))
    source.add(*rows(("a", 90_000), ("b", 89_999), ("c", None)))
    source.add(*rows(("a", None)))
    sink = Sink()
    stream = sink.after(gate.stream(source.stream(spark), event_time="t", substream=None)).reporting("observe")
    to_the_end(stream, checkpoint)
    assert sink.pins == {0: None, 1: 90_000, 2: 90_000}
    assert sink.late == {1: [("b", 89_999), ("c", None)], 2: [("a", None)]}
    assert gate.status()["rows"] == {"on_time": 3, "updated": 0, "late": 1, "null_event_time": 2, "future": 0}
    assert [row["substream"] for row in gate.substreams()] == ["(all)"]


def test_several_columns_make_a_substream(
    spark: SparkSession, source: FileBatches, gate: Gate, checkpoint: str
) -> None:
    """Partition 1 of one topic is not partition 1 of another; a declared one is the one that comes."""
    source = FileBatches(source.directory, "topic string, partition int, `at ``it` long")
    source.add(
        *({"topic": topic, "partition": partition, "at `it": t} for topic, partition, t in (
            ("flights", 1, 50_000), ("flights", 2, 60_000), ("a/b", 1, 70_000), ("flights", None, 80_000),
        ))
    )  # fmt: skip
    stream = gate.stream(source.stream(spark), event_time="at `it", substream=["topic", "partition"])
    stream = stream.declare(("flights", 1), ("a/b", 1), ("flights", 3)).foreach_batch(lambda df, batch: None)
    to_the_end(stream, checkpoint)
    tops = {row["substream"]: row["top"] for row in gate.substreams()}
    assert tops == {
        "a%2Fb/1": 70_000, "flights/(null)": 80_000, "flights/1": 50_000, "flights/2": 60_000, "flights/3": None,
    }  # fmt: skip
    gate.done("q", [("flights", 3)])
    assert gate.status()["watermark"] == 40_000


@pytest.mark.parametrize("mode", ["executor", "driver"])
def test_a_partition_that_is_behind_loses_nothing(
    spark: SparkSession, tidegate: CoordinatorProcess, tmp_path: Any, mode: Any
) -> None:
    """What Spark's own watermark costs: 800 of 4000 rows, all of a partition that is in order but 250 s behind."""
    spark.dataSource.register(FourPartitions)
    gate = tidegate.gate(rules=limiting_lag(LAG))
    sink: list[int] = []
    query = (
        gate.stream(spark.readStream.format("four_partitions").load(), event_time="t", substream=SOURCE_PARTITION)
        .reporting(mode)
        .foreach_batch(lambda df, batch: sink.append(df.count()))
        .start(queryName="q", checkpointLocation=str(tmp_path / "hook"))
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert sink == [PARTITIONS * PER_BATCH] * BATCHES
    assert gate.status()["rows"] == {"on_time": TOTAL, "updated": 0, "late": 0, "null_event_time": 0, "future": 0}
    assert {row["substream"]: row["reported"] for row in gate.substreams()} == dict.fromkeys("0123", TOTAL // 4)


def test_sparks_own_watermark_loses_the_partition_that_is_behind(spark: SparkSession, tmp_path: Any) -> None:
    """The other half of the comparison: the same source, lag and rows."""
    from pyspark.sql import functions as F

    spark.dataSource.register(FourPartitions)
    counted: dict[Any, int] = {}

    def keep(df: Any, batch_id: int) -> None:
        counted.update({(row.window.start, row.partition): row["count"] for row in df.collect()})

    native = (
        spark.readStream.format("four_partitions")
        .load()
        .withColumn("at", F.timestamp_millis("millis"))
        .withWatermark("at", "10 seconds")
        .groupBy(F.window("at", "10 seconds"), "partition")
        .count()
        .writeStream.outputMode("update")
        .foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "native"))
        .start()
    )
    try:
        native.processAllAvailable()
    finally:
        native.stop()
    assert TOTAL - sum(counted.values()) == 800
