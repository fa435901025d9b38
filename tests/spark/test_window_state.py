"""A version of the windows' state is an Arrow file or Parquet files, and has the same rows and types either way."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.windows import state
from tidegate_spark.windows.state import FEW_ROWS, FileState

ARROW, PARQUET = "3.arrow", "3"


@pytest.fixture
def versions(checkpoint: str) -> Path:
    return Path(checkpoint) / "tidegate" / "state"


@pytest.fixture
def store(checkpoint: str) -> FileState:
    return FileState(Checkpoint(checkpoint))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def count(spark: SparkSession, many: int) -> DataFrame:
    return spark.range(many).select(F.col("id"), (F.col("id") % 7).cast("string").alias("k"))


def sorted_rows(df: DataFrame) -> list[str]:
    """Return the rows as texts of Spark, because PySpark cannot return a duration in months."""
    as_text = F.struct(*df.columns).cast("string").alias("row")
    return sorted(row.row for row in df.select(as_text).collect())


@pytest.mark.parametrize(
    ("many", "expected"), [(0, ARROW), (3, ARROW), (FEW_ROWS, ARROW), (FEW_ROWS + 1, PARQUET), (3 * FEW_ROWS, PARQUET)]
)
def test_few_rows_are_an_arrow_file(
    spark: SparkSession, store: FileState, versions: Path, many: int, expected: str
) -> None:
    rows = count(spark, many)
    store.write(3, rows)
    assert names(versions) == [expected]
    assert sorted_rows(store.read(spark, 3)) == sorted_rows(rows)


def test_few_rows_of_many_bytes_are_parquet_files(
    spark: SparkSession, store: FileState, versions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "FEW_BYTES", 1000)
    store.write(3, spark.range(10).select(F.repeat(F.lit("x"), 1000).alias("long")))
    assert names(versions) == [PARQUET]
    assert store.read(spark, 3).count() == 10


def test_another_store_reads_the_version(spark: SparkSession, store: FileState, checkpoint: str) -> None:
    """A restarted query reads the versions with a new store."""
    store.write(3, count(spark, 5))
    assert sorted_rows(FileState(Checkpoint(checkpoint)).read(spark, 3)) == sorted_rows(count(spark, 5))


@pytest.mark.parametrize(("first", "second"), [(5, FEW_ROWS + 1), (FEW_ROWS + 1, 5)])
def test_a_replay_may_have_another_number_of_rows(
    spark: SparkSession, store: FileState, versions: Path, first: int, second: int
) -> None:
    """The replay replaces the version of the first attempt, also if one is an Arrow file and the other a directory."""
    store.write(3, count(spark, first))
    store.write(3, count(spark, second))
    assert len(names(versions)) == 1
    assert store.read(spark, 3).count() == second


def test_after_a_large_version_the_rows_are_not_collected_first(
    spark: SparkSession, store: FileState, versions: Path, checkpoint: str
) -> None:
    """An attempt to collect a large state would compute it twice in each batch, the first time in a single task."""
    store.write(3, count(spark, FEW_ROWS + 1))
    restarted = FileState(Checkpoint(checkpoint))
    restarted.write(4, restarted.read(spark, 3).limit(5))
    assert names(versions) == ["3", "4"]
    restarted.write(5, restarted.read(spark, 4).limit(3))
    assert names(versions) == ["3", "4", "5.arrow"]


def test_versions_are_deleted(spark: SparkSession, store: FileState, versions: Path) -> None:
    store.write(3, count(spark, 5))
    store.write(4, count(spark, FEW_ROWS + 1))
    for version in (3, 4, 5):
        store.delete(version)
    assert names(versions) == []


TYPES = {
    "numbers": "1Y, 2S, 3, 4L, 0.5F, 0.25D, 1.10BD, true",
    "texts": "'ä', '', X'00ff', cast(null AS string)",
    "times": "date'2013-01-01', timestamp'2013-01-01 12:00:00.000001'",
    "a time without time zone": "timestamp_ntz'2013-03-10 02:30:00'",
    "nested times": "array(timestamp'2013-01-01 12:00:00.1', null), map(timestamp'2013-11-03 01:30:00', 1)",
    "a duration": "interval '1 02:03:04.000005' day to second",
    "nested": "array(1, null), map('a', array(1.5D)), struct(1 AS a, struct('x' AS b) AS c)",
    "a struct that is null": "if(id < 9, null, named_struct('a', id, 'b', array(id)))",
    "a map of structs": "map(struct(id AS a), named_struct('b', id))",
    "a duration in months": "interval '1-2' year to month",
    "a duration of days": "interval '3' day",
    "a text with a collation": "'a' collate UNICODE_CI",
}
OTHER_IN_ARROW = {"a time without time zone", "a duration in months", "a duration of days", "a text with a collation"}


@pytest.mark.parametrize("name", TYPES)
def test_types_are_kept(spark: SparkSession, store: FileState, versions: Path, name: str) -> None:
    """A merged value must have the type of the state, or the next batch would fail or change it."""
    rows = spark.range(3).selectExpr(*(f"{value} AS c{n}" for n, value in enumerate([f"struct({TYPES[name]})", "id"])))
    store.write(3, rows)
    read = store.read(spark, 3)
    assert [field.dataType.simpleString() for field in read.schema] == [
        field.dataType.simpleString() for field in rows.schema
    ]
    assert sorted_rows(read) == sorted_rows(rows)
    assert names(versions) == [PARQUET if name in OTHER_IN_ARROW else ARROW]


def test_the_hour_that_occurs_twice_is_kept(spark: SparkSession, store: FileState) -> None:
    """The session's time zone has daylight saving time."""
    assert spark.conf.get("spark.sql.session.timeZone") == "America/New_York"
    first_of_two = 1_383_454_800
    seconds = [first_of_two + half * 1800 for half in range(4)]
    store.write(3, spark.createDataFrame([(s,) for s in seconds], "s long").select(F.timestamp_seconds("s").alias("t")))
    assert sorted(row.s for row in store.read(spark, 3).select(F.unix_seconds("t").alias("s")).collect()) == seconds


def test_a_version_that_cannot_be_written_is_not_there(spark: SparkSession, store: FileState, versions: Path) -> None:
    """A query reads a version only if it is complete."""
    store.write(3, count(spark, 2))

    with file_size_limit(100), pytest.raises(OSError, match="File too large"):
        store.write(3, count(spark, 5))
    assert store.read(spark, 3).count() == 2
