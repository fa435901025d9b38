"""A query tells its output watermark: everything that its functions write for earlier event times is written."""

import logging
from typing import Any

import pytest

from tests.support.drivers import Runs, fold
from tests.support.local import LocalCoordinator
from tests.support.streams import LAG
from tests.support.waiting import until
from tidegate_spark import Job, limiting_lag


def written(job: Job) -> tuple[Any, Any, Any]:
    """Return the watermark, the written watermark, and the query that holds the latter."""
    status = job.status()
    return status["watermark"], status["written_watermark"], status["written_held_by"]


def test_a_query_with_windows_tells_what_it_has_written(own: LocalCoordinator, runs: Runs) -> None:
    job = own.job(config=limiting_lag(LAG))
    run = runs.run(job, tells_output=True)
    run.batch(0, a=100_000)
    assert written(job) == (90_000, None, "q")
    run.session.run(run.session.protocol.wrote(80_000, 0))
    assert written(job) == (90_000, 80_000, "q")
    run.session.run(run.session.protocol.heartbeat(0.0, 0))
    assert written(job) == (90_000, 80_000, "q")


def test_the_next_begin_tells_what_a_driver_that_died_has_written(own: LocalCoordinator, runs: Runs) -> None:
    job = own.job(config=limiting_lag(LAG))
    runs.run(job, tells_output=True).batch(0, a=100_000)
    run = runs.run(job, tells_output=True)
    run.session.calls.output_watermark = 80_000
    run.begin(1)
    assert written(job) == (90_000, 80_000, "q")


def test_the_next_start_tells_it_too(own: LocalCoordinator, runs: Runs) -> None:
    """After the last batch of an input, no begin follows."""
    job = own.job(config=limiting_lag(LAG))
    runs.run(job, tells_output=True).batch(0, a=100_000)
    run = runs.run(job, tells_output=True)
    run.session.run(run.session.protocol.started(80_000, 0))
    assert written(job) == (90_000, 80_000, "q")


def test_a_start_tells_nothing_after_its_first_batch_has_begun(own: LocalCoordinator, runs: Runs) -> None:
    """Spark begins the first batch in another thread. Its on-time rows may be below what was written before."""
    job = own.job(config=limiting_lag(LAG))
    runs.run(job, tells_output=True).batch(0, a=100_000)
    run = runs.run(job, tells_output=True)
    run.session.calls.output_watermark = 120_000
    run.begin(1)
    run.session.run(run.session.protocol.started(120_000, 0))
    assert run.session.calls.output_watermark == 90_000
    assert job.queries()[0]["output_watermark"] == 90_000


def test_a_restored_job_learns_it_with_the_next_heartbeat(own: LocalCoordinator, runs: Runs) -> None:
    """The input is quiet, so no batch follows. The restoration begins a batch with an earlier pinned watermark."""
    job = own.job(config=limiting_lag(LAG))
    run = runs.run(job, tells_output=True)
    run.batch(0, a=100_000)
    run.batch(1, a=150_000)
    run.session.run(run.session.protocol.wrote(140_000, 1))
    assert written(job) == (140_000, 140_000, None)
    own.empty()
    for _ in range(2):
        run.session.run(run.session.protocol.heartbeat(0.0, 1))
    assert written(job) == (140_000, 140_000, None)


def test_what_is_written_during_an_outage_is_told_afterwards(own: LocalCoordinator, runs: Runs) -> None:
    job = own.job(config=limiting_lag(LAG), on_outage="continue")
    run = runs.run(job, tells_output=True)
    for batch in range(2):
        run.batch(batch, a=150_000)
    own.stop()
    opened = run.begin(2)
    run.commit(opened, fold(a=160_000))
    run.session.run(run.session.protocol.wrote(140_000, 2, is_reachable=False))
    own.start()
    until(lambda: job.status()["watermark"] == 150_000, "the backlog is reported")
    run.session.run(run.session.protocol.heartbeat(0.0, 2))
    assert written(job) == (150_000, 140_000, "q")


def test_on_time_rows_below_what_was_written_hold_it(own: LocalCoordinator, runs: Runs) -> None:
    job = own.job(config=limiting_lag(LAG))
    run = runs.run(job, tells_output=True)
    run.batch(0, a=100_000)
    run.session.calls.output_watermark = 120_000
    run.batch(1, a=150_000)
    assert written(job) == (140_000, 90_000, "q")
    assert run.session.calls.output_watermark == 90_000, "a heartbeat must not tell more"
    run.session.run(run.session.protocol.wrote(120_000, 1))
    assert written(job) == (140_000, 120_000, "q")


def test_a_query_of_rows_tells_nothing(own: LocalCoordinator, runs: Runs) -> None:
    job = own.job(config=limiting_lag(LAG))
    run = runs.run(job)
    run.batch(0, a=100_000)
    run.session.run(run.session.protocol.wrote(None, 0))
    assert written(job) == (90_000, 90_000, None)
    assert not job.queries()[0]["tells_output"]


def test_a_failure_to_tell_does_not_fail_the_batch(
    own: LocalCoordinator, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    """The windows are written, so the batch must not fail. The next batch tells it."""
    job = own.job(config=limiting_lag(LAG))
    run = runs.run(job, tells_output=True)
    run.batch(0, a=100_000)
    own.stop()
    with caplog.at_level(logging.WARNING):
        run.session.run(run.session.protocol.wrote(80_000, 0))
    assert "the coordinator does not know it before the next call" in caplog.text
    own.start()
    run.batch(1, a=110_000)
    assert written(job) == (100_000, 80_000, "q")


def test_a_coordinator_that_lost_its_state_learns_it_again(own: LocalCoordinator, runs: Runs) -> None:
    """The token restores the watermark; windows that are not yet written still hold the written watermark."""
    job = own.job(config=limiting_lag(LAG, expected_queries=["q", "rows"]))
    run, other = runs.run(job, tells_output=True), runs.run(job, "rows")
    run.batch(0, a=100_000)
    other.batch(0, b=200_000)
    run.session.run(run.session.protocol.wrote(80_000, 0))
    assert written(job) == (90_000, 80_000, "q")
    own.empty()
    other.batch(1, b=210_000)
    assert written(job) == (90_000, None, "q")
    run.session.calls.output_watermark = 80_000
    run.batch(1, a=120_000)
    assert written(job) == (110_000, 80_000, "q")


def test_batches_of_the_backlog_tell_what_is_written_now(own: LocalCoordinator, runs: Runs) -> None:
    job = own.job(config=limiting_lag(LAG), on_outage="continue")
    run = runs.run(job, tells_output=True)
    run.batch(0, a=100_000)
    run.batch(1, a=100_000)
    own.stop()
    opened = run.begin(2)
    assert not opened.acknowledged
    run.commit(opened, fold(a=130_000))
    run.session.calls.output_watermark = 70_000
    own.start()
    until(lambda: job.status()["watermark"] == 120_000, "the backlog is reported")
    assert written(job) == (120_000, 70_000, "q")
