"""Queries on an older checkpoint, under another name, and after a retirement (docs/how-to/recover.md)."""

import shutil

import pytest

from tests.support.drivers import Runs, fold
from tests.support.local import LocalCoordinator
from tests.support.streams import LAG, known
from tidegate_spark import InvalidUsage, Job, JobMissing, limiting_lag
from tidegate_spark.errors import Refused
from tidegate_spark.protocol.checkpoint import Checkpoint


@pytest.fixture
def job(own: LocalCoordinator) -> Job:
    return own.job(config=limiting_lag(LAG))


def back_up(runs: Runs) -> None:
    shutil.copytree(runs.directory, runs.directory.with_name("backup"))


def restore(runs: Runs) -> None:
    shutil.rmtree(runs.directory)
    shutil.copytree(runs.directory.with_name("backup"), runs.directory)


def test_a_checkpoint_that_lacks_one_batch_continues(job: Job, runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    """The batch keeps its pinned watermark. Its max event times are reported with the next batch."""
    run = runs.run(job)
    run.batch(0, a=100_000)
    back_up(runs)
    run.batch(1, a=200_000)
    restore(runs)
    run = runs.run(job)
    assert run.batch(1, a=300_000, b=290_000).stored.pinned_watermark == 90_000
    assert "older checkpoint was restored" in caplog.text
    assert known(job) == {"a": 200_000}, "the coordinator has ignored the second attempt"
    run.batch(2, a=310_000)
    assert known(job) == {"a": 310_000, "b": 290_000}
    assert job.status()["rows"]["on_time"] == 3


@pytest.mark.parametrize("lacks", [2, 101], ids=["pinned watermarks kept", "pinned watermarks deleted"])
def test_a_checkpoint_that_lacks_batches_needs_another_name(job: Job, runs: Runs, lacks: int) -> None:
    """A handover to itself does not help, because the coordinator still has the later batches."""
    run = runs.run(job)
    run.batch(0, a=100_000)
    back_up(runs)
    for batch_id in range(1, 1 + lacks):
        run.batch(batch_id, a=100_000 + batch_id)
    restore(runs)
    job.hand_over("q", "q", "it does not help")
    with pytest.raises(Refused, match=r"(?i)hand the query over to a new name") as refusal:
        runs.run(job).begin(1)
    assert refusal.value.code == "batch_forgotten"
    job.hand_over("q", "q-2", "an older checkpoint was restored")
    run = runs.run(job, "q-2")
    assert run.batch(1, a=300_000).stored.pinned_watermark == 90_000 + lacks
    assert known(job) == {"a": 300_000}


def test_a_renamed_query_runs_its_open_batch_again(job: Job, runs: Runs) -> None:
    """The batch keeps its pinned watermark, because the client has stored it beside the checkpoint."""
    run = runs.run(job)
    run.batch(0, a=100_000, b=100_000)
    run.begin(1)
    job.hand_over("q", "q-2", "renamed")
    with pytest.raises(Refused, match="query_retired"):
        run.batch(1, a=200_000)
    job.hand_over("q", "q-2", "repeated")
    assert runs.run(job, "q-2").batch(1, a=200_000, b=200_000).stored.pinned_watermark == 90_000
    assert job.status()["watermark"] == 190_000


def test_a_renamed_query_names_the_missing_handover(job: Job, runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    """Without the handover, the substreams of the old name hold the watermark for ever. Each start says so."""
    runs.run(job).batch(0, a=100_000)
    runs.run(job, "q-2")
    runs.run(job, "q-2").batch(1, a=200_000)
    runs.run(job, "q-2")
    assert caplog.text.count("Hand them over: job.hand_over('q', 'q-2', reason=...)") == 3
    assert job.status()["watermark"] == 90_000
    caplog.clear()
    job.hand_over("q", "q-2", "renamed")
    runs.run(job, "q-2").batch(2, a=210_000)
    assert job.status()["watermark"] == 200_000
    progress = Checkpoint(str(runs.directory)).read("progress")
    assert progress is not None
    assert progress["renamed_from"] is None
    assert "Hand them over" not in caplog.text


@pytest.mark.parametrize("committed", [True, False])
def test_the_checkpoint_of_another_job_is_refused(
    own: LocalCoordinator, job: Job, runs: Runs, committed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The other job would get the event times of this job, and its open batch the pinned watermark of this job."""
    run = runs.run(job)
    if committed:
        run.batch(0, a=100_000)
    else:
        run.begin(0)
    other = own.job(job="other", config=limiting_lag(LAG))
    with pytest.raises(InvalidUsage, match=r"belongs to a query of job 'j', not 'other'.*connect to job 'j'"):
        runs.run(other)
    with pytest.raises(JobMissing):
        other.status()
    with pytest.raises(InvalidUsage, match="belongs to a query of job 'j'"):
        runs.run(other, owns_files=False)
    assert known(other) == {}
    assert "has lost the job" not in caplog.text
    runs.run(job).batch(1 if committed else 0, a=200_000)


def test_a_retired_query_starts_again_at_the_same_watermark(own: LocalCoordinator, runs: Runs) -> None:
    """The retirement removes all substreams, so nothing is left that moves the watermark."""
    job = own.job(config=limiting_lag(LAG, expected_queries=["q"]))
    run = runs.run(job)
    run.batch(0, a=100_000, b=40_000)
    opened = run.begin(1)
    assert (job.status()["watermark"], opened.stored.pinned_watermark) == (30_000, 30_000)
    job.retire("q", "a mistake")
    assert (job.status()["watermark"], known(job)) == (30_000, {})
    with pytest.raises(Refused, match="query_retired"):
        run.commit(opened, fold(a=110_000))
    run = runs.run(job)
    assert job.status()["watermark"] == 30_000
    assert run.batch(1, a=110_000, b=41_000).stored.pinned_watermark == 30_000, "the open batch runs again"
    assert known(job) == {"a": 110_000, "b": 41_000}
    assert run.batch(2, b=120_000).stored.pinned_watermark == 31_000
    assert not job.queries()[0]["retired"]
