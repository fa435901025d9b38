"""Modes of reporting and columns of substreams. Rows, counts and watermarks do not depend on the mode."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.support.partitions import TOTAL, four_partitions
from tests.support.streams import Sink, rows, to_the_end
from tidegate_spark import Job
from tidegate_spark.hook import batch_function
from tidegate_spark.hook.batch_function import BatchFunction
from tidegate_spark.hook.folding import on_executors
from tidegate_spark.protocol import retry
from tidegate_spark.protocol.batches import OpenBatch
from tidegate_spark.protocol.reporter import Reporter
from tidegate_spark.testing import FileBatches


def ignore(df: DataFrame, batch_id: int) -> None:
    """Do nothing."""


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


def test_executors_report_many_substreams(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of substreams in the batch before decides. A call has at most two here."""
    monkeypatch.setattr(batch_function, "SUBSTREAMS_PER_CALL", 2)
    sizes: list[int] = []

    def spied(*arguments: Any) -> Any:
        found = on_executors(*arguments)
        assert found is not None
        fold, reported, _ = found
        assert reported
        sizes.append(len(fold.substream))
        return found

    monkeypatch.setattr(batch_function, "on_executors", spied)
    for number in (1, 3, 4, 2, 1):
        source.add(*rows(*((f"s{each}", 100_000) for each in range(number))))
    to_the_end(job.stream(source.stream(spark), event_time="t", substream="k").foreach_batch(ignore), checkpoint)
    assert sizes == [4, 2]
    assert job.status()["rows"]["on_time"] == 11
    assert sorted(row["reported"] for row in job.substreams()) == [1, 2, 3, 5]


@pytest.fixture
def bare_workers(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    """Let the executors have a Python without any package."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    before, spark.sparkContext.pythonExec = spark.sparkContext.pythonExec, str(bare)
    yield
    spark.sparkContext.pythonExec = before


@pytest.mark.usefixtures("bare_workers")
def test_the_driver_reports_if_executors_lack_the_package(
    spark: SparkSession,
    source: FileBatches,
    job: Job,
    checkpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A query does not fail in the first batch that has many substreams. The log says once what is missing."""
    monkeypatch.setattr(batch_function, "SUBSTREAMS_PER_CALL", 1)
    for _ in range(4):
        source.add(*rows(("a", 100_000), ("b", 100_000)))
    stream = job.stream(source.stream(spark), event_time="t", substream="k").foreach_batch(ignore)
    to_the_end(stream, checkpoint)
    assert job.status()["rows"]["on_time"] == 8
    assert caplog.text.count("the reports of executors failed, so the driver reports from now on") == 1
    with pytest.raises(StreamingQueryException, match=r"choose reporting\('driver'\)"):
        to_the_end(stream.reporting("executor"), f"{checkpoint}-2", "other")


def test_the_driver_reports_if_executors_cannot_reach_the_coordinator(
    spark: SparkSession,
    source: FileBatches,
    job: Job,
    checkpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Executors on other machines may have no connection. After three batches, they no longer wait for it."""
    monkeypatch.setattr(batch_function, "SUBSTREAMS_PER_CALL", 1)
    monkeypatch.setattr(retry, "SHORT_WAIT_S", 0.1)
    tried: list[Reporter] = []

    def unreachable(self: BatchFunction, opened: OpenBatch) -> Reporter:
        tried.append(replace(reporter(self, opened), url="http://127.0.0.1:9"))
        return tried[-1]

    reporter = BatchFunction._reporter  # noqa: SLF001 - the address that executors get
    monkeypatch.setattr(BatchFunction, "_reporter", unreachable)
    for _ in range(6):
        source.add(*rows(("a", 100_000), ("b", 100_000)))
    to_the_end(job.stream(source.stream(spark), event_time="t", substream="k").foreach_batch(ignore), checkpoint)
    assert len(tried) == 3, "the first batch is reported by the driver, and so are the last two"
    assert job.status()["rows"]["on_time"] == 12
    assert caplog.text.count("did not reach the coordinator, so the driver reports from now on") == 1


def test_null_event_times_of_one_substream_move_nothing(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str
) -> None:
    source.add(*rows(("a", 100_000), ("b", 40_000)))
    source.add(*rows(("a", 90_000), ("b", 89_999), ("c", None)))
    source.add(*rows(("a", None)))
    sink = Sink()
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream=None))
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
