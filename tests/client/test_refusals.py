"""Each method of streams and windows refuses its own invalid arguments."""

from collections.abc import Callable
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
    """Return a job whose coordinator is never called."""
    return connect("http://127.0.0.1:1", job="j")


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"event_time": "time", "substream": "k"}, "not a column of the stream; its columns are k, t, d, m, at, raw"),
        ({"event_time": "d", "substream": "k"}, "is of type date"),
        ({"event_time": object(), "substream": "k"}, "must be the name of a column, like 'departed_at'"),
        ({"event_time": ["t"], "substream": "k"}, "must be the name of a column, like 'departed_at'"),
        ({"event_time": "t", "substream": object()}, "must be the name of a column, a list of names"),
        ({"event_time": "t", "substream": ["k", 1]}, "must be the name of a column, a list of names"),
        ({"event_time": "t", "substream": "m"}, "is of type map"),
        ({"event_time": "t", "substream": ["k", "n"]}, "substream='n' is not a column"),
        ({"event_time": "t", "substream": []}, "pass substream=None"),
        ({"event_time": "t", "substream": "m.x"}, "the struct's field to a column first, with withColumn"),
        ({"event_time": "t", "substream": "at"}, "depends on the time zone of the session; cast it to a long"),
        ({"event_time": "t", "substream": "raw"}, "is of type binary: its values may not be text; convert it with hex"),
    ],
)
def test_invalid_columns_are_refused(job: Job, columns: Any, says: str) -> None:
    """The error names the argument and the column."""
    more = {"d": DateType(), "m": MapType(TEXT, TEXT), "at": TIME, "raw": BinaryType()}
    df = stream_of_types({"k": TEXT, "t": LONG, **more})
    with pytest.raises(InvalidUsage, match=says):
        job.stream(df, **columns)


def test_invalid_options_of_a_stream_are_refused(job: Job) -> None:
    stream = job.stream(stream_of_types({"k": TEXT, "t": LONG}), event_time="t", substream="k")
    with pytest.raises(InvalidUsage, match="'auto', 'executor', 'driver', not 'drivers'"):
        stream.reporting("drivers")  # type: ignore[arg-type]
    with pytest.raises(InvalidUsage, match=r"null_event_times\(\) takes one of 'late', 'on_time'"):
        stream.null_event_times("dropped")  # type: ignore[arg-type]
    with pytest.raises(InvalidUsage, match="foreach_batch"):
        stream.start(queryName="q", checkpointLocation="/nowhere")
    with pytest.raises(InvalidUsage, match="queryName"):
        stream.foreach_batch(print).start(queryName="a b", checkpointLocation="/nowhere")
    with pytest.raises(InvalidUsage, match=r"start\(\) needs queryName"):
        stream.foreach_batch(print).start(checkpointLocation="/nowhere")
    with pytest.raises(InvalidUsage, match=r"start\(\) needs checkpointLocation"):
        stream.foreach_batch(print).start(queryName="q")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda stream: stream.foreach_batch("write"), "takes a function, not 'write'"),
        (lambda stream: stream.declare(["a", "b"]), "is not a substream"),
        (lambda stream: stream.complete_batches("yes"), r"complete_batches\(\) takes True or False"),
        (lambda stream: stream.persist(None), r"persist\(\) takes True or False"),
        (lambda stream: stream.tuning(report_tasks="4"), "must be whole numbers"),
        (lambda stream: stream.tuning(heartbeat_ms=0.5), "must be whole numbers"),
        (lambda stream: stream.trigger(), r"trigger\(\) takes one of availableNow, .*got none"),
        (lambda stream: stream.trigger(available_now=True), r"trigger\(\) takes one of availableNow, .*available_now"),
        (lambda stream: stream.option(1, 2), "the name of an option as a text"),
        (lambda stream: stream.option("checkpointLocation", "c"), r"pass start\(checkpointLocation=...\)"),
        (lambda stream: stream.start(outputMode="update"), r"start\(\) takes no outputMode: remove it"),
        (lambda stream: stream.start(queryName=5, checkpointLocation="c"), "queryName 5 must be"),
        (lambda stream: stream.start(queryName="q", checkpointLocation=5), "must be a path as a text or a PathLike"),
        (lambda stream: stream.start(queryName="q", checkpointLocation=b"c"), "must be a path as a text or a PathLike"),
        (lambda stream: stream.windows(10).agg(object(), rows=windows.count()), "names of columns to group by"),
        (
            lambda stream: stream.windows(10).agg(rows=windows.count()).keep_windows_in("state"),
            r"a store with write\(\), read\(\) and delete\(\)",
        ),
    ],
)
def test_arguments_of_another_type_are_refused(job: Job, call: Callable[[Any], Any], says: str) -> None:
    """Each method refuses them at once, not when the query has started."""
    stream = job.stream(stream_of_types({"k": TEXT, "t": LONG}), event_time="t", substream="k")
    with pytest.raises(InvalidUsage, match=says):
        call(stream)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("foreachBatch", r"call foreach_batch\(function\)"),
        ("queryName", r"pass the name to start\(queryName=...\)"),
        ("outputMode", "remove it"),
        ("writeStream", r"call foreach_batch\(function\) on the stream itself"),
        ("groupBy", "apply it to the DataFrame before"),
    ],
)
def test_a_method_of_spark_says_what_replaces_it(job: Job, name: str, says: str) -> None:
    """A query of Spark is converted line by line. A method of Spark must not end in a bare AttributeError."""
    stream = job.stream(stream_of_types({"k": TEXT, "t": LONG}), event_time="t", substream="k")
    with pytest.raises(InvalidUsage, match=f"A coordinated stream has no {name}: {says}"):
        getattr(stream, name)
    assert not hasattr(stream, name)
    with pytest.raises(AttributeError, match="has no attribute 'for_each'"):
        _ = stream.for_each  # type: ignore[attr-defined]


