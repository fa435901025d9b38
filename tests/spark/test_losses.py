"""Coordinators that have lost their state, or the end of their log: queries detect the loss and report again."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.api import operate
from tests.support.local import LocalCoordinator
from tests.support.streams import LAG, Backup, Sink, kill, known, rows, to_the_end
from tests.support.waiting import until
from tidegate_spark import Job, Stream, limiting_lag
from tidegate_spark.testing import CoordinatorProcess, FileBatches

QUIET_S = 2


@contextmanager
def running(stream: Stream, checkpoint: str) -> Iterator[StreamingQuery]:
    query = stream.tuning(heartbeat_ms=100).start(queryName="q", checkpointLocation=checkpoint)
    try:
        yield query
    finally:
        query.stop()


def quick(own: LocalCoordinator) -> Job:
    return own.job(job="j", config=limiting_lag(LAG, idle_timeout=timedelta(seconds=QUIET_S)))


def test_a_silent_query_restores_an_emptied_coordinator(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str
) -> None:
    """The next batch may be hours away. Heartbeats detect the loss, and are evidence of silence again afterwards."""
    sink, job = Sink(), quick(own)
    source.add(*rows(("a", 100_000), ("b", 40_000)))
    with running(sink.after(job.stream(source.stream(spark), event_time="t", substream="k")), checkpoint):
        until(lambda: len(sink.committed) == 1, "the first batch")
        kill(own, empties=True)
        own.start()
        until(lambda: known(job) == {"a": 100_000, "b": 40_000}, "both substreams are restored")
        # All substreams become idle, which only heartbeats after the last batch can prove. Then W is the max watermark.
        until(lambda: job.status()["watermark"] == 90_000, "both substreams are idle")


def test_a_restart_does_not_restore_evicted_substreams(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str
) -> None:
    """Queries restore a lost job only. A job from which substreams were evicted is not lost."""
    stream = Sink().after(job.stream(source.stream(spark), event_time="t", substream="k"))
    source.add(*rows(("a", 100_000), ("b", 40_000)))
    to_the_end(stream, checkpoint)
    operate(job, "POST", "/substreams:evict", {"query": "q", "substreams": ["b"], "reason": "it was a typo"})
    source.add(*rows(("a", 110_000)))
    to_the_end(stream, checkpoint)
    assert known(job) == {"a": 110_000}


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_query_does_not_restore_event_times_from_before_a_reset(
    spark: SparkSession, source: FileBatches, tidegate: CoordinatorProcess, checkpoint: str, restarted: bool
) -> None:
    """Operators reset a job to remove a wrong event time, so the query must not declare it again."""
    sink, job = Sink(), tidegate.job(config=limiting_lag(LAG, max_future_skew=None))
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k"))
    source.add(*rows(("a", 10**15), ("b", 10**15)))
    if restarted:
        to_the_end(stream, checkpoint)
    with running(stream, checkpoint):
        until(lambda: len(sink.committed) == 1, "the first batch")
        assert job.status()["watermark"] == 10**15 - 10_000
        operate(job, "POST", ":reset", {"reason": "a clock was broken"})
        source.add(*rows(("a", 100_000)))
        until(lambda: len(sink.committed) == 2, "a batch after the reset")
        assert job.status()["watermark"] == 90_000
        assert known(job) == {"a": 100_000}


@pytest.mark.parametrize("quiet", [False, True], ids=["busy", "quiet"])
def test_a_query_restores_the_lost_end_of_the_log(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str, tmp_path: Path, quiet: bool
) -> None:
    """Redis may lose the last second of its log, and with it a committed batch."""
    sink, job = Sink(), quick(own) if quiet else own.job(job="j", config=limiting_lag(LAG))
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k"))
    source.add(*rows(("a", 100_000), ("b", 40_000)))
    to_the_end(stream, checkpoint)
    backup = Backup(own)
    source.add(*rows(("a", 200_000), ("b", 190_000), ("c", 195_000)))
    source.add(*rows(("b", 191_000)))
    to_the_end(stream, checkpoint)
    backup.restore()
    assert known(job) == {"a": 100_000, "b": 40_000}
    restored = {"a": 200_000, "b": 191_000, "c": 195_000}
    if quiet:
        with running(stream, checkpoint):
            until(lambda: known(job) == restored, "all substreams are restored")
            until(lambda: job.status()["watermark"] == 190_000, "heartbeats count again")
        return
    source.add(*rows(("a", 201_000)))
    to_the_end(stream, checkpoint)
    assert known(job) == restored | {"a": 201_000}
    assert job.status()["watermark"] == 181_000
    assert [(committed.on_time, committed.late) for committed in sink.committed] == [(2, 0), (3, 0), (1, 0), (1, 0)]


def test_a_lost_job_gets_its_changed_configuration(
    spark: SparkSession, source: FileBatches, own: LocalCoordinator, checkpoint: str
) -> None:
    """The program has changed the configuration. Its running queries must not restore the old one."""
    sink, job = Sink(), own.job(job="j", config=limiting_lag(LAG))
    source.add(*rows(("a", 100_000)))
    with running(sink.after(job.stream(source.stream(spark), event_time="t", substream="k")), checkpoint):
        until(lambda: len(sink.committed) == 1, "the first batch")
        job.configure(limiting_lag(2 * LAG))
        kill(own, empties=True)
        own.start()
        until(lambda: known(job) == {"a": 100_000}, "the substream is restored")
        assert job.status()["config"]["policy"]["lag_ms"] == 20_000


def test_heartbeats_prove_nothing_if_the_checkpoint_cannot_be_read(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of Spark Connect may not know what an earlier run has processed and not reported."""
    sink = Sink()
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k"))
    source.add(*rows(("a", 100_000)))
    to_the_end(stream, checkpoint)
    monkeypatch.setattr("tidegate_spark.protocol.checkpoint.Checkpoint.started", lambda self: False)
    clock = job.queries()[0]["idle_clock_ms"]
    with running(stream, checkpoint):
        time.sleep(1.5)
        assert job.queries()[0]["idle_clock_ms"] == clock
        source.add(*rows(("a", 110_000)))
        until(lambda: len(sink.committed) == 2, "a batch")
        begun = job.queries()[0]["idle_clock_ms"]
        until(lambda: job.queries()[0]["idle_clock_ms"] not in (None, begun), "a heartbeat after it")
