"""ReadPartitions of silence: a query must have processed all available input, at a known time."""

import json
import time
from datetime import timedelta

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.support.local import LocalCoordinator
from tests.support.streams import LAG, Sink, rows, to_the_end
from tidegate_spark import Batch, limiting_lag
from tidegate_spark.columns import Columns
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.sources.offsets import SourceOffsets
from tidegate_spark.sources.plan import StreamSources, partition_names
from tidegate_spark.sources.running import QueryOffsets
from tidegate_spark.testing import CoordinatorProcess, FileBatches

TIMEOUT = timedelta(seconds=1)


def test_a_batch_is_no_evidence_for_the_time_after_its_planning(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str
) -> None:
    """The driver dies before the begin and is down for longer than the timeout. Rows that arrive meanwhile are not
    late.
    """
    config = limiting_lag(LAG, idle_timeout=TIMEOUT)
    job = own.job(job="j", config=config, on_outage=timedelta(milliseconds=100))
    sink = Sink()

    def write(df: DataFrame, batch_id: int, batch: Batch) -> None:
        sink.write(df, batch_id, batch)
        if batch_id == 0:
            source.add(*rows(("a", 110_000)))  # without a row of b

    source.add(*rows(("a", 100_000), ("b", 40_000)))
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k"))
    query = (
        stream.foreach_batch(write)
        .on_commit(lambda committed: own.stop())
        .start(queryName="q", checkpointLocation=checkpoint)
    )
    with pytest.raises(StreamingQueryException, match="Nothing is lost"):
        query.awaitTermination(60)
    time.sleep(2 * TIMEOUT.total_seconds())
    own.start()
    source.add(*rows(("b", 35_000)))
    to_the_end(stream.foreach_batch(sink.write), checkpoint)
    assert sink.on_time[1] == [("a", 110_000)]
    assert (sink.pinned_watermarks[2], sink.on_time.get(2), sink.late) == (30_000, [("b", 35_000)], {})


@pytest.mark.parametrize("limited", [True, False], ids=["limited", "unlimited"])
def test_a_batch_of_limited_size_is_no_evidence_of_silence(
    spark: SparkSession, source: FileBatches, tidegate: CoordinatorProcess, checkpoint: str, limited: bool
) -> None:
    """The next file may have rows of a substream. If each batch counted as all available input, the substream
    would become idle.
    """
    job = tidegate.job(config=limiting_lag(LAG, idle_timeout=TIMEOUT))
    sink = Sink()

    def write(df: DataFrame, batch_id: int, batch: Batch) -> None:
        sink.write(df, batch_id, batch)
        time.sleep(TIMEOUT.total_seconds() * 1.2)

    source.add(*rows(("a", 100_000), ("b", 40_000)))
    source.add(*rows(("a", 110_000)))
    source.add(*rows(("a", 120_000)))
    source.add(*rows(("b", 35_000)))
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k")).foreach_batch(write)
    to_the_end(stream.complete_batches(not limited), checkpoint)
    assert sink.pinned_watermarks[3] == (30_000 if limited else 110_000)
    assert sink.late == ({} if limited else {3: [("b", 35_000)]})


def test_the_offsets_of_a_running_query_are_read(
    spark: SparkSession, source: FileBatches, tidegate: CoordinatorProcess, checkpoint: str
) -> None:
    """Files do not tell the latest offset; Spark's log of offsets is the control."""
    found: list[list[SourceOffsets]] = []
    offsets = QueryOffsets(spark, "q", StreamSources())

    def read(df: DataFrame, batch_id: int) -> None:
        found.append(offsets.read())

    assert offsets.read() == [], "the query is not running"
    source.add(*rows(("a", 100_000)))
    source.add(*rows(("a", 110_000)))
    job = tidegate.job(config=limiting_lag(LAG))
    to_the_end(job.stream(source.stream(spark), event_time="t", substream="k").foreach_batch(read), checkpoint)
    logged = [Checkpoint(checkpoint).source_offsets(batch_id) or [] for batch_id in (0, 1)]
    assert [[json.loads(of.end or "") for of in batch] for batch in found] == [
        [json.loads(end) for end in batch] for batch in logged
    ]
    assert [[of.latest for of in batch] for batch in found] == [[None], [None]]
    assert [[of.committed and json.loads(of.committed) for of in batch] for batch in found] == [
        [None],
        [json.loads(logged[0][0])],
    ]


def test_columns_of_another_source_are_no_partitions_of_kafka(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("'t' AS topic", "1 AS partition", "timestamp AS t")
    assert partition_names(Columns("t", ["topic", "partition"]), stream) is None
    assert partition_names(Columns("t", None), stream) is None
