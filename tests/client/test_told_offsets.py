"""Offsets in the protocol: a commit tells them, and a refusal does not stop the query."""

import shutil
from datetime import timedelta

import pytest

from tests.support.drivers import Run, Runs, fold
from tests.support.local import LocalCoordinator
from tidegate_spark import Job, limiting_lag
from tidegate_spark.protocol.batches import OpenBatch
from tidegate_spark.protocol.evidence import BatchInput, BatchOffsets


def told(start: int | None, end: int, latest: int = 100, behind_ms: int = 0) -> BatchOffsets:
    return BatchOffsets(("t/0",), (start,), (end,), (latest,), (behind_ms,))


def batch(run: Run, batch_id: int, offsets: BatchOffsets) -> None:
    opened = run.begin(batch_id)
    opened.offsets = offsets
    run.report(opened, fold(a=batch_id))
    run.commit(opened, fold(a=batch_id))


def test_offsets_that_the_coordinator_refuses_do_not_stop_the_query(
    job: Job, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    """An older coordinator does not know them, and a low limit on bodies may be exceeded."""
    run = runs.run(job)
    batch(run, 0, told(0, 5))
    batch(run, 1, told(5, 9, behind_ms=-1))
    assert "does not accept the offsets of this batch" in caplog.text
    many = tuple(f"{'t' * 180}/{number}" for number in range(4000))  # more than 65,536 bytes
    zeros = (0,) * len(many)
    batch(run, 2, BatchOffsets(many, zeros, zeros, zeros, zeros))
    (query,) = job.queries()
    assert (query["batch_id"], query["batch_open"], query["offsets"]["batch_id"]) == (2, False, 0)
    batch(run, 3, told(12, 20))
    assert job.offsets("q")["skipped"] == 0, "the batches between have not told their offsets"


def test_a_heartbeat_whose_offsets_are_refused_is_sent_without_them(job: Job, runs: Runs) -> None:
    run = runs.run(job)
    run.batch(0, a=1)
    protocol = run.session.protocol
    run.session.run(protocol.heartbeat(0.0, 0, None, told(0, 5, behind_ms=-1)))
    assert job.queries()[0]["offsets"] is None
    run.session.run(protocol.heartbeat(0.0, 0, None, told(0, 5)))
    assert job.queries()[0]["offsets"]["batch_id"] == 0


def test_a_restored_substream_is_not_that_of_an_earlier_topic(own: LocalCoordinator, runs: Runs) -> None:
    """The coordinator loses the job after the topic of one substream was created again, and that of another ended."""
    job = own.job(config=limiting_lag(timedelta(0)))
    run = runs.run(job)
    run.batch(0, a=500, b=100, c=300)
    opened = run.begin(1)
    unknown = (None, None)
    opened.offsets = BatchOffsets(("a/0", "c/0"), (9, 0), (5, 3), unknown, unknown, substream_columns=("topic",))
    run.report(opened, fold(c=400))
    run.commit(opened, fold(c=400))
    own.empty()
    run.beat(1)
    assert {row["substream"]: row["max_event_time"] for row in job.substreams()} == {"c": 400}


def test_a_lost_commit_does_not_restore_a_topic_that_is_created_again(own: LocalCoordinator, runs: Runs) -> None:
    """The batch that reports the max event times again is the one in which the topic was created again."""
    job = own.job(config=limiting_lag(timedelta(0)))
    run = runs.run(job)

    def opened(batch_id: int, ends: tuple[int, int], starts: tuple[int, int]) -> OpenBatch:
        offsets = BatchOffsets(("a/0", "c/0"), starts, ends, (None, None), (None, None), substream_columns=("topic",))
        runs.plan(batch_id)
        return run.session.run(run.session.protocol.begin(batch_id, BatchInput(offsets=offsets)))

    for batch_id, event_time in enumerate((500, 600)):
        if batch_id:
            state = own.state()
        batch = opened(batch_id, (10 + batch_id, 10 + batch_id), (9, 9))
        run.report(batch, fold(a=event_time, c=event_time))
        run.commit(batch, fold(a=event_time, c=event_time))
    own.restore(state)
    batch = opened(2, (3, 12), (11, 11))
    run.report(batch, fold(c=700))
    run.commit(batch, fold(c=700))
    assert {row["substream"]: row["max_event_time"] for row in job.substreams()} == {"a": None, "c": 700}


def test_a_batch_that_an_older_checkpoint_plans_again_may_end_elsewhere(job: Job, runs: Runs) -> None:
    """The coordinator has batch 1 with another end, and ignores its second commit."""
    run = runs.run(job)
    batch(run, 0, told(0, 10))
    shutil.copytree(runs.directory, runs.directory.with_name("backup"))
    batch(run, 1, told(10, 20))
    shutil.rmtree(runs.directory)
    shutil.copytree(runs.directory.with_name("backup"), runs.directory)
    restored = runs.run(job)
    batch(restored, 1, told(10, 30))
    restored = runs.run(job)
    batch(restored, 2, told(30, 40))
    assert (job.offsets("q")["skipped"], job.offsets("q")["batch_id"]) == (0, 2)
    batch(restored, 3, told(45, 50))
    assert job.offsets("q")["skipped"] == 5
