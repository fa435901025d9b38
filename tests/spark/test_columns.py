"""Columns of every type and name: the hook, its windows and native queries get the same substreams and event times."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.support.native import ms
from tests.support.native import to_the_end as natively_to_the_end
from tests.support.streams import to_the_end
from tidegate_spark import SOURCE_PARTITION, CoordinatorUnavailable, Job, connect, windows
from tidegate_spark.spark_session import setting
from tidegate_spark.testing import FileBatches

SCHEMA = "`at.time` timestamp, d double, n decimal(6, 2), b boolean, day date, `key.one` string, v long"
KEYS = ["d", "n", "b", "day", "key.one"]
ROWS: list[dict[str, Any]] = [
    {"at.time": "2024-01-01T00:00:01Z", "d": "NaN", "n": 1.5, "b": True, "day": "2024-02-29", "key.one": "x/y", "v": 1},
    {"at.time": "2024-01-01T00:00:02Z", "d": 0.1, "n": -10, "b": False, "day": "1969-12-31", "key.one": "", "v": 2},
    {"at.time": "2024-01-01T00:00:03Z", "v": 4},
    {"at.time": "2024-01-01T00:00:04Z", "v": 8},
]
MAX_EVENT_TIMES = {
    "NaN/1.50/true/2024-02-29/x%2Fy": ms(1),
    "0.1/-10.00/false/1969-12-31/(empty)": ms(2),
    "(null)/(null)/(null)/(null)/(null)": ms(4),
}


@pytest.fixture
def typed(tmp_path: Path) -> FileBatches:
    """Return a source with a column of each type."""
    source = FileBatches(tmp_path / "input", SCHEMA)
    source.add(*ROWS)
    return source


def max_event_times(job: Job) -> dict[str, int | None]:
    """Return the max event time of each substream, by its name without the digest."""
    return {row["substream"].partition("~")[0]: row["max_event_time"] for row in job.substreams()}


@pytest.mark.parametrize("mode", ["executor", "driver"])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
def test_values_of_any_type_name_a_substream(
    spark: SparkSession, job: Job, typed: FileBatches, checkpoint: str, zone: str, mode: Any
) -> None:
    """The values include null, NaN, decimals and dates. Column names contain dots. The session's time zone has no
    effect.
    """
    found: list[Any] = []

    def write(df: DataFrame, batch_id: int) -> None:
        found.extend(row.v for row in df.collect())

    with setting(spark, "spark.sql.session.timeZone", zone):
        stream = job.stream(typed.stream(spark), event_time="at.time", substream=KEYS).reporting(mode)
        to_the_end(stream.foreach_batch(write), checkpoint)
    assert max_event_times(job) == MAX_EVENT_TIMES
    assert sorted(found) == [1, 2, 4, 8]


def test_windows_by_columns_of_any_type(spark: SparkSession, job: Job, typed: FileBatches, checkpoint: str) -> None:
    found: dict[str | None, int] = {}

    def write(df: DataFrame, batch_id: int) -> None:
        found.update({row["key.one"]: row.total for row in df.collect()})

    stream = job.stream(typed.stream(spark), event_time="at.time", substream=KEYS).windows(timedelta(seconds=10))
    by_key = stream.agg("d", "n", "b", "day", "key.one", total=windows.sum("v")).foreach_batch(write)
    to_the_end(by_key, checkpoint)
    job.complete()
    to_the_end(by_key, checkpoint)
    assert found == {"x/y": 1, "": 2, None: 12}


def test_native_queries_have_the_same_substreams(
    spark: SparkSession, job: Job, typed: FileBatches, checkpoint: str
) -> None:
    followed = job.with_watermark(
        typed.stream(spark), event_time="at.time", substream=KEYS, queryName="q", checkpointLocation=checkpoint
    )
    counted = followed.groupBy(F.window("`at.time`", "10 seconds")).agg(F.sum("v").alias("total"))
    natively_to_the_end(counted, checkpoint)
    assert max_event_times(job) == MAX_EVENT_TIMES
    job.complete(up_to=ms(60))
    out = natively_to_the_end(counted, checkpoint)
    assert [row.total for row in out.all()] == [15]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda df: df.repartition(5), "step Repartition,"),
        (lambda df: df.filter("value > 1").coalesce(1).select("timestamp"), "step Repartition,"),
        (lambda df: df.repartition(F.col("value")), "step RepartitionByExpression,"),
        (
            lambda df: df.withWatermark("timestamp", "1 hour").dropDuplicates(["value", "timestamp"]),
            "step Deduplicate,",
        ),
        (lambda df: df.union(df).filter("value > 1").mapInArrow(lambda batches: batches, df.schema), None),
    ],
    ids=["repartition", "coalesce", "by a column", "deduplicated", "the same partitions"],
)
def test_substreams_that_are_not_the_partitions_of_the_source_are_logged(
    spark: SparkSession,
    tmp_path: Path,
    change: Callable[[DataFrame], DataFrame],
    expected: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a repartition, each substream has rows of several partitions, and its disorder makes rows late."""
    job = connect("http://127.0.0.1:1", job="j", on_outage=timedelta(0))
    df = change(spark.readStream.format("rate").option("numPartitions", 2).load())
    for substream in (SOURCE_PARTITION, None):
        stream = job.stream(df, event_time="timestamp", substream=substream).foreach_batch(lambda df, batch: None)
        with pytest.raises(CoordinatorUnavailable):
            stream.start(queryName="q", checkpointLocation=str(tmp_path))
    assert caplog.text.count("substream=SOURCE_PARTITION: the stream has the step") == (expected is not None)
    assert expected is None or expected in caplog.text


def test_source_partitions_of_files_are_logged(
    spark: SparkSession, typed: FileBatches, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The partitions of files depend on the sizes of the files. A native query logs the same warning."""
    job = connect("http://127.0.0.1:1", job="j")
    options: Any = {"event_time": "at.time", "queryName": "q", "checkpointLocation": str(tmp_path)}
    job.with_watermark(typed.stream(spark), substream="v", **options)
    assert "SOURCE_PARTITION" not in caplog.text
    job.with_watermark(typed.stream(spark), substream=SOURCE_PARTITION, **options)
    assert "j/q: substream=SOURCE_PARTITION: the partitions of the source json depend on the sizes" in caplog.text