@pytest.mark.parametrize("df", [None, "flights", stream_of_types({"k": TEXT, "t": TIME}, streaming=False)])
def test_only_streams_are_coordinated(job: Job, df: Any) -> None:
    """Spark itself refuses a batch DataFrame only after the client has created the job."""
    with pytest.raises(InvalidUsage, match=r"stream\(\) (takes|needs) a streaming DataFrame"):
        job.stream(df, event_time="t", substream="k")
    with pytest.raises(InvalidUsage, match=r"with_watermark\(\) (takes|needs) a streaming DataFrame"):
        job.with_watermark(df, event_time="t", substream="k", queryName="q", checkpointLocation="/nowhere")


def test_invalid_windows_are_refused(job: Job) -> None:
    stream = job.stream(stream_of_types({"k": TEXT, "t": LONG}), event_time="t", substream="k")
    with pytest.raises(InvalidUsage, match="size must be a whole number, 1 or more, in the unit of the event times"):
        stream.windows(timedelta(seconds=1))
    with pytest.raises(InvalidUsage, match="slide must be 1 or more and at most the size"):
        stream.windows(10, 20)
    with pytest.raises(InvalidUsage, match="longer slide"):
        stream.windows(10_000, 1)
    with pytest.raises(InvalidUsage, match="at least one named aggregate"):
        stream.windows(10).agg("k")
    with pytest.raises(InvalidUsage, match=r"rows is .*; it must be an aggregate of tidegate_spark.windows"):
        stream.windows(10).agg(rows="count(*)")  # type: ignore[arg-type]
    with pytest.raises(InvalidUsage, match=r"agg\(\) names q, not a column of the stream"):
        stream.windows(10).agg("q", rows=windows.count())
    with pytest.raises(InvalidUsage, match="k: two columns"):
        stream.windows(10).agg("k", K=windows.count())
    with pytest.raises(InvalidUsage, match="needs windows: call"):
        stream.allowed_lateness(10)
    check_reserved_names(job)
    check_null_event_times(stream)


@pytest.mark.parametrize("aggregate", [windows.sum, windows.min, windows.max, windows.avg, windows.count])
def test_an_aggregate_takes_the_name_of_a_column(aggregate: Any) -> None:
    """Otherwise Spark fails in the first batch."""
    with pytest.raises(InvalidUsage, match="5 must be the name of a column"):
        aggregate(5)
    with pytest.raises(InvalidUsage, match=r"merged\(\) takes functions, not 'sum'"):
        windows.merged("sum", "sum")  # type: ignore[arg-type]


def check_reserved_names(job: Job) -> None:
    """Check that a column with the reserved prefix is refused."""
    df = stream_of_types({"k": TEXT, "t": LONG, "tidegate_x": LONG})
    with pytest.raises(InvalidUsage, match="tidegate_x: columns of the stream must not begin"):
        job.stream(df, event_time="t", substream="k").windows(10).agg(rows=windows.count())


def check_null_event_times(stream: Stream) -> None:
    """Check that rows without an event time cannot be on time with windows."""
    kept = stream.windows(10).agg(rows=windows.count()).null_event_times("on_time").foreach_batch(print)
    with pytest.raises(InvalidUsage, match="in no window"):
        kept.start(queryName="q", checkpointLocation="/nowhere")


def native_stream(kind: DataType = TIME, **more: Any) -> DataFrame:
    return stream_of_types({"k": TEXT, "t": kind}, **more)


@pytest.mark.parametrize(
    ("df", "says"),
    [
        (native_stream(metadata={"t": {"spark.watermarkDelayMs": 1000}}), "t already has a watermark of Spark"),
        (native_stream(LONG), r"timestamp_millis\(...\)"),
        (native_stream(TimestampNTZType()), r"cast\('timestamp'\)"),
        (stream_of_types({"k": TEXT, "t": TIME, "Tidegate_x": LONG}), "must not begin with 'tidegate_'"),
        (stream_of_types({"t": TIME}), "substream='k' is not a column"),
    ],
)
def test_unsupported_native_streams_are_refused(job: Job, df: DataFrame, says: str) -> None:
    """Streams are refused if Spark would accept them and then drop rows or keep state forever."""
    with pytest.raises(InvalidUsage, match=says):
        job.with_watermark(df, event_time="t", substream="k", queryName="q", checkpointLocation="/nowhere")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"windows": timedelta(0)}, "windows must be 1 ms or more"),
        ({"windows": 10}, "windows must be a timedelta"),
        ({"slide": TEN}, "slide needs windows"),
        ({"duplicates_within": 10}, "duplicates_within must be a timedelta"),
        ({"windows": TEN, "slide": 2 * TEN}, "slide must be 1 or more and at most the size"),
        ({"queryName": "a/b"}, "queryName 'a/b' must be"),
        ({"queryName": None}, r"with_watermark\(\) needs queryName"),
        ({"checkpointLocation": None}, r"with_watermark\(\) needs checkpointLocation"),
        ({"window": TEN}, r"window: unknown option of with_watermark\(\); expected one of windows, slide"),
        ({"declare": "HNL"}, r"write \['HNL'\]"),
    ],
)
def test_invalid_arguments_of_native_are_refused(job: Job, more: dict[str, Any], says: str) -> None:
    options = {"event_time": "t", "substream": "k", "queryName": "q", "checkpointLocation": "/nowhere"} | more
    with pytest.raises(InvalidUsage, match=says):
        job.with_watermark(native_stream(), **options)
