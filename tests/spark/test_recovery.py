"""Recovery of a query whose checkpoint was lost, or restored from a backup (docs/how-to/recover.md)."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.support.streams import Sink, rows, stream_of, to_the_end
from tidegate_spark import Job
from tidegate_spark.start import located
from tidegate_spark.testing import FileBatches


def test_a_query_without_its_checkpoint_replaces_the_output_of_earlier_batches(
    spark: SparkSession, job: Job, orders: FileBatches, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Batch ids start again at 0. With another path and a late output, no row is lost, and some are written twice."""
    orders.add(*rows(("a", 100_000)))
    orders.add(*rows(("a", 200_000), ("a", 195_000)))

    def write_to(path: str) -> Callable[[DataFrame, int], None]:
        return lambda df, batch_id: df.write.mode("overwrite").parquet(f"{tmp_path}/{path}/batch={batch_id}")

    def written(path: str) -> list[tuple[int, int]]:
        table = spark.read.schema("k string, t long, batch int").parquet(f"{tmp_path}/{path}")
        return sorted((row.batch, row.t) for row in table.collect())

    base = job.stream(orders.stream(spark), event_time="t", substream="k")
    to_the_end(base.foreach_batch(write_to("out")), f"{tmp_path}/lost")
    assert written("out") == [(0, 100_000), (1, 195_000), (1, 200_000)]
    recovered = base.late_output(write_to("out-2-late")).foreach_batch(write_to("out-2"))
    to_the_end(recovered, f"{tmp_path}/new")
    assert "Batch ids start again at 0" in caplog.text
    assert written("out") == [(0, 100_000), (1, 195_000), (1, 200_000)]
    assert (written("out-2"), written("out-2-late")) == ([(1, 195_000), (1, 200_000)], [(0, 100_000)])
    to_the_end(base.foreach_batch(write_to("out")), f"{tmp_path}/newer")
    assert written("out") == [(1, 195_000), (1, 200_000)], "the earlier batch 0 is replaced"
    assert job.status()["watermark"] == 190_000


def test_a_relative_checkpoint_location_is_that_of_spark(
    spark: SparkSession, job: Job, orders: FileBatches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark ignores ``os.chdir``. The client's documents must be in Spark's checkpoint, or a restart loses them."""
    of_java = os.getcwd()
    location = os.path.relpath(tmp_path / "checkpoint", of_java)
    elsewhere = tmp_path / "a" / "b"
    elsewhere.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    orders.add(*rows(("a", 100_000)))
    to_the_end(stream_of(spark, job, orders, Sink()), location)
    assert (tmp_path / "checkpoint" / "metadata").exists()
    assert (tmp_path / "checkpoint" / "tidegate" / "progress.json").exists()
    assert located(spark, location) == f"file:{tmp_path}/checkpoint"
    assert located(spark, "s3a://bucket/checkpoint") == "s3a://bucket/checkpoint"


def test_a_query_on_an_older_checkpoint_continues_under_another_name(
    spark: SparkSession, job: Job, orders: FileBatches, tmp_path: Path
) -> None:
    """The coordinator has later batches of the query. It refuses the query before a row is written."""
    checkpoint, backup = tmp_path / "checkpoint", tmp_path / "backup"
    for time in (100_000, 200_000):
        orders.add(*rows(("a", time)))
    to_the_end(stream_of(spark, job, orders, Sink()), str(checkpoint))
    shutil.copytree(checkpoint, backup)
    orders.add(*rows(("a", 300_000), ("a", 195_000)))
    orders.add(*rows(("a", 400_000)))
    to_the_end(stream_of(spark, job, orders, Sink()), str(checkpoint))
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)
    sink = Sink()
    with pytest.raises(StreamingQueryException, match=r"older checkpoint was restored.*batch_forgotten"):
        to_the_end(stream_of(spark, job, orders, sink), str(checkpoint))
    assert sink.on_time == {}
    job.hand_over("q", "q-2", "an older checkpoint was restored")
    orders.add(*rows(("a", 500_000)))
    to_the_end(stream_of(spark, job, orders, sink), str(checkpoint), "q-2")
    assert sink.late == {2: [("a", 195_000), ("a", 300_000)]}
    assert sink.on_time == {2: [], 3: [("a", 400_000)], 4: [("a", 500_000)]}
    assert {(row["query"], row["max_event_time"]) for row in job.substreams()} == {("q-2", 500_000)}
    assert job.status()["watermark"] == 490_000
