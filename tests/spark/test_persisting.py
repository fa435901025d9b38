"""A batch is read again only if the second read is cheap and returns the same rows."""

import logging
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.support.streams import rows, to_the_end
from tidegate_spark import Committed, Job
from tidegate_spark.hook.plan import keeps_partitions, reason_to_persist
from tidegate_spark.spark_session import IGNORE_MISSING_FILES, setting
from tidegate_spark.testing import FileBatches


def parquet(spark: SparkSession, directory: Path, kind: str = "parquet") -> DataFrame:
    return spark.readStream.schema("k string, t long, v double").format(kind).load(str(directory))


REPEATABLE: dict[str, Callable[[DataFrame], DataFrame]] = {
    "as it is": lambda df: df,
    "expressions": lambda df: df.filter("v > 1").withColumn("w", F.upper("k")).alias("named"),
    "the time of the batch": lambda df: df.withColumn("at", F.current_timestamp()),
    "a union": lambda df: df.union(df),
    "Spark's watermark": lambda df: df.withColumn("ts", F.timestamp_millis("t")).withWatermark("ts", "1 minute"),
}
NOT_REPEATABLE: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "random": (lambda df: df.withColumn("r", F.rand()), "not deterministic"),
    "a random id": (lambda df: df.withColumn("r", F.expr("uuid()")), "not deterministic"),
    "a function in Python": (lambda df: df.withColumn("r", F.udf(lambda value: value)("v")), "PythonUDF"),
    "a function of Arrow tables": (lambda df: df.mapInArrow(lambda batches: batches, df.schema), "MapInArrow"),
    "a state": (
        lambda df: df.withColumn("ts", F.timestamp_millis("t")).withWatermark("ts", "1 minute").dropDuplicates(["k"]),
        "Deduplicate",
    ),
    "a join with a table": (lambda df: df.join(df.sparkSession.range(3), F.col("id") == F.col("v")), "source Range"),
    "a join with a stream": (lambda df: df.join(df.select("k"), "k"), "Join"),
}


@pytest.mark.parametrize("kind", ["parquet", "orc"])
@pytest.mark.parametrize("name", REPEATABLE)
def test_a_stream_that_spark_can_read_again(spark: SparkSession, tmp_path: Path, kind: str, name: str) -> None:
    """Persisting such batches would double their time."""
    assert reason_to_persist(REPEATABLE[name](parquet(spark, tmp_path, kind))) is None


@pytest.mark.parametrize("name", NOT_REPEATABLE)
def test_a_stream_with_steps_that_spark_cannot_repeat(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """A second read could return other rows, or run a user's code twice."""
    change, expected = NOT_REPEATABLE[name]
    assert expected in str(reason_to_persist(change(parquet(spark, tmp_path))))


def test_files_that_may_be_missing(spark: SparkSession, tmp_path: Path) -> None:
    """The fold would count rows that the function does not get."""
    with setting(spark, IGNORE_MISSING_FILES, "true"):
        assert "files that were deleted" in str(reason_to_persist(parquet(spark, tmp_path)))


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_files_that_must_be_parsed(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Parsing text a second time takes longer than persisting the rows."""
    assert f"source {kind} again" in str(reason_to_persist(parquet(spark, tmp_path, kind)))


def test_a_batch_is_committed_if_the_query_is_stopped_in_its_function(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str
) -> None:
    """Spark's `stop()` interrupts the query's thread, but lets the function finish. Its batch must not run again."""
    source.add(*rows(("a", 100_000), ("a", 110_000)))
    started = threading.Event()
    committed: list[Committed] = []

    def write(df: DataFrame, batch_id: int) -> None:
        df.count()
        started.set()
        context: Any = spark.sparkContext
        thread = context._jvm.java.lang.Thread  # noqa: SLF001 - PySpark has no other way to Java
        while not thread.currentThread().isInterrupted():
            time.sleep(0.01)

    stream = job.stream(source.stream(spark), event_time="t", substream="k").foreach_batch(write)
    query = stream.persist(True).on_commit(committed.append).start(queryName="q", checkpointLocation=checkpoint)
    assert started.wait(120)
    query.stop()
    assert [each.rows for each in committed] == [2]
    assert job.status()["rows"]["on_time"] == 2
    context: Any = spark.sparkContext
    assert context._jsc.getPersistentRDDs().isEmpty()  # noqa: SLF001 - PySpark has no other way to Java


def test_steps_that_repartition(spark: SparkSession, tmp_path: Path) -> None:
    """A user who has chosen the number of tasks keeps it."""
    stream = parquet(spark, tmp_path)
    assert keeps_partitions(stream.filter("t > 0").select("k", "t"))
    assert not keeps_partitions(stream.repartition(64).select("k", "t"))


def test_another_source(spark: SparkSession) -> None:
    """A source that the client does not know may return other rows, or load the system that it reads."""
    rate = spark.readStream.format("rate").load()
    assert "source rate again" in str(reason_to_persist(rate))


@pytest.mark.parametrize("chosen", [None, True, False])
def test_the_fold_and_the_function_get_the_same_rows(
    spark: SparkSession,
    tmp_path: Path,
    job: Job,
    checkpoint: str,
    chosen: bool | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A function that returns other values at each call gives the rows other event times in a second read."""
    pq.write_table(pa.table({"k": ["a"] * 100, "t": range(100), "v": [0.0] * 100}), tmp_path / "rows.parquet")
    at_random = F.udf(lambda time: time + random.randrange(2**40), "long")  # noqa: S311 - no secret
    seen: list[int] = []

    def look(df: DataFrame, _: int) -> None:
        seen.extend(row.t for row in df.collect())

    stream = job.stream(
        parquet(spark, tmp_path).withColumn("t", at_random("t")), event_time="t", substream="k"
    ).foreach_batch(look)
    with caplog.at_level(logging.INFO, "tidegate"):
        to_the_end(stream if chosen is None else stream.persist(chosen), checkpoint)
    (substream,) = job.substreams()
    # If the user chooses to read again, the function gets other rows than those that were reported.
    assert (substream["max_event_time"] == max(seen)) == (chosen is not False)
    assert ("has the step PythonUDF" in caplog.text) == (chosen is None)
