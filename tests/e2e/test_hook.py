"""The hook on a real Spark and a real coordinator: every row accounted for, whatever happens in between."""

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import tidegate_spark
from tests.e2e.conftest import Input
from tidegate_spark import Batch, Committed, Gate, InvalidUsage, limiting_lag
from tidegate_spark.testing import CoordinatorProcess

SCHEMA = "k string, t long"
LAG = timedelta(seconds=10)


def rows(*pairs: tuple[str | None, int | None]) -> list[dict[str, Any]]:
    return [{"k": k, "t": t} for k, t in pairs]


def until(reached: Callable[[], bool], what: str, timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.1)


class Sink:
    """Keeps what the user's functions were given, by batch."""

    def __init__(self) -> None:
        self.on_time: dict[int, list[tuple[str | None, int | None]]] = {}
        self.late: dict[int, list[tuple[str | None, int | None]]] = {}
        self.pins: dict[int, int | None] = {}
        self.committed: list[Committed] = []

    def write(self, df: DataFrame, batch: Batch) -> None:
        self.on_time[int(batch)] = sorted(((row.k, row.t) for row in df.collect()), key=str)
        self.pins[int(batch)] = batch.pin

    def write_late(self, df: DataFrame, batch: Batch) -> None:
        self.late[int(batch)] = sorted(((row.k, row.t) for row in df.collect()), key=str)


@pytest.fixture
def gate(coordinator: CoordinatorProcess, job: str) -> Gate:
    return tidegate_spark.connect(coordinator.url, job=job, rules=limiting_lag(LAG))


def test_every_row_is_on_time_late_or_without_an_event_time(
    spark: SparkSession, source: Input, gate: Gate, tmp_path: Path
) -> None:
    """A row that is in none of the three was lost; a row in two was counted twice."""
    source.write(*rows(("a", 100_000), ("b", 40_000), ("a", 99_000), ("", 60_000), (None, 60_000)))
    source.write(*rows(("a", 25_000), ("b", 29_999), ("b", 30_000), ("c", 5), ("a", None), (None, 29_000)))
    source.write(*rows(("a", None), ("d", None)))
    sink = Sink()
    query = (
        gate.stream(source.stream(spark, SCHEMA), event_time="t", substream="k")
        .foreach_batch(sink.write)
        .late_to(sink.write_late)
        .on_commit(sink.committed.append)
        .trigger(availableNow=True)
        .start(queryName="q", checkpointLocation=str(tmp_path / "checkpoint"))
    )
    assert query.awaitTermination(120)
    assert sink.pins == {0: None, 1: 30_000, 2: 30_000}
    assert len(sink.on_time[0]) == 5
    assert sink.on_time[1] == [("b", 30_000)]
    assert sink.late[1] == [("a", 25_000), ("a", None), ("b", 29_999), ("c", 5), (None, 29_000)]
    assert sink.late[2] == [("a", None), ("d", None)]
    assert [(c.rows, c.on_time, c.late, c.null_event_time) for c in sink.committed] == [
        (5, 5, 0, 0), (6, 1, 4, 1), (2, 0, 0, 2),
    ]  # fmt: skip
    assert gate.status()["rows"] == {"on_time": 6, "updated": 0, "late": 4, "null_event_time": 3, "future": 0}
    table = {row["substream"]: row for row in gate.substreams()}
    assert table.keys() == {"a", "b", "c", "(empty)", "(null)"}
    assert (table["b"]["top"], table["b"]["rows"]["late"], table["b"]["reported"]) == (40_000, 1, 3)
    holder = sink.committed[-1].holder
    assert holder is not None
    assert (holder.substream, holder.reason) == ("c", "slow")


def test_rows_without_an_event_time_may_go_with_those_on_time(
    spark: SparkSession, source: Input, gate: Gate, tmp_path: Path
) -> None:
    """They are counted as a class of their own wherever they go; the late function is not called for nothing."""
    source.write(*rows(("a", 100_000), ("a", None)))
    sink = Sink()
    query = (
        gate.stream(source.stream(spark, SCHEMA), event_time="t", substream="k")
        .foreach_batch(sink.write)
        .late_to(sink.write_late)
        .null_event_times("on_time")
        .trigger(availableNow=True)
        .start(queryName="q", checkpointLocation=str(tmp_path / "checkpoint"))
    )
    assert query.awaitTermination(120)
    assert (sink.on_time, sink.late) == ({0: [("a", 100_000), ("a", None)]}, {})
    assert gate.status()["rows"] == {"on_time": 1, "updated": 0, "late": 0, "null_event_time": 1, "future": 0}


