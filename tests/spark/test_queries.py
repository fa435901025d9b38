"""Several queries in one job, and the life cycle of a query: join, stop, rename, start over, retire."""

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.streams import LAG, Sink, rows, stream_of, to_the_end
from tests.support.waiting import until
from tidegate_spark import Job, limiting_lag
from tidegate_spark.hook.heartbeat import HeartbeatListener
from tidegate_spark.testing import CoordinatorProcess, FileBatches


def test_the_windows_of_one_query_wait_for_the_other(
    spark: SparkSession, tidegate: CoordinatorProcess, orders: FileBatches, payments: FileBatches, tmp_path: Path
) -> None:
    """A stopped query holds the watermark, whatever the idle timeout. `held_by` names the query."""
    config = limiting_lag(LAG, idle_timeout=timedelta(milliseconds=400), expected_queries=["orders", "payments"])
    job = tidegate.job(config=config)
    sinks = {"orders": Sink(), "payments": Sink()}

    def start(name: str, source: FileBatches, heartbeat_ms: int = 100) -> StreamingQuery:
        stream = sinks[name].after(job.stream(source.stream(spark), event_time="t", substream="k"))
        return stream.tuning(heartbeat_ms=heartbeat_ms).start(queryName=name, checkpointLocation=f"{tmp_path}/{name}")

    orders.add(*rows(("eu", 100_000)))
    of_orders = start("orders", orders)
    try:
        until(lambda: len(sinks["orders"].committed) == 1, "the first batch of orders")
        held_by = job.status()["held_by"]
        assert (held_by["reason"], held_by["query"]) == ("missing_query", "payments")
        payments.add(*rows(("visa", 100_000)))
        of_payments = start("payments", payments, heartbeat_ms=600_000)  # so that this run observes no silence
        until(lambda: job.status()["watermark"] == 90_000, "both queries have reported")
        of_payments.stop()
        for number in range(1, 4):
            orders.add(*rows(("eu", 100_000 + number * 20_000)))
            until(lambda: len(sinks["orders"].committed) > number, f"batch {number} of orders")  # noqa: B023
        # The idle timeout has passed, but no run of payments has observed the silence.
        until(lambda: job.status()["held_by"]["reason"] == "blocked", "the silence is noticed")
        status = job.status()
        assert status["watermark"] == 90_000
        assert (status["held_by"]["query"], status["held_by"]["substream"]) == ("payments", "visa")
        assert sinks["orders"].pinned_watermarks[3] == 90_000
        payments.add(*rows(("visa", 170_000), ("visa", 91_000)))
        of_payments = start("payments", payments)
        until(lambda: job.status()["watermark"] == 160_000, "payments has caught up")
        of_payments.stop()
    finally:
        of_orders.stop()
    assert job.status()["rows"] == {"on_time": 7, "updated": 0, "late": 0, "null_event_time": 0, "future": 0}
    assert job.metrics()["tidegate.on_time_rows"] == 7


def test_the_progress_of_a_batch_is_not_converted(
    spark: SparkSession, job: Job, orders: FileBatches, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark converts a progress in about 400 calls to the JVM, as many as the hook makes for a batch."""
    converted: list[object] = []
    monkeypatch.setattr(HeartbeatListener, "onQueryProgress", lambda _, event: converted.append(event))
    orders.add(*rows(("eu", 100_000)))
    stream = stream_of(spark, job, orders, Sink()).tuning(heartbeat_ms=50)
    query = stream.start(queryName="q", checkpointLocation=checkpoint)
    try:
        until(lambda: (job.queries() or [{}])[0].get("idle_clock_ms") is not None, "a heartbeat after the batch")
    finally:
        query.stop()
    assert converted == []


def test_a_query_is_renamed_by_handing_over(spark: SparkSession, job: Job, orders: FileBatches, tmp_path: Path) -> None:
    """Without a handover, the substreams of the old name would hold the watermark forever."""
    orders.add(*rows(("eu", 100_000), ("us", 50_000)))
    to_the_end(stream_of(spark, job, orders, Sink()), f"{tmp_path}/checkpoint", "orders")
    job.hand_over("orders", "orders-v2", "renamed")
    orders.add(*rows(("us", 45_000), ("eu", 200_000)))
    sink = Sink()
    to_the_end(stream_of(spark, job, orders, sink), f"{tmp_path}/checkpoint", "orders-v2")
    assert sink.on_time == {1: [("eu", 200_000), ("us", 45_000)]}
    held_by = job.status()["held_by"]
    assert (held_by["query"], held_by["substream"]) == ("orders-v2", "us")
    assert {row["query"] for row in job.substreams()} == {"orders-v2"}
    job.retire("orders-v2", "moved elsewhere")
    assert job.substreams() == []
    assert {row["query"]: row["retired"] for row in job.queries()} == {"orders": True, "orders-v2": True}


def test_a_query_that_starts_over_logs_a_warning(
    spark: SparkSession, job: Job, orders: FileBatches, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A query with a new checkpoint reads old rows again, which are below the watermark."""
    orders.add(*rows(("a", 100_000)))
    orders.add(*rows(("a", 101_000)))
    sinks = []
    for checkpoint in ("one", "two"):
        sinks.append(Sink())
        to_the_end(stream_of(spark, job, orders, sinks[-1]), f"{tmp_path}/{checkpoint}")
        assert ("ran on another checkpoint before" in caplog.text) == (checkpoint == "two")
    assert sinks[1].pinned_watermarks[0] == 91_000


def test_a_checkpoint_lost_during_a_batch_needs_a_handover(
    spark: SparkSession, job: Job, orders: FileBatches, tmp_path: Path
) -> None:
    """A restart alone would lose the rows of the open batch, so the operator must hand the query over."""
    orders.add(*rows(("a", 100_000)))

    def fail(df: DataFrame, batch_id: int) -> None:
        raise RuntimeError("the disk with the checkpoint is gone")

    with pytest.raises(StreamingQueryException, match="disk"):
        to_the_end(stream_of(spark, job, orders, Sink()).foreach_batch(fail), f"{tmp_path}/lost")
    sink = Sink()
    with pytest.raises(StreamingQueryException, match="checkpoint_conflict"):
        to_the_end(stream_of(spark, job, orders, sink), f"{tmp_path}/new")
    job.hand_over("q", "q", "the checkpoint is lost")
    to_the_end(stream_of(spark, job, orders, sink), f"{tmp_path}/new")
    assert sink.on_time == {0: [("a", 100_000)]}
    assert job.status()["watermark"] == 90_000


@pytest.mark.parametrize("trigger", [{"once": True}, {"availableNow": True}, {"processingTime": "50 milliseconds"}])
def test_every_trigger_continues_where_the_last_run_ended(
    spark: SparkSession, job: Job, orders: FileBatches, tmp_path: Path, trigger: dict[str, object]
) -> None:
    """The end of a nightly run is not the end of the input. The watermark stays until the next run."""
    sink = Sink()
    for night in range(2):
        orders.add(*rows(("a", 100_000 + night * 10_000), ("b", 50_000)))
        stream = stream_of(spark, job, orders, sink).trigger(**trigger)
        query = stream.start(queryName="q", checkpointLocation=f"{tmp_path}/checkpoint")
        if "processingTime" in trigger:
            query.processAllAvailable()  # Spark repeats a batch that it has not committed
            query.stop()
        else:
            assert query.awaitTermination(120)
    assert sink.pinned_watermarks == {0: None, 1: 40_000}
    assert (job.status()["watermark"], job.status()["complete"]) == (40_000, False)
