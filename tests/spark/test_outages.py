"""A coordinator that is away, or has lost everything, at any point of a batch: nothing is lost, and nothing differs."""

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
from tidegate_spark.protocol.effects import NoAnswer, Request, Response
from tidegate_spark.protocol.retry import OnOutage, RetryPolicy
from tidegate_spark.protocol.transport import HttpTransport
from tidegate_spark.testing import FileBatches


class Outage:
    """Stops the coordinator once, at a point of batch 1, and starts it again after a while."""

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
    """Pins, rows and the watermark are what they are without a crash; so are the counts of what was not lost."""
    crash = Outage(own, point, empties)
    watch(crash.reached, monkeypatch.setattr)
    sink = Sink()

    def write(df: DataFrame, batch: Batch) -> None:
        crash.reached(IN_THE_FUNCTION, int(batch))
        sink.write(df, batch)

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


def test_a_job_that_was_lost_is_created_again_from_the_users_rules(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str
) -> None:
    """The declared substreams hold again, and the pin beside the checkpoint still judges the replayed rows."""
    source.add(*rows(("a", 100_000)))
    source.add(*rows(("a", 95_000)))
    given = []

    def write(df: DataFrame, batch: Batch) -> None:
        given.append((int(batch), batch.watermark, [row.t for row in df.collect()]))
        if len(given) == 2:
            operate(job, "DELETE", "")
            raise RuntimeError("and the job is gone")

    stream = job.stream(source.stream(spark), event_time="t", substream="k").declare("a").foreach_batch(write)
    with pytest.raises(StreamingQueryException, match="the job is gone"):
        to_the_end(stream, checkpoint)
    to_the_end(stream, checkpoint)
    assert given[1:] == [(1, 90_000, [95_000]), (1, 90_000, [95_000])]
    assert [row["substream"] for row in job.substreams()] == ["a"]


def test_a_job_that_was_deleted_stays_deleted_until_a_query_is_started(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str
) -> None:
    """A running query that made it again would leave no way to delete a job."""
    source.add(*rows(("a", 100_000)))
    stream = job.stream(source.stream(spark), event_time="t", substream="k")
    with pytest.raises(StreamingQueryException, match="job_deleted"):
        to_the_end(stream.foreach_batch(lambda df, batch: operate(job, "DELETE", "")), checkpoint)
    with pytest.raises(JobDeleted):
        job.status()
    sink = Sink()
    to_the_end(sink.after(stream), checkpoint)
    assert sink.on_time == {0: [("a", 100_000)]}
    assert job.status()["watermark"] == 90_000


def test_after_the_patience_the_query_fails_and_says_so(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str
) -> None:
    """A query that waits for ever looks like one that works."""
    source.add(*rows(("a", 100_000)))
    job = own.job(job="j", config=limiting_lag(LAG), on_outage=timedelta(milliseconds=300))
    stream = job.stream(source.stream(spark), event_time="t", substream="k")
    with pytest.raises(StreamingQueryException, match="Nothing is lost"):
        to_the_end(stream.foreach_batch(lambda df, batch: own.stop()), checkpoint)
    own.start()
    sink = Sink()
    to_the_end(sink.after(stream), checkpoint)
    assert sink.on_time == {0: [("a", 100_000)]}
    assert job.status()["rows"]["on_time"] == 1


def test_a_query_can_be_stopped_while_it_waits(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str
) -> None:
    """Spark waits for the function of the batch, which would go on asking until its patience is at an end."""
    job = own.job(job="j", config=limiting_lag(LAG), on_outage=timedelta(hours=2))
    source.add(*rows(("a", 100_000)))
    waiting = threading.Event()

    def write(df: DataFrame, batch: Batch) -> None:
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
    """A batch that may go on without its coordinator does so after half a second."""
    monkeypatch.setattr(retry, "SHORT_WAIT_S", 0.5)


def going_on(own: LocalCoordinator, **limits: Any) -> Job:
    return own.job(job="j", config=limiting_lag(LAG, **limits), on_outage="continue")


@pytest.mark.usefixtures("soon")
def test_a_query_may_go_on_without_its_coordinator(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str
) -> None:
    """The rows flow on, judged by the last pin; the coordinator learns of all of it, and takes nobody for idle."""
    sink = Sink()
    job = going_on(own, idle_timeout=timedelta(seconds=2))
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k")).tuning(heartbeat_ms=200)
    query = stream.start(queryName="q", checkpointLocation=checkpoint)
    try:
        source.add(*rows(("a", 100_000), ("b", 40_000)))
        until(lambda: len(sink.committed) == 1, "a batch without a pin")
        source.add(*rows(("a", 101_000), ("b", 45_000)))
        until(lambda: len(sink.committed) == 2, "a batch with one")
        own.stop()
        source.add(*rows(("a", 110_000), ("b", 32_000), ("b", 29_999)))
        until(lambda: len(sink.committed) == 3, "a batch without the coordinator")
        source.add(*rows(("a", 120_000), ("b", 70_000), ("a", None)))
        until(lambda: len(sink.committed) == 4, "another one")
        time.sleep(2.5)
        assert [committed.acknowledged for committed in sink.committed] == [True, True, False, False]
        own.start()
        until(lambda: job.status()["watermark"] == 60_000, "the coordinator was told")
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
def test_what_is_untold_outlives_the_driver(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str, empties: bool
) -> None:
    """A nightly run that ended without its coordinator is told by the next one, before that begins."""
    sink = Sink()
    job = going_on(own)
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
def test_a_begin_whose_answer_was_lost_does_not_change_the_judgement(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator has another pin for the batch than the one it was worked off by; a replay uses the latter."""
    sink = Sink()
    job = going_on(own)
    failing = True

    def write(df: DataFrame, batch: Batch) -> None:
        sink.write(df, batch)
        if failing and int(batch) == 2:
            raise RuntimeError("the disk is full")

    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k")).foreach_batch(write)
    source.add(*rows(("a", 100_000)))
    source.add(*rows(("a", 105_000)))
    to_the_end(stream, checkpoint)
    send = HttpTransport.send

    def answer_lost(self: HttpTransport, request: Request, timeout_s: float) -> Response:
        response = send(self, request, timeout_s)
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


def test_the_first_batch_has_nothing_to_go_on_with(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str
) -> None:
    """Without a pin every row would be on time; and there may be no job that could learn of it."""
    job = going_on(own)
    job.connection.on_outage = OnOutage(RetryPolicy(0.3), continues=True)
    own.stop()
    source.add(*rows(("a", 100_000)))
    stream: Stream = job.stream(source.stream(spark), event_time="t", substream="k")
    with pytest.raises(StreamingQueryException, match="Nothing is lost"):
        to_the_end(stream.foreach_batch(lambda df, batch: None), checkpoint)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("away", [False, True], ids=["back", "still away"])
def test_what_is_untold_is_told_though_no_data_comes(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str, away: bool
) -> None:
    """The next batch may be hours away; others wait for the watermark."""
    sink = Sink()
    job = going_on(own)
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
        until(lambda: job.status()["watermark"] == 100_000, "it was told")
        assert job.status()["rows"]["on_time"] == 2
    finally:
        query.stop()
    assert sink.pinned_watermarks == {0: None, 1: None}


@pytest.mark.usefixtures("soon")
def test_an_assumed_pin_still_knows_what_is_too_far_ahead(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str
) -> None:
    """A broken clock must not get its chance while the coordinator is away."""
    sink = Sink()
    job = going_on(own)
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
