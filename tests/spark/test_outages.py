"""Coordinators that are away or have lost their state, at any point of a batch: rows and results stay the same."""

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.support.api import operate
from tests.support.local import LocalCoordinator
from tests.support.points import IN_THE_FUNCTION, POINTS, watch
from tests.support.streams import LAG, Sink, kill, rows, to_the_end
from tests.support.waiting import until
from tidegate_spark import Batch, Job, JobDeleted, Stream, limiting_lag
from tidegate_spark.protocol import retry
from tidegate_spark.protocol.effects import NoAnswer, Response, Send
from tidegate_spark.protocol.retry import OnOutage, RetryPolicy
from tidegate_spark.protocol.transport import HttpTransport
from tidegate_spark.testing import FileBatches


class Outage:
    """An outage: the coordinator stops at a point of batch 1, and starts again after half a second."""

    def __init__(self, coordinator: LocalCoordinator, point: str, empties: bool) -> None:
        self.coordinator, self.point, self.empties = coordinator, point, empties
        self.restart = threading.Timer(0.5, coordinator.start)
        self.happened = False

    def reached(self, point: str, batch_id: int) -> None:
        if (point, batch_id) == (self.point, 1) and not self.happened:
            self.happened = True
            kill(self.coordinator, self.empties)
            self.restart.start()


@pytest.mark.parametrize("empties", [False, True], ids=["killed", "emptied"])
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_of_the_coordinator_changes_nothing(
    spark: SparkSession,
    source: FileBatches,
    own: LocalCoordinator,
    checkpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    empties: bool,
) -> None:
    """Pinned watermarks, rows and W are the same as without a crash. So are the counts that were not lost."""
    crash = Outage(own, point, empties)
    watch(crash.reached, monkeypatch.setattr)
    sink = Sink()

    def write(df: DataFrame, batch_id: int, batch: Batch) -> None:
        crash.reached(IN_THE_FUNCTION, batch_id)
        sink.write(df, batch_id, batch)

    job = own.job(job="j", config=limiting_lag(LAG))
    source.add(*rows(("a", 100_000), ("b", 40_000)))
    source.add(*rows(("a", 110_000), ("b", 50_000), ("b", 29_999), ("a", None)))
    source.add(*rows(("a", 40_000), ("a", 39_999), ("b", 60_000)))
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k"))
    to_the_end(stream.foreach_batch(write), checkpoint)
    crash.restart.join()
    assert crash.happened
    assert sink.pinned_watermarks == {0: None, 1: 30_000, 2: 40_000}
    assert sink.on_time == {
        0: [("a", 100_000), ("b", 40_000)],
        1: [("a", 110_000), ("b", 50_000)],
        2: [("a", 40_000), ("b", 60_000)],
    }
    assert sink.late == {1: [("a", None), ("b", 29_999)], 2: [("a", 39_999)]}
    assert [(c.on_time, c.late, c.null_event_time) for c in sink.committed] == [(2, 0, 0), (2, 1, 1), (2, 1, 0)]
    status = job.status()
    assert (status["watermark"], status["max_event_time"]) == (50_000, 110_000)
    lost = 0 if not empties else 2 if point == "after it" else 1
    kept = sink.committed[lost:]
    counted = {"on_time": sum(c.on_time for c in kept), "late": sum(c.late for c in kept)}
    assert {name: status["rows"][name] for name in counted} == counted
    assert sum(row["reported"] for row in job.substreams()) == sum(counted.values())


def test_a_lost_job_is_created_again_with_the_users_configuration(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str
) -> None:
    """The declared substreams hold the watermark again. The replay uses the pinned watermark beside the checkpoint."""
    source.add(*rows(("a", 100_000)))
    source.add(*rows(("a", 95_000)))
    given = []

    def write(df: DataFrame, batch_id: int, batch: Batch) -> None:
        given.append((batch_id, batch.watermark, [row.t for row in df.collect()]))
        if len(given) == 2:
            operate(job, "DELETE", "")
            raise RuntimeError("and the job is gone")

    stream = job.stream(source.stream(spark), event_time="t", substream="k").declare("a").foreach_batch(write)
    with pytest.raises(StreamingQueryException, match="the job is gone"):
        to_the_end(stream, checkpoint)
    to_the_end(stream, checkpoint)
    assert given[1:] == [(1, 90_000, [95_000]), (1, 90_000, [95_000])]
    assert [row["substream"] for row in job.substreams()] == ["a"]


