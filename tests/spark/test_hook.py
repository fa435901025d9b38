"""The hook with a real Spark and a real coordinator: options for rows, types of event times, logs and errors."""

import logging
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.support.local import LocalCoordinator
from tests.support.streams import LAG, Sink, rows, to_the_end
from tests.support.waiting import until
from tidegate_spark import Committed, Job, limiting_lag
from tidegate_spark.protocol import row_warnings
from tidegate_spark.testing import FileBatches


def test_rows_without_an_event_time_can_be_passed_as_on_time(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str
) -> None:
    """Rows without an event time keep their class. The late function is not called for a batch without late rows."""
    source.add(*rows(("a", 100_000), ("a", None)))
    sink = Sink()
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k"))
    to_the_end(stream.null_event_times("on_time"), checkpoint)
    assert (sink.on_time, sink.late) == ({0: [("a", 100_000), ("a", None)]}, {})
    assert job.status()["rows"] == {"on_time": 1, "updated": 0, "late": 0, "null_event_time": 1, "future": 0}


def test_spark_accepts_the_batch_id_in_a_row(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str
) -> None:
    """Spark takes a long only from an int, not from a subclass of it. A table of batches often has the id as column."""
    source.add(*rows(("a", 100_000), ("b", 100_000)))
    source.add(*rows(("a", 120_000), ("b", 80_000)))
    source.add(*rows(("b", 100_000)))
    audit: list[tuple[str, int, int]] = []

    def record(kind: str) -> Callable[[DataFrame, int], None]:
        def function(df: DataFrame, batch_id: int) -> None:
            row = spark.createDataFrame([(kind, batch_id, df.count())], "kind string, batch long, n long")
            audit.extend(tuple(found) for found in row.collect())

        return function

    stream = job.stream(source.stream(spark), event_time="t", substream="k")
    to_the_end(stream.foreach_batch(record("on time")).late_output(record("late")), checkpoint)
    assert audit == [("on time", 0, 2), ("on time", 1, 1), ("late", 1, 1), ("on time", 2, 1)]


@pytest.mark.parametrize("goes", ["on_time", "late"])
def test_a_broken_clock_makes_no_other_row_late(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str, goes: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A row from the year 2286 must not move the watermark or be lost. The log names its substream."""
    broken = 9_999_999_999_999
    source.add(*rows(("a", 100_000), ("a", broken), ("b", 100_000), ("c", broken)))
    source.add(*rows(("a", 90_000), ("b", 89_999), ("b", 100_000)))
    sink = Sink()
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k"))
    to_the_end(stream.future_event_times(goes), checkpoint)
    true, false = [("a", 100_000), ("b", 100_000)], [("a", broken), ("c", broken)]
    assert sink.on_time[0] == (sorted(true + false) if goes == "on_time" else true)
    assert sink.late == ({} if goes == "on_time" else {0: false}) | {1: [("b", 89_999)]}
    assert sink.pinned_watermarks[1] == 90_000
    assert [committed.future for committed in sink.committed] == [2, 0]
    assert job.status()["rows"] == {"on_time": 4, "updated": 0, "late": 1, "null_event_time": 0, "future": 2}
    assert {row["substream"]: row["future_rows"] for row in job.substreams()} == {"a": 1, "b": 0}
    assert "rows of a, c have event times too far ahead of the clock" in caplog.text


def test_warnings_of_rows_do_not_repeat_in_every_batch(
    spark: SparkSession,
    source: FileBatches,
    job: Job,
    checkpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A source with a wrong unit or a wrong clock would fill the log. The end of the query logs the totals."""
    monkeypatch.setattr(row_warnings, "INTERVAL_S", math.inf)
    ahead = 3_600_000 + 1000 * int(time.time())
    batches = [
        rows(("a", 100_000)),
        rows(("a", ahead)),
        *[rows(("a", number), ("b", None), ("c", 2**53)) for number in range(2)],
    ]
    for batch in batches:
        source.add(*batch)
    stream = job.stream(source.stream(spark), event_time="t", substream="k").foreach_batch(lambda df, batch: None)
    to_the_end(stream, checkpoint)
    until(lambda: "3: rows of c" in caplog.text, "the totals are logged", 60)
    messages = [record.getMessage().partition("/q ")[2] for record in caplog.records]
    assert [message for message in messages if "dropped" in message or "rows of" in message] == [
        "2: dropped 1 late, 1 null event time rows of a, b. To keep such rows, call late_output().",
        "2: rows of c have event times too far ahead of the clock. They move no watermark. Check the sources' "
        "clocks and max_future_skew.",
        "3: dropped 1 late, 1 null event time rows of a, b. To keep such rows, call late_output().",
        "3: rows of c have event times too far ahead of the clock. They move no watermark. Check the sources' "
        "clocks and max_future_skew.",
    ]
    assert caplog.text.count("in 1970, until 1970-01-01 00:01:40 UTC") == 1
    assert caplog.text.count("ahead of the clock: correct event times below it are late") == 1


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("timestamp", ["2013-07-01T00:00:00Z", "2013-07-01T00:00:00.0019Z"]),
        ("timestamp_ntz", ["2013-07-01T00:00:00", "2013-07-01T00:00:00.0019"]),
        ("long", [1_372_636_800_000, 1_372_636_800_001]),
    ],
)
def test_an_event_time_is_the_same_in_every_type(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str, kind: str, written: list[object]
) -> None:
    """The time zone of the session must not shift event times."""
    source = FileBatches(source.directory, f"k string, t {kind}")
    source.add(*({"k": "a", "t": time} for time in written))
    stream = job.stream(source.stream(spark), event_time="t", substream="k").foreach_batch(lambda df, batch_id: None)
    to_the_end(stream.persist(False), checkpoint)
    assert job.status()["watermark"] == 1_372_636_800_001 - 10_000


