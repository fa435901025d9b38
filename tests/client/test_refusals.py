"""Arguments that cannot work are refused in the line that has them, before a query starts."""

from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    LongType,
    MapType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from tests.support.frames import stream_of_types
from tidegate_spark import InvalidUsage, Job, Stream, connect, windows

TEXT, LONG, TIME = StringType(), LongType(), TimestampType()
TEN = timedelta(seconds=10)


@pytest.fixture
def job() -> Job:
    """A job of a coordinator that is never called."""
    return connect("http://127.0.0.1:1", job="j")


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"event_time": "time", "substream": "k"}, "no column of the stream; it has: k, t, d, m, at, raw"),
        ({"event_time": "d", "substream": "k"}, "is of type date"),
        ({"event_time": "t", "substream": "m"}, "is of type map"),
        ({"event_time": "t", "substream": ["k", "n"]}, "substream='n' is no column"),
        ({"event_time": "t", "substream": []}, "say substream=None"),
        ({"event_time": "t", "substream": "m.x"}, "a column of the struct's field first, with withColumn"),
        ({"event_time": "t", "substream": "at"}, "depends on the time zone of the session; cast it to a long"),
        ({"event_time": "t", "substream": "raw"}, "is of type binary: not every value is text; cast it to a string"),
    ],
)
def test_columns_that_cannot_be_used(job: Job, columns: Any, says: str) -> None:
    """The error names the argument, the column and what the stream has instead."""
    more = {"d": DateType(), "m": MapType(TEXT, TEXT), "at": TIME, "raw": BinaryType()}
    df = stream_of_types({"k": TEXT, "t": LONG, **more})
    with pytest.raises(InvalidUsage, match=says):
        job.stream(df, **columns)


def test_options_of_a_stream_that_cannot_be(job: Job) -> None:
    """The error lists the choices."""
    stream = job.stream(stream_of_types({"k": TEXT, "t": LONG}), event_time="t", substream="k")
    with pytest.raises(InvalidUsage, match="substream=None"):
        stream.reporting("observe")
    with pytest.raises(InvalidUsage, match="'executor', 'driver', 'observe'; it is 'drivers'"):
        stream.reporting("drivers")  # type: ignore[arg-type]
    with pytest.raises(InvalidUsage, match="null_event_times takes one of 'late', 'on_time'"):
        stream.null_event_times("dropped")  # type: ignore[arg-type]
    with pytest.raises(InvalidUsage, match="foreach_batch"):
        stream.start(queryName="q", checkpointLocation="/nowhere")
    with pytest.raises(InvalidUsage, match="queryName"):
        stream.foreach_batch(print).start(queryName="a b", checkpointLocation="/nowhere")
    with pytest.raises(InvalidUsage, match=r"start\(\) needs queryName"):
        stream.foreach_batch(print).start(checkpointLocation="/nowhere")
    with pytest.raises(InvalidUsage, match=r"start\(\) needs checkpointLocation"):
        stream.foreach_batch(print).start(queryName="q")


def test_windows_that_cannot_be(job: Job) -> None:
    """Sizes, results and names are checked when the windows are described."""
    stream = job.stream(stream_of_types({"k": TEXT, "t": LONG}), event_time="t", substream="k")
    with pytest.raises(InvalidUsage, match="size must be a whole number, 1 or more, for the event times are"):
        stream.windows(timedelta(seconds=1))
    with pytest.raises(InvalidUsage, match="slide is 1 or more, and its size or less"):
        stream.windows(10, 20)
    with pytest.raises(InvalidUsage, match="longer slide"):
        stream.windows(10_000, 1)
    with pytest.raises(InvalidUsage, match="results by name"):
        stream.windows(10).agg("k")
    with pytest.raises(InvalidUsage, match=r"rows is .* and must be one of tidegate_spark.windows"):
        stream.windows(10).agg(rows="count(*)")  # type: ignore[arg-type]
    with pytest.raises(InvalidUsage, match="q: no column of the stream"):
        stream.windows(10).agg("q", rows=windows.count())
    with pytest.raises(InvalidUsage, match="k: two columns"):
        stream.windows(10).agg("k", K=windows.count())
    with pytest.raises(InvalidUsage, match="comes before it"):
        stream.allowed_lateness(10)
    check_reserved_names(job)
    check_null_event_times(stream)


def check_reserved_names(job: Job) -> None:
    """The columns that windows add have a prefix, which no column of the stream may have."""
    df = stream_of_types({"k": TEXT, "t": LONG, "tidegate_x": LONG})
    with pytest.raises(InvalidUsage, match="tidegate_x: columns of the stream must not begin"):
        job.stream(df, event_time="t", substream="k").windows(10).agg(rows=windows.count())


def check_null_event_times(stream: Stream) -> None:
    """A row without an event time belongs to no window."""
    kept = stream.windows(10).agg(rows=windows.count()).null_event_times("on_time").foreach_batch(print)
    with pytest.raises(InvalidUsage, match="in no window"):
        kept.start(queryName="q", checkpointLocation="/nowhere")


def native_stream(kind: DataType = TIME, **more: Any) -> DataFrame:
    return stream_of_types({"k": TEXT, "t": kind}, **more)


@pytest.mark.parametrize(
    ("df", "says"),
    [
        (native_stream(metadata={"t": {"spark.watermarkDelayMs": 1000}}), "has a watermark of Spark's own already"),
        (native_stream(LONG), r"timestamp_millis\(...\)"),
        (native_stream(TimestampNTZType()), r"cast\('timestamp'\)"),
        (stream_of_types({"k": TEXT, "t": TIME, "Tidegate_x": LONG}), "must not begin with 'tidegate_'"),
        (stream_of_types({"t": TIME}), "substream='k' is no column"),
        (native_stream(streaming=False), "is for a stream"),
    ],
)
def test_streams_that_spark_would_not_follow(job: Job, df: DataFrame, says: str) -> None:
    """Spark would accept them and then drop rows, or keep state for ever."""
    with pytest.raises(InvalidUsage, match=says):
        job.with_watermark(df, event_time="t", substream="k", queryName="q", checkpointLocation="/nowhere")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"windows": timedelta(0)}, "windows must be 1 ms or more"),
        ({"windows": 10}, "windows must be a timedelta"),
        ({"slide": TEN}, "slide needs windows"),
        ({"windows": TEN, "slide": 2 * TEN}, "slide is 1 or more, and its size or less"),
        ({"queryName": "a/b"}, "queryName 'a/b' must be"),
        ({"queryName": None}, r"with_watermark\(\) needs queryName"),
        ({"checkpointLocation": None}, r"with_watermark\(\) needs checkpointLocation"),
        ({"declare": "HNL"}, r"Write \['HNL'\]"),
    ],
)
def test_arguments_of_native_that_cannot_work(job: Job, more: dict[str, Any], says: str) -> None:
    """Each error says which values are possible."""
    options = {"event_time": "t", "substream": "k", "queryName": "q", "checkpointLocation": "/nowhere"} | more
    with pytest.raises(InvalidUsage, match=says):
        job.with_watermark(native_stream(), **options)
