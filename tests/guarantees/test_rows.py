"""The rows of a query with the hook: the guarantees safe, committed, replay-exact, idempotent and exact."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.support.api import operate
from tests.support.partitions import BATCHES, PARTITIONS, PER_BATCH, TOTAL, four_partitions
from tests.support.streams import LAG, Sink, rows, stream_of, to_the_end
from tidegate_spark import SOURCE_PARTITION, Batch, Job, limiting_lag
from tidegate_spark.hook import batch_function, folding
from tidegate_spark.testing import CoordinatorProcess, FileBatches


def test_every_row_is_on_time_late_or_without_an_event_time(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str
) -> None:
    """A row in none of the three classes is lost. A row in two classes is counted twice."""
    source.add(*rows(("a", 100_000), ("b", 40_000), ("a", 99_000), ("", 60_000), (None, 60_000)))
    source.add(*rows(("a", 25_000), ("b", 29_999), ("b", 30_000), ("c", 5), ("a", None), (None, 29_000)))
    source.add(*rows(("a", None), ("d", None)))
    sink = Sink()
    to_the_end(sink.after(job.stream(source.stream(spark), event_time="t", substream="k")), checkpoint)
    assert sink.pinned_watermarks == {0: None, 1: 30_000, 2: 30_000}
    assert len(sink.on_time[0]) == 5
    assert sink.on_time[1] == [("b", 30_000)]
    assert sink.late[1] == [("a", 25_000), ("a", None), ("b", 29_999), ("c", 5), (None, 29_000)]
    assert sink.late[2] == [("a", None), ("d", None)]
    assert [(c.rows, c.on_time, c.late, c.null_event_time) for c in sink.committed] == [
        (5, 5, 0, 0),
        (6, 1, 4, 1),
        (2, 0, 0, 2),
    ]
    assert job.status()["rows"] == {"on_time": 6, "updated": 0, "late": 4, "null_event_time": 3, "future": 0}
    table = {row["substream"]: row for row in job.substreams()}
    assert table.keys() == {"a", "b", "c", "(empty)", "(null)"}
    assert (table["b"]["max_event_time"], table["b"]["rows"]["late"], table["b"]["reported"]) == (40_000, 1, 3)
    held_by = sink.committed[-1].held_by
    assert held_by is not None
    assert (held_by.substream, held_by.reason) == ("c", "slow")


@pytest.mark.parametrize("mode", ["executor", "driver"])
def test_a_partition_that_is_behind_has_no_late_rows(
    spark: SparkSession, tidegate: CoordinatorProcess, tmp_path: Any, mode: Any
) -> None:
    """Spark's own watermark would drop 800 of the 4000 rows, all of them from the partition that is 250 s behind."""
    job = tidegate.job(config=limiting_lag(LAG))
    sink: list[int] = []
    query = (
        job.stream(four_partitions(spark), event_time="t", substream=SOURCE_PARTITION)
        .reporting(mode)
        .foreach_batch(lambda df, batch_id: sink.append(df.count()))
        .start(queryName="q", checkpointLocation=str(tmp_path / "hook"))
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert sink == [PARTITIONS * PER_BATCH] * BATCHES
    assert job.status()["rows"] == {"on_time": TOTAL, "updated": 0, "late": 0, "null_event_time": 0, "future": 0}
    assert {row["substream"]: row["reported"] for row in job.substreams()} == dict.fromkeys("0123", TOTAL // 4)


def test_a_replay_of_a_failed_batch_judges_its_rows_alike(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str
) -> None:
    """Under a newer watermark, rows that were written as on time before the crash would be late."""
    source.add(*rows(("a", 100_000)))
    source.add(*rows(("a", 95_000), ("a", 80_000)))
    sink, given = Sink(), []

    def write(df: DataFrame, batch_id: int, batch: Batch) -> None:
        sink.write(df, batch_id, batch)
        given.append((batch_id, batch.watermark, sink.on_time[batch_id], batch.replayed))
        if batch_id == 1 and not batch.replayed:
            raise RuntimeError("the disk is full")

    stream = job.stream(source.stream(spark), event_time="t", substream="k").foreach_batch(write)
    with pytest.raises(StreamingQueryException, match="the disk is full"):
        to_the_end(stream.late_output(sink.write_late), checkpoint)
    # Meanwhile another reporter moves C far ahead. W waits for the open batch.
    operate(job, "POST", ":report", {"substreams": ["x"], "max_event_times": [900_000]})
    job.done("q", ["a"])
    assert (job.status()["coalesced_watermark"], job.status()["watermark"]) == (890_000, 90_000)
    assert job.status()["held_by"]["reason"] == "open_batch"
    to_the_end(stream.late_output(sink.write_late), checkpoint)
    assert given[1:] == [(1, 90_000, [("a", 95_000)], False), (1, 90_000, [("a", 95_000)], True)]
    assert sink.late[1] == [("a", 80_000)]
    assert job.status()["watermark"] == 890_000
    assert job.status()["rows"] == {"on_time": 2, "updated": 0, "late": 1, "null_event_time": 0, "future": 0}


def test_a_repeated_report_of_a_task_changes_nothing(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark repeats a task that failed after its report, and may run a slow task twice. No row may be counted twice."""

    def twice(*args: Any) -> Any:
        folding.on_executors(*args)
        return folding.on_executors(*args)

    monkeypatch.setattr(batch_function, "on_executors", twice)
    source.add(*rows(("a", 100_000), ("b", 40_000), ("b", 41_000), ("a", None), ("a", 9_999_999_999_999)))
    sink = Sink()
    to_the_end(sink.after(job.stream(source.stream(spark), event_time="t", substream="k")), checkpoint)
    substreams = {
        row["substream"]: (row["max_event_time"], row["reported"], row["future_rows"]) for row in job.substreams()
    }
    assert substreams == {"a": (100_000, 1, 1), "b": (41_000, 2, 0)}
    assert job.status()["rows"] == {"on_time": 3, "updated": 0, "late": 0, "null_event_time": 1, "future": 1}


@pytest.mark.parametrize("mode", ["executor", "driver"])
def test_event_times_out_of_range_do_not_stop_a_query(
    spark: SparkSession,
    source: FileBatches,
    tidegate: CoordinatorProcess,
    checkpoint: str,
    mode: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The largest and smallest numbers often stand for "none". A query that fails on them would fail in every retry.

    Such event times do not move the watermark. Rows below the range are late, also before the job has a watermark. The
    log names substreams whose event times are too far ahead.
    """
    job = tidegate.job(config=limiting_lag(LAG, max_future_skew=None))
    lowest, highest = -(2**63), 2**63 - 1
    source.add(*rows(("a", lowest), ("b", highest), ("c", 2**53 - 1), ("c", 2**53), ("d", 100_000)))
    source.add(*rows(("a", lowest), ("b", 95_000), ("d", 101_000)))
    sink = Sink()
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k"))
    to_the_end(stream.reporting(mode), checkpoint)
    assert sink.pinned_watermarks == {0: None, 1: 90_000}
    assert (len(sink.on_time[0]), sink.late) == (4, {0: [("a", lowest)], 1: [("a", lowest)]})
    assert sink.on_time[1] == [("b", 95_000), ("d", 101_000)]
    assert job.status()["rows"] == {"on_time": 4, "updated": 0, "late": 2, "null_event_time": 0, "future": 2}
    assert {row["substream"]: row["max_event_time"] for row in job.substreams()} == {
        "b": 95_000,
        "c": 2**53 - 1,
        "d": 101_000,
    }
    assert "rows of b, c have event times too far ahead of the clock" in caplog.text


def test_a_query_that_joins_warns_and_is_judged_by_the_current_watermark(
    spark: SparkSession,
    job: Job,
    orders: FileBatches,
    payments: FileBatches,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The emitted watermark stays valid. After its first batch, the new query holds the watermark, too."""
    orders.add(*rows(("eu", 100_000)))
    payments.add(*rows(("visa", 89_999), ("visa", 95_000)))
    to_the_end(stream_of(spark, job, orders, Sink()), f"{tmp_path}/orders", "orders")
    assert "joins the job" not in caplog.text
    sink = Sink()
    to_the_end(stream_of(spark, job, payments, sink), f"{tmp_path}/payments", "payments")
    assert "payments: the query joins the job at the watermark 90000" in caplog.text
    assert (sink.on_time, sink.late) == ({0: [("visa", 95_000)]}, {0: [("visa", 89_999)]})
    orders.add(*rows(("eu", 200_000)))
    to_the_end(stream_of(spark, job, orders, Sink()), f"{tmp_path}/orders", "orders")
    held_by = job.status()["held_by"]
    assert (job.status()["watermark"], held_by["query"], held_by["substream"]) == (90_000, "payments", "visa")
