"""The watermark of a running query: the guarantees monotone, evidence-based idleness and live."""

from pyspark.sql import SparkSession

from tests.support.local import LocalCoordinator
from tests.support.streams import LAG, Sink, kill, known, rows, to_the_end
from tests.support.waiting import until
from tidegate_spark import limiting_lag
from tidegate_spark.testing import CoordinatorProcess, FileBatches


def test_the_substreams_of_a_silent_query_become_idle(
    spark: SparkSession, source: FileBatches, tidegate: CoordinatorProcess, checkpoint: str
) -> None:
    """Without heartbeats, the last windows of a silent stream would stay open forever."""
    job = tidegate.job(config=limiting_lag(LAG, idle_timeout=0.15 * LAG))
    source.add(*rows(("a", 100_000), ("b", 40_000)))
    query = (
        job.stream(source.stream(spark), event_time="t", substream="k")
        .foreach_batch(lambda df, batch_id: df.collect())
        .tuning(heartbeat_ms=200)
        .start(queryName="q", checkpointLocation=checkpoint)
    )
    try:
        until(lambda: job.status()["watermark"] == 90_000, "both substreams idle, so W is the max watermark")
        assert job.status()["substreams"] == {"active": 0, "skewed": 0, "idle": 2, "done": 0, "all_idle": True}
        source.add(*rows(("b", 41_000)))
        until(lambda: job.status()["rows"]["late"] == 1, "the late row of b")
    finally:
        query.stop()
    assert job.status()["watermark"] == 90_000


def test_the_next_run_restores_an_emptied_coordinator(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str
) -> None:
    """The next run declares the event times stored beside the checkpoint. They hold the next pinned watermark."""
    sink, job = Sink(), own.job(job="j", config=limiting_lag(LAG))
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k"))
    source.add(*rows(("a", 100_000), ("b", 40_000)))
    source.add(*rows(("a", 110_000)))
    to_the_end(stream, checkpoint)
    kill(own, empties=True)
    own.start()
    to_the_end(stream, checkpoint)
    assert known(job) == {"a": 110_000, "b": 40_000}
    source.add(*rows(("a", 120_000)))
    source.add(*rows(("b", 31_000)))
    to_the_end(stream, checkpoint)
    assert sink.pinned_watermarks == {0: None, 1: 30_000, 2: 30_000, 3: 30_000}
    assert sink.late == {}
