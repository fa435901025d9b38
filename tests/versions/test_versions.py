"""Behaviour on every supported version of PySpark, and refusals on older versions.

``make test-versions`` runs these tests and the hook's tests in one environment per older version.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support import native as native_streams
from tests.support import streams
from tests.support.native import TEN, Out, native, start, tens
from tests.support.pipeline import SCHEMA, Settings
from tests.support.runs import calls, run
from tests.support.waiting import until
from tests.support.windows import SECOND, Results
from tests.support.windows import tens as windows_of_ten
from tidegate_spark import InvalidUsage, Job
from tidegate_spark.spark_session import AVAILABLE_NOW_OF_PYTHON_SOURCES, PYTHON_SOURCES, version_of
from tidegate_spark.testing import CoordinatorProcess, FileBatches

ROWS = [[("a", 1), ("b", 2), ("a", 12)], [("a", 25), ("b", 11), ("b", 3)], [("a", 47), ("b", 44), ("a", 38)]]
"""Three batches. With a lag of ten seconds, no row is late within its substream. The last watermark is 34 s."""

EXTENSIONS = {
    "spark.jars.packages": (
        "io.delta:delta-spark_4.1_2.13:4.4.0,org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
    ),
    "spark.sql.extensions": (
        "io.delta.sql.DeltaSparkSessionExtension,org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    ),
    "spark.ui.enabled": False,
}
"""A session with the SQL parsers of Delta Lake and Iceberg. Spark downloads 60 MB from Maven Central, once."""

BY_WINDOW = dict(Counter((second // 10 * 10, k) for batch in ROWS for k, second in batch))


@pytest.fixture
def timed(tmp_path: Path) -> FileBatches:
    """Return a source of ``ROWS``, with a substream ``k`` and a timestamp ``t``."""
    source = FileBatches(tmp_path / "timed", "k string, t timestamp")
    for batch in ROWS:
        source.add(*native_streams.rows(*batch))
    return source


@pytest.fixture
def counted(source: FileBatches) -> FileBatches:
    """Return a source of ``ROWS``, with whole numbers as event times."""
    for batch in ROWS:
        source.add(*streams.rows(*((k, second * SECOND) for k, second in batch)))
    return source


def needs(spark: SparkSession, version: tuple[int, int]) -> None:
    """Skip the test if Spark is older than ``version``."""
    if version_of(spark) < version:
        pytest.skip(f"needs Spark {version[0]}.{version[1]}")


@contextmanager
def running(df: DataFrame, out: Out, checkpoint: str) -> Iterator[StreamingQuery]:
    """Run a query with the default trigger, and stop it at the end of the block."""
    query = start(df, out, checkpoint)
    try:
        yield query
    finally:
        query.stop()


def table(results: Results) -> dict[tuple[int, Any], int]:
    """Return the last count of each window by its start in seconds and ``k``."""
    return {(start // SECOND, k): row["rows"] for (start, k), row in results.table().items()}


def test_windows_contain_every_row(spark: SparkSession, job: Job, counted: FileBatches, checkpoint: str) -> None:
    """Windows close with the batches. The remaining windows close when the job is complete."""
    results = Results()
    stream = windows_of_ten(job, counted, spark, results)
    query = stream.start(queryName="q", checkpointLocation=checkpoint)
    try:
        query.processAllAvailable()
        closed = {key: count for key, count in BY_WINDOW.items() if key[0] + 10 <= 34}
        until(lambda: table(results) == closed, "the windows up to 34 s")
        assert results.count("late") == 0
        if version_of(spark) >= PYTHON_SOURCES:
            assert job.complete() == 50 * SECOND, "the end of the window of the last event"
            until(lambda: table(results) == BY_WINDOW, "the remaining windows")
    finally:
        query.stop()
    assert job.status()["rows"]["on_time"] == 9


def test_windows_of_available_now_runs_contain_every_row(
    spark: SparkSession, job: Job, counted: FileBatches, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The client warns if the run is a single batch.

    After ``complete()``, the next run closes the remaining windows.
    """
    results = Results()
    stream = windows_of_ten(job, counted, spark, results)
    with caplog.at_level(logging.WARNING, "tidegate"):
        streams.to_the_end(stream, checkpoint)
    single = PYTHON_SOURCES <= version_of(spark) < AVAILABLE_NOW_OF_PYTHON_SOURCES
    assert len(results.committed) == (1 if single else 3)
    assert ("a single batch" in caplog.text) == single
    if version_of(spark) >= PYTHON_SOURCES:
        job.complete()
        streams.to_the_end(stream, checkpoint)
        assert table(results) == BY_WINDOW
    else:
        assert "runs no batch when only the watermark moves" in caplog.text
        assert table(results) == {key: count for key, count in BY_WINDOW.items() if key[0] + 10 <= 34}