def test_a_deleted_job_stays_deleted_until_a_query_is_started(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str
) -> None:
    """If running queries created the job again, it could not be deleted."""
    source.add(*rows(("a", 100_000)))
    stream = job.stream(source.stream(spark), event_time="t", substream="k")
    with pytest.raises(StreamingQueryException, match="job_deleted"):
        to_the_end(stream.foreach_batch(lambda df, batch_id: operate(job, "DELETE", "")), checkpoint)
    with pytest.raises(JobDeleted):
        job.status()
    sink = Sink()
    to_the_end(sink.after(stream), checkpoint)
    assert sink.on_time == {0: [("a", 100_000)]}
    assert job.status()["watermark"] == 90_000


def test_after_the_longest_outage_the_query_fails(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str
) -> None:
    """A query that waits forever would look like a working one."""
    source.add(*rows(("a", 100_000)))
    job = own.job(job="j", config=limiting_lag(LAG), on_outage=timedelta(milliseconds=300))
    stream = job.stream(source.stream(spark), event_time="t", substream="k")
    with pytest.raises(StreamingQueryException, match="Nothing is lost"):
        to_the_end(stream.foreach_batch(lambda df, batch_id: own.stop()), checkpoint)
    own.start()
    sink = Sink()
    to_the_end(sink.after(stream), checkpoint)
    assert sink.on_time == {0: [("a", 100_000)]}
    assert job.status()["rows"]["on_time"] == 1


def test_a_query_can_be_stopped_while_it_waits(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str
) -> None:
    """Spark waits for the batch function, which would otherwise retry for two hours."""
    job = own.job(job="j", config=limiting_lag(LAG), on_outage=timedelta(hours=2))
    source.add(*rows(("a", 100_000)))
    waiting = threading.Event()

    def write(df: DataFrame, batch_id: int, batch: Batch) -> None:
        own.stop()
        waiting.set()

    stream = job.stream(source.stream(spark), event_time="t", substream="k").foreach_batch(write)
    query = stream.start(queryName="q", checkpointLocation=checkpoint)
    assert waiting.wait(90)
    query.stop()
    assert not query.isActive


# -- on_outage="continue" ---------------------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let batches continue without the coordinator after half a second."""
    monkeypatch.setattr(retry, "SHORT_WAIT_S", 0.5)


def job_that_continues(own: LocalCoordinator, **limits: Any) -> Job:
    return own.job(job="j", config=limiting_lag(LAG, **limits), on_outage="continue")


@pytest.mark.usefixtures("soon")
def test_a_query_can_continue_without_its_coordinator(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str
) -> None:
    """The client uses the last pinned watermark. Later the coordinator gets all reports, and no substream is idle."""
    sink = Sink()
    job = job_that_continues(own, idle_timeout=timedelta(seconds=2))
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k")).tuning(heartbeat_ms=200)
    query = stream.start(queryName="q", checkpointLocation=checkpoint)
    try:
        source.add(*rows(("a", 100_000), ("b", 40_000)))
        until(lambda: len(sink.committed) == 1, "a batch without a watermark")
        source.add(*rows(("a", 101_000), ("b", 45_000)))
        until(lambda: len(sink.committed) == 2, "a batch with a watermark")
        own.stop()
        source.add(*rows(("a", 110_000), ("b", 32_000), ("b", 29_999)))
        until(lambda: len(sink.committed) == 3, "a batch without the coordinator")
        source.add(*rows(("a", 120_000), ("b", 70_000), ("a", None)))
        until(lambda: len(sink.committed) == 4, "another one")
        time.sleep(2.5)
        assert [committed.acknowledged for committed in sink.committed] == [True, True, False, False]
        own.start()
        until(lambda: job.status()["watermark"] == 60_000, "the backlog is reported")
        assert job.status()["substreams"]["idle"] == 0
        source.add(*rows(("a", 121_000), ("b", 71_000), ("b", 59_999)))
        until(lambda: len(sink.committed) == 5, "a batch with the coordinator")
    finally:
        query.stop()
    assert sink.pinned_watermarks == {0: None, 1: 30_000, 2: 30_000, 3: 30_000, 4: 60_000}
    assert sink.late == {2: [("b", 29_999)], 3: [("a", None)], 4: [("b", 59_999)]}
    assert job.status()["rows"] == {"on_time": 10, "updated": 0, "late": 2, "null_event_time": 1, "future": 0}
    assert sum(row["reported"] for row in job.substreams()) == 12
    assert sink.committed[4].acknowledged


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("empties", [False, True], ids=["killed", "emptied"])
def test_the_backlog_outlives_the_driver(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str, empties: bool
) -> None:
    """A run that ended without the coordinator leaves a backlog. The next run reports it before its first batch."""
    sink = Sink()
    job = job_that_continues(own)
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k"))
    source.add(*rows(("a", 100_000), ("b", 40_000)))
    source.add(*rows(("b", 45_000)))
    to_the_end(stream, checkpoint)
    kill(own, empties)
    source.add(*rows(("a", 105_000), ("b", 34_999), ("b", 60_000)))
    source.add(*rows(("a", 106_000)))
    to_the_end(stream, checkpoint)
    own.start()
    source.add(*rows(("b", 49_999), ("b", 61_000), ("a", 107_000)))
    to_the_end(stream, checkpoint)
    assert sink.pinned_watermarks == {0: None, 1: 30_000, 2: 30_000, 3: 30_000, 4: 50_000}
    assert sink.late == {4: [("b", 49_999)]}
    assert job.status()["watermark"] == 51_000
    assert job.status()["rows"]["on_time"] == (6 if empties else 9)
    assert list((Path(checkpoint) / "tidegate" / "backlog").glob("*.json")) == []


