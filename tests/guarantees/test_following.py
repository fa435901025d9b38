"""Spark's own windows on the watermark of a job: no row of the slowest substream is lost, and late rows are dropped."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.native import TEN, ms, native, rows, tens, to_the_end
from tidegate_spark import Job
from tidegate_spark.testing import FileBatches


@pytest.fixture
def source(tmp_path: Path) -> FileBatches:
    """Return an empty source whose rows have a substream ``k`` and a timestamp ``t``."""
    return FileBatches(tmp_path / "input", "k string, t timestamp")


def test_windows_follow_the_slowest_substream(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str
) -> None:
    """The rows of b are not late, although a is far ahead. Spark drops exactly the late rows."""
    source.add(*rows(("a", 1), ("a", 35), ("b", 2)))
    source.add(*rows(("a", 44), ("b", 3), ("b", 21)))  # b is at 21 s, so the watermark is 11 s
    source.add(*rows(("a", 45), ("b", 42)))  # contains the marker of the watermark
    source.add(*rows(("a", 47), ("b", 45), (None, 50)))  # closes windows by the watermark
    source.add(*rows(("a", 9.999), ("a", 10)))  # rows to classify by the watermark
    source.add(*rows(("b", 29.999), ("b", 30), ("a", 20.5), ("b", None)))
    out = to_the_end(tens(native(job, source.stream(spark), checkpoint, windows=TEN)), checkpoint)
    assert job.status()["watermark"] == ms(35)
    assert out.windows() == {(0, "a"): 1, (0, "b"): 2, (10, "a"): 1, (20, "b"): 1}
    counted = job.status()["rows"]
    assert (counted["late"], counted["null_event_time"], counted["on_time"]) == (3, 1, 17 - 4)
    late = {row["substream"]: row["rows"]["late"] for row in job.substreams()}
    assert late == {"a": 2, "b": 1, "(null)": 0}