def test_timestamps_before_the_epoch_are_rounded_down(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str
) -> None:
    """Half a millisecond before 1970 is below a pinned watermark of 0."""
    source = FileBatches(source.directory, "k string, t timestamp_ntz")
    source.add({"k": "a", "t": "1970-01-01T00:00:10"})
    source.add({"k": "a", "t": "1969-12-31T23:59:59.9995"}, {"k": "a", "t": "1970-01-01T00:00:00"})
    stream = job.stream(source.stream(spark), event_time="t", substream="k").foreach_batch(lambda df, batch_id: None)
    to_the_end(stream, checkpoint)
    assert job.status()["rows"]["late"] == 1


def test_a_failing_on_commit_function_does_not_fail_the_query(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An unavailable metrics system must not make Spark repeat batches."""
    source.add(*rows(("a", 100_000)))
    source.add(*rows(("a", 101_000)))
    sink = Sink()

    def report(committed: Committed) -> None:
        raise ConnectionError("no metrics system")

    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k"))
    to_the_end(stream.on_commit(report), checkpoint)
    assert sink.on_time == {0: [("a", 100_000)], 1: [("a", 101_000)]}
    # PySpark may format the text of all records as JSON.
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["no metrics system"] * 2


def test_an_account_that_is_too_large_is_refused_before_the_function_runs(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str
) -> None:
    """If the commit were refused, the function would run again in every replay."""
    job = own.job(config=limiting_lag(LAG))
    source.add(*rows(*((f"{number:0190}", 100_000) for number in range(25_000))))
    called = []
    stream = job.stream(source.stream(spark), event_time="t", substream="k")
    with pytest.raises(StreamingQueryException, match=r"25,000 substreams.*Choose a coarser substream"):
        to_the_end(stream.foreach_batch(lambda df, batch_id: called.append(batch_id)), checkpoint)
    assert not called


def test_any_number_of_substreams_can_be_declared(own: LocalCoordinator) -> None:
    """The client splits the names into several calls."""
    job = own.job(config=limiting_lag(LAG))
    job.ensure_job()
    job.declare("q", [f"{number:0190}" for number in range(30_000)])
    assert job.status()["substreams"]["active"] == 30_000


def test_logs_and_progress_lines_describe_a_batch(
    spark: SparkSession,
    source: FileBatches,
    job: Job,
    checkpoint: str,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Log records name the query and the batch, and dropped rows are logged."""
    source = FileBatches(source.directory, "k string, t timestamp")
    source.add({"k": "a", "t": "2013-01-01T12:00:00Z"})
    source.add({"k": "a", "t": "2013-01-01T11:59:49Z"}, {"k": "b", "t": None})
    sink = Sink()
    stream = job.stream(source.stream(spark), event_time="t", substream="k").foreach_batch(lambda df, batch_id: None)
    with caplog.at_level(logging.INFO, "tidegate"):
        to_the_end(stream.on_commit(sink.committed.append).show_progress(), checkpoint, "departures")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("departures 0: 1 rows; watermark 2013-01-01 11:59:50 UTC (")
    assert lines[0].endswith("behind the clock), held by a")
    assert lines[1].startswith("departures 1: 2 rows, 1 late, 1 without event time; watermark 2013-01-01 11:59:50 UTC")
    logged_for_query = [record for record in caplog.records if getattr(record, "query", None) == "departures"]
    assert {(record.__dict__["job"], record.levelname) for record in logged_for_query} == {
        (job.connection.job, "INFO"),
        (job.connection.job, "WARNING"),
    }
    dropped = next(
        record for record in logged_for_query if "dropped 1 late, 1 null event time rows of a, b" in record.message
    )
    assert dropped.__dict__["batch"] == 1
    committed = [record for record in logged_for_query if "tidegate.watermark" in record.__dict__]
    assert [record.__dict__["tidegate.late_rows"] for record in committed] == [0, 1]
    metrics = sink.committed[1].metrics()
    assert metrics["tidegate.watermark"] == 1_357_041_590_000 == job.metrics()["tidegate.watermark"]
    assert metrics["tidegate.late_rows"] == job.metrics()["tidegate.late_rows"] == 1
    assert (metrics["tidegate.watermark_lag_ms"] or 0) > 10 * 365 * 86_400_000


def test_a_refused_batch_is_one_line_of_the_log(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark prints the traceback of a failed batch three times. A refusal must not show inner calls of the client."""
    source.add(*rows(("a", 100_000)))
    stream = job.stream(source.stream(spark), event_time="t", substream="k").foreach_batch(lambda df, batch_id: None)
    to_the_end(stream, checkpoint)
    job.complete()
    source.add(*rows(("a", 101_000)))
    with pytest.raises(StreamingQueryException) as failed:
        to_the_end(stream, checkpoint)
    assert "job_complete" in str(failed.value)
    assert str(failed.value).count('File "') <= 4, "expected three frames of Spark and one of the hook"
    logged = [
        record.getMessage() for record in caplog.records if (record.name, record.levelname) == ("tidegate", "ERROR")
    ]
    assert len(logged) == 1
    assert "/q 1: the batch failed: The job is complete and accepts no input" in logged[0]
