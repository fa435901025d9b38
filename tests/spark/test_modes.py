"""Modes of reporting and columns of substreams. Rows, counts and watermarks do not depend on the mode."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.partitions import TOTAL, four_partitions
from tests.support.streams import Sink, rows, to_the_end
from tidegate_spark import Job
from tidegate_spark.testing import FileBatches


@pytest.mark.parametrize("mode", ["executor", "driver"])
@pytest.mark.parametrize("persist", [True, False])
def test_every_mode_gives_the_same_results(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str, mode: Any, persist: bool
) -> None:
    """A program that changes its mode gets the same rows, counts and watermarks."""
    source.add(*rows(("a", 100_000), ("b", 40_000), (None, 39_000), ("x" * 300, 50_000), ("tab\t", 50_000)))
    source.add(*rows(("a", 28_999), ("b", 29_000), ("", None), ("(null)", 70_000), (None, 60_000)))
    sink = Sink()
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k"))
    to_the_end(stream.reporting(mode).persist(persist), checkpoint)
    assert sink.pinned_watermarks == {0: None, 1: 29_000}
    assert sink.on_time[1] == [("(null)", 70_000), ("b", 29_000), (None, 60_000)]
    assert sink.late[1] == [("", None), ("a", 28_999)]
    assert job.status()["rows"] == {"on_time": 8, "updated": 0, "late": 1, "null_event_time": 1, "future": 0}
    substreams = [(row["substream"][:5], row["max_event_time"], row["reported"]) for row in job.substreams()]
    # The value `(null)` and null have different names. Values that cannot be names get a digest.
    assert sorted(substreams) == [
        ("(null", 60_000, 2),
        ("(null", 70_000, 1),
        ("a", 100_000, 2),
        ("b", 40_000, 2),
        ("tab\\u", 50_000, 1),
        ("xxxxx", 50_000, 1),
    ]


def test_a_stream_with_one_substream_is_observed(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str
) -> None:
    """The mode ``observe`` gives the same results as the others. Null event times change no max event time."""
    source.add(*rows(("a", 100_000), ("b", 40_000)))
    source.add(*rows(("a", 90_000), ("b", 89_999), ("c", None)))
    source.add(*rows(("a", None)))
    sink = Sink()
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream=None)).reporting("observe")
    to_the_end(stream, checkpoint)
    assert sink.pinned_watermarks == {0: None, 1: 90_000, 2: 90_000}
    assert sink.late == {1: [("b", 89_999), ("c", None)], 2: [("a", None)]}
    assert job.status()["rows"] == {"on_time": 3, "updated": 0, "late": 1, "null_event_time": 2, "future": 0}
    assert [row["substream"] for row in job.substreams()] == ["(all)"]


def test_several_columns_make_a_substream(spark: SparkSession, source: FileBatches, job: Job, checkpoint: str) -> None:
    """Partition 1 of one topic differs from partition 1 of another. A declared substream has the name that its rows
    give it.
    """
    source = FileBatches(source.directory, "topic string, partition int, `at ``it` long")
    source.add(
        *(
            {"topic": topic, "partition": partition, "at `it": t}
            for topic, partition, t in (
                ("flights", 1, 50_000),
                ("flights", 2, 60_000),
                ("a/b", 1, 70_000),
                ("flights", None, 80_000),
            )
        )
    )
    stream = job.stream(source.stream(spark), event_time="at `it", substream=["topic", "partition"])
    stream = stream.declare(("flights", 1), ("a/b", 1), ("flights", 3)).foreach_batch(lambda df, batch_id: None)
    to_the_end(stream, checkpoint)
    max_event_times = {row["substream"]: row["max_event_time"] for row in job.substreams()}
    assert max_event_times == {
        "a%2Fb/1": 70_000,
        "flights/(null)": 80_000,
        "flights/1": 50_000,
        "flights/2": 60_000,
        "flights/3": None,
    }
    job.done("q", [("flights", 3)])
    assert job.status()["watermark"] == 40_000


def test_sparks_own_watermark_loses_the_partition_that_is_behind(spark: SparkSession, tmp_path: Any) -> None:
    """The source, lag and rows are those of ``test_a_partition_that_is_behind_has_no_late_rows``."""
    from pyspark.sql import functions as F

    counted: dict[Any, int] = {}

    def keep(df: Any, batch_id: int) -> None:
        counted.update({(row.window.start, row.partition): row["count"] for row in df.collect()})

    native = (
        four_partitions(spark)
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