def test_sparks_own_windows_contain_every_row(
    spark: SparkSession, job: Job, timed: FileBatches, checkpoint: str
) -> None:
    """When a query has processed all its input and is stopped, all of its input is reported."""
    needs(spark, PYTHON_SOURCES)
    followed = tens(native(job, timed.stream(spark), checkpoint, windows=TEN))
    out = Out()
    with running(followed, out, checkpoint) as query:
        query.processAllAvailable()
    assert job.status()["rows"] == {"on_time": 9, "updated": 0, "late": 0, "null_event_time": 0, "future": 0}
    job.complete()
    with running(followed, out, checkpoint):
        until(lambda: out.windows() == BY_WINDOW, "every window")


def test_a_native_available_now_run_is_complete_or_refused(
    spark: SparkSession, job: Job, timed: FileBatches, checkpoint: str
) -> None:
    """A single batch would report nothing. If the job were completed then, its windows would never close."""
    needs(spark, PYTHON_SOURCES)
    followed = tens(native(job, timed.stream(spark), checkpoint, windows=TEN))
    out = Out()
    query = start(followed, out, checkpoint, availableNow=True)
    if version_of(spark) >= AVAILABLE_NOW_OF_PYTHON_SOURCES:
        assert query.awaitTermination(120)
        assert job.status()["rows"]["on_time"] == 9
        return
    with pytest.raises(
        StreamingQueryException, match=r"with_watermark\(\) does not support trigger\(availableNow=True\)"
    ):
        query.awaitTermination(120)
    assert out.rows == {}
    with running(followed, out, checkpoint) as query:
        query.processAllAvailable()
        job.complete()
        until(lambda: out.windows() == BY_WINDOW, "every window")


def test_native_is_refused_if_spark_has_no_python_sources(
    spark: SparkSession, job: Job, timed: FileBatches, checkpoint: str
) -> None:
    if version_of(spark) >= PYTHON_SOURCES:
        pytest.skip("Spark has sources in Python")
    with pytest.raises(InvalidUsage, match=r"with_watermark\(\) needs Spark 4\.0 or later, and this is 3\.5"):
        native(job, timed.stream(spark), checkpoint, windows=TEN)


def test_a_session_with_the_parsers_of_table_formats_processes_late_rows(
    tidegate: CoordinatorProcess, tmp_path: Path
) -> None:
    """The parsers of extensions read every statement and expression of the client."""
    if not pyspark.__version__.startswith("4.1."):
        pytest.skip("needs Spark 4.1, for which both formats are built")
    job = tidegate.job()
    settings = Settings("local[2]", tidegate.url, job.connection.job, str(tmp_path), conf=EXTENSIONS)
    source = FileBatches(tmp_path / "input", SCHEMA)
    for t in (100_000, 100, 110_000):
        source.add({"k": "a", "t": t})
    assert run(settings) == 0, (tmp_path / "pipeline.log").read_text()
    assert job.status()["rows"] == {"on_time": 2, "updated": 0, "late": 1, "null_event_time": 0, "future": 0}
    assert [row for call in calls(tmp_path) if call.kind == "late" for row in call.rows] == [["a", 100]]
