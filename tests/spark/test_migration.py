"""A query with foreachBatch becomes a coordinated one on its own checkpoint, is renamed, and goes back."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tidegate_spark.testing import CoordinatorProcess, FileBatches

SCHEMA = "dest string, at timestamp"


def test_a_query_keeps_its_checkpoint(spark: SparkSession, tidegate: CoordinatorProcess, tmp_path: Path) -> None:
    """Each start reads only new files, and batch ids continue, so no output is overwritten."""
    source = FileBatches(tmp_path / "in", SCHEMA)
    checkpoint = str(tmp_path / "checkpoint")
    job = tidegate.job(config={"policy": {"type": "limiting_lag", "lag_ms": 0}})
    written: list[tuple[int, str]] = []

    def write(df: DataFrame, batch_id: int) -> None:
        written.extend((batch_id, row.dest) for row in df.collect())

    def run_alone() -> None:
        plain = source.stream(spark).writeStream.foreachBatch(write).trigger(availableNow=True)
        plain.option("checkpointLocation", checkpoint).start().awaitTermination()

    def run_coordinated(name: str) -> None:
        stream = job.stream(source.stream(spark), event_time="at", substream="dest").foreach_batch(write)
        stream.trigger(availableNow=True).start(queryName=name, checkpointLocation=checkpoint).awaitTermination()

    source.add({"dest": "BOS", "at": "2013-01-01T08:00:00Z"})
    run_alone()
    source.add({"dest": "HNL", "at": "2013-01-01T01:00:00Z"})
    run_coordinated("old")
    source.add({"dest": "ORD", "at": "2013-01-01T09:00:00Z"})
    run_coordinated("new")
    held_by = job.status()["held_by"]
    assert (held_by["query"], held_by["substream"]) == ("old", "HNL")
    job.hand_over("old", "new", reason="renamed")
    assert {(row["query"], row["substream"]) for row in job.substreams()} == {("new", "HNL"), ("new", "ORD")}
    source.add({"dest": "LAX", "at": "2013-01-01T10:00:00Z"})
    run_alone()
    assert written == [(0, "BOS"), (1, "HNL"), (2, "ORD"), (3, "LAX")]
