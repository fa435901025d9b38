"""Queries on an older checkpoint, under another name, and after a retirement (docs/how-to/recover.md)."""

import shutil

import pytest

from tests.support.drivers import Runs, fold
from tests.support.local import LocalCoordinator
from tests.support.streams import LAG, known
from tidegate_spark import Job, limiting_lag
from tidegate_spark.errors import Refused


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