@pytest.mark.usefixtures("soon")
def test_a_lost_answer_to_a_begin_does_not_change_the_pinned_watermark(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator's pinned watermark for the batch differs from the one that the client used. A replay uses the
    client's.
    """
    sink = Sink()
    job = job_that_continues(own)
    failing = True

    def write(df: DataFrame, batch_id: int, batch: Batch) -> None:
        sink.write(df, batch_id, batch)
        if failing and batch_id == 2:
            raise RuntimeError("the disk is full")

    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k")).foreach_batch(write)
    source.add(*rows(("a", 100_000)))
    source.add(*rows(("a", 105_000)))
    to_the_end(stream, checkpoint)
    send = HttpTransport.send

    def answer_lost(self: HttpTransport, request: Send) -> Response:
        response = send(self, request)
        if request.method == "PUT" and "/batches/" in request.path:
            raise NoAnswer("the answer was lost")
        return response

    source.add(*rows(("a", 93_000)))
    with monkeypatch.context() as patch:
        patch.setattr(HttpTransport, "send", answer_lost)
        with pytest.raises(StreamingQueryException, match="disk is full"):
            to_the_end(stream, checkpoint)
    assert job.queries()[0]["pinned_watermark"] == 95_000
    failing = False
    to_the_end(stream, checkpoint)
    assert sink.pinned_watermarks[2] == 90_000
    assert sink.on_time[2] == [("a", 93_000)]
    assert job.status()["rows"]["on_time"] == 3


def test_the_first_batch_cannot_continue_without_the_coordinator(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str
) -> None:
    """Without a pinned watermark, every row would be on time, and the job might not exist."""
    job = job_that_continues(own)
    job.connection.on_outage = OnOutage(RetryPolicy(0.3), continues=True)
    own.stop()
    source.add(*rows(("a", 100_000)))
    stream: Stream = job.stream(source.stream(spark), event_time="t", substream="k")
    with pytest.raises(StreamingQueryException, match="Nothing is lost"):
        to_the_end(stream.foreach_batch(lambda df, batch_id: None), checkpoint)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("away", [False, True], ids=["back", "still away"])
def test_the_backlog_is_reported_without_new_data(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str, away: bool
) -> None:
    """The next batch may be hours away, while other queries wait for the watermark."""
    sink = Sink()
    job = job_that_continues(own)
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k"))
    source.add(*rows(("a", 100_000)))
    to_the_end(stream, checkpoint)
    kill(own, empties=False)
    source.add(*rows(("a", 110_000)))
    to_the_end(stream, checkpoint)
    if not away:
        own.start()
    query = stream.start(queryName="q", checkpointLocation=checkpoint)
    try:
        if away:
            own.start()
        until(lambda: job.status()["watermark"] == 100_000, "the backlog is reported")
        assert job.status()["rows"]["on_time"] == 2
    finally:
        query.stop()
    assert sink.pinned_watermarks == {0: None, 1: None}


@pytest.mark.usefixtures("soon")
def test_future_event_times_are_ignored_without_the_coordinator(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str
) -> None:
    """A broken clock must not move the watermark while the coordinator is away."""
    sink = Sink()
    job = job_that_continues(own)
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k"))
    source.add(*rows(("a", 100_000)))
    to_the_end(stream, checkpoint)
    own.stop()
    source.add(*rows(("a", 9_999_999_999_999), ("a", 101_000)))
    to_the_end(stream, checkpoint)
    own.start()
    source.add(*rows(("a", 102_000)))
    to_the_end(stream, checkpoint)
    assert [committed.future for committed in sink.committed] == [0, 1, 0]
    assert (job.status()["watermark"], job.status()["rows"]["future"]) == (92_000, 1)
