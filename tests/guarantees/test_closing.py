"""Windows close once, late rows within the allowed lateness update them, and the last windows close without data."""

import time
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.streams import rows, to_the_end
from tests.support.waiting import until
from tests.support.windows import SECOND, Results, tens
from tidegate_spark import Job
from tidegate_spark.testing import FileBatches


def test_late_rows_within_the_allowed_lateness_update_their_window(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str
) -> None:
    source.add(*rows(("a", 1000), ("a", 35_000)))  # the watermark rises to 25 s
    source.add(*rows(("a", 2000), ("a", 12_000), ("a", 13_000)))
    source.add(*rows(("a", 3000), ("a", 45_000)))  # classified by 25 s; then the watermark rises to 35 s
    source.add(*rows(("a", 4000), ("a", 15_000), ("a", None)))
    results = Results()
    to_the_end(tens(job, source, spark, results).allowed_lateness(20 * SECOND), checkpoint)
    updates = {
        batch: [(row["window"]["start"], row["rows"], row["previous"] and row["previous"]["rows"]) for row in given]
        for batch, given in results.given.items()
    }
    assert updates == {
        0: [(0, 1, None)],
        1: [(0, 2, 1), (10_000, 2, None)],
        2: [(0, 3, 2)],
        3: [(10_000, 3, 2)],
    }
    assert results.late == {3: [("a", 4000), ("a", None)]}
    counts = {name: results.count(name) for name in ("on_time", "updated", "late", "null_event_time")}
    assert counts == {"on_time": 3, "updated": 5, "late": 1, "null_event_time": 1}
    assert {name: job.status()["rows"][name] for name in counts} == counts
    results.table()


def test_a_quiet_stream_closes_its_last_windows(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str, tmp_path: Path
) -> None:
    """The query's only batch closes no window. Later, another query moves the watermark."""
    source.add(*rows(("a", 1000), ("a", 12_000)))
    results, trigger_s = Results(), 1
    stream = tens(job, source, spark, results).trigger(processingTime=f"{trigger_s} seconds")
    query = stream.start(queryName="quiet", checkpointLocation=checkpoint)
    try:
        until(lambda: len(results.committed) > 0, "a first batch")
        assert results.given == {}
        job.done("quiet", ["a"])
        other = FileBatches(tmp_path / "other", source.schema)
        other.add(*rows(("b", 31_000)))
        elsewhere = job.stream(other.stream(spark), event_time="t", substream="k")
        to_the_end(elsewhere.foreach_batch(lambda df, batch_id: None), str(tmp_path / "elsewhere"), query="other")
        moved = time.monotonic()
        until(lambda: len(results.table()) == 2, "the windows up to 20 s")
        waited_s = time.monotonic() - moved
    finally:
        query.stop()
    assert {key: row["rows"] for key, row in results.table().items()} == {(0, "a"): 1, (10_000, "a"): 1}
    batches = [committed for committed in results.committed if committed.batch.batch_id in results.given]
    assert len(batches) == 1 and batches[0].rows == 0, "expected one batch without rows"
    # Two triggers, the batch itself, and half a minute for a busy machine.
    assert waited_s < 2 * trigger_s + batches[0].seconds + 30
