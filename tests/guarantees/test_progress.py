"""How the watermark of a running query moves: the guarantees monotone, evidence-based idleness and live."""

from pyspark.sql import SparkSession

from tests.support.local import LocalCoordinator
from tests.support.streams import LAG, Sink, kill, known, rows, to_the_end
from tests.support.waiting import until
from tidegate_spark import limiting_lag
from tidegate_spark.testing import CoordinatorProcess, FileBatches


def test_a_quiet_query_lets_its_substreams_fall_idle(
    spark: SparkSession, source: FileBatches, tidegate: CoordinatorProcess, checkpoint: str
) -> None:
    """Without heartbeats the last windows of a stream that pauses would stay open for ever."""
    gate = tidegate.gate(rules=limiting_lag(LAG, idle_timeout=0.15 * LAG))
    source.add(*rows(("a", 100_000), ("b", 40_000)))
    query = (
        gate.stream(source.stream(spark), event_time="t", substream="k")
        .foreach_batch(lambda df, batch: df.collect())
        .tuned(heartbeat_ms=200)
        .start(queryName="q", checkpointLocation=checkpoint)
    )
    try:
        until(lambda: gate.status()["watermark"] == 90_000, "both idle, so the lead goes out")
        assert gate.status()["substreams"] == {"active": 0, "idle": 2, "done": 0, "all_idle": True}
        source.add(*rows(("b", 41_000)))
        until(lambda: gate.status()["rows"]["late"] == 1, "the late row of the one that woke")
    finally:
        query.stop()
    assert gate.status()["watermark"] == 90_000


def test_an_emptied_coordinator_is_told_by_the_next_run(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str
) -> None:
    """What an earlier run has seen lies beside the checkpoint; the pin of the next batch is held by it."""
    sink, gate = Sink(), own.gate(job="j", rules=limiting_lag(LAG))
    stream = sink.after(gate.stream(source.stream(spark), event_time="t", substream="k"))
    source.add(*rows(("a", 100_000), ("b", 40_000)))
    source.add(*rows(("a", 110_000)))
    to_the_end(stream, checkpoint)
    kill(own, empties=True)
    own.start()
    to_the_end(stream, checkpoint)
    assert known(gate) == {"a": 110_000, "b": 40_000}
    source.add(*rows(("a", 120_000)))
    source.add(*rows(("b", 31_000)))
    to_the_end(stream, checkpoint)
    assert sink.pins == {0: None, 1: 30_000, 2: 30_000, 3: 30_000}
    assert sink.late == {}