def test_a_job_that_was_lost_is_created_again_from_the_users_rules(
    spark: SparkSession, source: Input, gate: Gate, tmp_path: Path
) -> None:
    """The declared substreams hold again, and the pin beside the checkpoint still judges the replayed rows."""
    source.write(*rows(("a", 100_000)))
    source.write(*rows(("a", 95_000)))
    given = []

    def write(df: DataFrame, batch: Batch) -> None:
        given.append((int(batch), batch.pin, [row.t for row in df.collect()]))
        if len(given) == 2:
            gate.coordinator._job("DELETE", "")
            raise RuntimeError("and the job is gone")

    def start() -> Any:
        stream = gate.stream(source.stream(spark, SCHEMA), event_time="t", substream="k").declare("a")
        return (
            stream.foreach_batch(write)
            .trigger(availableNow=True)
            .start(queryName="q", checkpointLocation=str(tmp_path / "checkpoint"))
        )

    with pytest.raises(StreamingQueryException, match="the job is gone"):
        start().awaitTermination(120)
    assert start().awaitTermination(120)
    assert given[1:] == [(1, 90_000, [95_000]), (1, 90_000, [95_000])]
    assert [row["substream"] for row in gate.substreams()] == ["a"]


def test_a_query_that_starts_over_is_warned(
    spark: SparkSession, source: Input, gate: Gate, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new checkpoint reads old rows again, which the job has long counted as complete."""
    source.write(*rows(("a", 100_000)))
    source.write(*rows(("a", 101_000)))
    sinks = []
    for checkpoint in ("one", "two"):
        sinks.append(Sink())
        query = (
            gate.stream(source.stream(spark, SCHEMA), event_time="t", substream="k")
            .foreach_batch(sinks[-1].write)
            .trigger(availableNow=True)
            .start(queryName="q", checkpointLocation=str(tmp_path / checkpoint))
        )
        assert query.awaitTermination(120)
        assert ("has run on another checkpoint before" in caplog.text) == (checkpoint == "two")
    assert sinks[1].pins[0] == 91_000


@pytest.mark.parametrize(
    ("kind", "written"),
    [("timestamp", "2013-01-01T00:00:00Z"), ("timestamp_ntz", "2013-01-01T00:00:00"), ("long", 1_356_998_400_000)],
)
def test_an_event_time_is_the_same_in_every_type(
    spark: SparkSession, source: Input, gate: Gate, tmp_path: Path, kind: str, written: object
) -> None:
    """A session's time zone must not shift a watermark by five hours."""
    source.write({"k": "a", "t": written})
    query = (
        gate.stream(source.stream(spark, f"k string, t {kind}"), event_time="t", substream="k")
        .foreach_batch(lambda df, batch: df.collect())
        .persisted(False)
        .trigger(availableNow=True)
        .start(queryName="q", checkpointLocation=str(tmp_path / "checkpoint"))
    )
    assert query.awaitTermination(120)
    assert gate.status()["watermark"] == 1_356_998_400_000 - 10_000


def test_a_failed_batch_is_judged_again_as_it_was(
    spark: SparkSession, source: Input, gate: Gate, tmp_path: Path
) -> None:
    """A replay by a newer watermark would call rows late that were written as on time before the crash."""
    source.write(*rows(("a", 100_000)))
    source.write(*rows(("a", 95_000), ("a", 80_000)))
    sink, given = Sink(), []

    def write(df: DataFrame, batch: Batch) -> None:
        sink.write(df, batch)
        given.append((int(batch), batch.pin, sink.on_time[int(batch)], batch.replayed))
        if int(batch) == 1 and not batch.replayed:
            raise RuntimeError("the disk is full")

    def start() -> Any:
        return (
            gate.stream(source.stream(spark, SCHEMA), event_time="t", substream="k")
            .foreach_batch(write)
            .late_to(sink.write_late)
            .trigger(availableNow=True)
            .start(queryName="q", checkpointLocation=str(tmp_path / "checkpoint"))
        )

    with pytest.raises(StreamingQueryException, match="the disk is full"):
        start().awaitTermination(120)
    # Meanwhile the job goes on: another reporter moves C far ahead. W waits for the open batch.
    gate.coordinator._job("POST", ":report", {"substreams": ["x"], "event_times": [900_000]})
    gate.coordinator._job("POST", "/substreams:done", {"query": "q", "names": ["a"]})
    assert (gate.status()["coalesced"], gate.status()["watermark"]) == (890_000, 90_000)
    assert gate.status()["holder"]["reason"] == "open_batch"
    assert start().awaitTermination(120)
    assert given[1:] == [(1, 90_000, [("a", 95_000)], False), (1, 90_000, [("a", 95_000)], True)]
    assert sink.late[1] == [("a", 80_000)]
    assert gate.status()["watermark"] == 890_000
    assert gate.status()["rows"] == {"on_time": 2, "updated": 0, "late": 1, "null_event_time": 0, "future": 0}


def test_a_quiet_query_lets_its_substreams_fall_idle(
    spark: SparkSession, source: Input, coordinator: CoordinatorProcess, job: str, tmp_path: Path
) -> None:
    """Without heartbeats the last windows of a stream that pauses would stay open for ever."""
    gate = tidegate_spark.connect(
        coordinator.url, job=job, rules=limiting_lag(LAG, idle_timeout=timedelta(milliseconds=1500))
    )
    source.write(*rows(("a", 100_000), ("b", 40_000)))
    query = (
        gate.stream(source.stream(spark, SCHEMA), event_time="t", substream="k")
        .foreach_batch(lambda df, batch: df.collect())
        .tuned(heartbeat_ms=200)
        .start(queryName="q", checkpointLocation=str(tmp_path / "checkpoint"))
    )
    try:
        until(lambda: gate.status()["watermark"] == 90_000, "both idle, so the lead goes out")
        assert gate.status()["substreams"] == {"active": 0, "idle": 2, "done": 0, "all_idle": True}
        source.write(*rows(("b", 41_000)))
        until(lambda: gate.status()["rows"]["late"] == 1, "the late row of the one that woke")
    finally:
        query.stop()
    assert gate.status()["watermark"] == 90_000


def test_the_query_waits_for_a_coordinator_that_is_away(spark: SparkSession, source: Input, tmp_path: Path) -> None:
    """Ten seconds of silence by the coordinator are no silence of the substreams."""
    sink = Sink()
    with CoordinatorProcess(tmp_path / "coordinator") as process:
        rules = limiting_lag(LAG, idle_timeout=timedelta(seconds=6))
        gate = tidegate_spark.connect(process.url, job="j", rules=rules)
        query = (
            gate.stream(source.stream(spark, SCHEMA), event_time="t", substream="k")
            .foreach_batch(sink.write)
            .on_commit(sink.committed.append)
            .start(queryName="q", checkpointLocation=str(tmp_path / "checkpoint"))
        )
        try:
            source.write(*rows(("a", 100_000), ("b", 40_000)))
            until(lambda: len(sink.committed) == 1, "the first batch")
            process.stop(kill=True)
            source.write(*rows(("a", 110_000)))
            time.sleep(10)
            assert query.isActive
            assert len(sink.committed) == 1
            process.start()
            until(lambda: len(sink.committed) == 2, "the batch that waited")
        finally:
            query.stop()
        assert gate.status()["substreams"] == {"active": 2, "idle": 0, "done": 0, "all_idle": False}
        assert gate.status()["watermark"] == 30_000
        assert sink.pins[1] == 30_000


def test_after_the_patience_the_query_fails_and_says_so(spark: SparkSession, source: Input, tmp_path: Path) -> None:
    """A query that waits for ever looks like one that works."""
    source.write(*rows(("a", 100_000)))
    with CoordinatorProcess(tmp_path / "coordinator") as process:
        gate = tidegate_spark.connect(
            process.url, job="j", rules=limiting_lag(LAG), on_outage=timedelta(milliseconds=300)
        )
        stream = gate.stream(source.stream(spark, SCHEMA), event_time="t", substream="k").trigger(availableNow=True)

        def stop_in_the_middle(df: DataFrame, batch: Batch) -> None:
            process.stop()

        query = stream.foreach_batch(stop_in_the_middle).start(queryName="q", checkpointLocation=str(tmp_path / "c"))
        with pytest.raises(StreamingQueryException, match="Nothing is lost"):
            query.awaitTermination(120)
        process.start()
        sink = Sink()
        query = stream.foreach_batch(sink.write).start(queryName="q", checkpointLocation=str(tmp_path / "c"))
        assert query.awaitTermination(120)
        assert sink.on_time == {0: [("a", 100_000)]}
        assert gate.status()["rows"]["on_time"] == 1


def test_columns_that_cannot_be_used_are_refused_before_the_start(
    spark: SparkSession, source: Input, gate: Gate
) -> None:
    """The line that names them is the one that is wrong."""
    df = source.stream(spark, "k string, t long, d date, m map<string,string>")
    for columns, match in (
        ({"event_time": "time", "substream": "k"}, "no column of the stream; it has: k, t, d, m"),
        ({"event_time": "d", "substream": "k"}, "is of type date"),
        ({"event_time": "t", "substream": "m"}, "is of type map"),
    ):
        with pytest.raises(InvalidUsage, match=match):
            gate.stream(df, **columns)
    stream = gate.stream(df, event_time="t", substream="k")
    with pytest.raises(InvalidUsage, match="foreach_batch"):
        stream.start(queryName="q", checkpointLocation="/nowhere")
    with pytest.raises(InvalidUsage, match="queryName"):
        stream.foreach_batch(print).start(queryName="a b", checkpointLocation="/nowhere")


def test_a_failing_report_fails_the_batch_with_the_coordinators_words(
    spark: SparkSession, source: Input, gate: Gate, tmp_path: Path
) -> None:
    """An event time in microseconds of year 300000, or a name of 300 bytes, must not pass in silence."""
    source.write(*rows(("x" * 300, 100_000)))
    query = (
        gate.stream(source.stream(spark, SCHEMA), event_time="t", substream="k")
        .foreach_batch(lambda df, batch: df.collect())
        .trigger(availableNow=True)
        .start(queryName="q", checkpointLocation=str(tmp_path / "checkpoint"))
    )
    with pytest.raises(StreamingQueryException, match="name 0 must be 1 to 200 bytes long"):
        query.awaitTermination(120)
    assert gate.status()["watermark"] is None
