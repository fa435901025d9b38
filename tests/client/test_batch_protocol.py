"""One query and its coordinator, which stops, loses state or is late: schedules that are rare in practice."""

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from pyspark import cloudpickle

from tests.support.api import operate
from tests.support.clock import VirtualClock
from tests.support.drivers import Run, Runs, fold
from tests.support.local import LocalCoordinator
from tests.support.streams import LAG, known
from tests.support.waiting import until
from tidegate_spark import Job, limiting_lag
from tidegate_spark.protocol.retry import OnOutage
from tidegate_spark.protocol.settings import InputComplete


def new_job(own: LocalCoordinator, **limits: Any) -> Job:
    return own.job(config=limiting_lag(LAG, **limits))


def going_on(own: LocalCoordinator, **limits: Any) -> Job:
    return own.job(config=limiting_lag(LAG, **limits), on_outage="continue")


# -- the coordinator loses state --------------------------------------------------------------------------------------


def test_reports_in_the_lost_end_of_the_log_are_reported_again(own: LocalCoordinator, runs: Runs) -> None:
    """The coordinator knows the batch but none of its reports: a commit of nothing would lose its rows."""
    job = new_job(own)
    run = runs.run(job)
    run.batch(0, a=100_000)
    opened = run.begin(1)
    before_the_report = own.state()
    run.report(opened, fold(a=200_000, b=100_000))
    own.restore(before_the_report)
    run.commit(opened, fold(a=200_000, b=100_000))
    assert known(job) == {"a": 200_000, "b": 100_000}
    run.batch(2, a=300_000)
    assert run.begin(3).stored.pinned_watermark == 90_000


def test_a_restored_job_reports_the_slowest_substream_first(own: LocalCoordinator, runs: Runs) -> None:
    """The restore takes several calls; between two of them the watermark must not pass the slowest substream."""
    job = new_job(own)
    run = runs.run(job)
    run.batch(0, **{f"s{number:05}": 1_000_000 for number in range(12_000)}, z=500_000)
    assert job.status()["watermark"] == 490_000
    own.empty()
    assert runs.run(job).begin(1).stored.pinned_watermark == 490_000


@pytest.mark.parametrize("first", ["a batch", "a heartbeat"])
def test_the_next_run_proves_the_last_watermark(own: LocalCoordinator, runs: Runs, first: str) -> None:
    """The watermark token is kept beside the checkpoint; without it the watermark would go back."""
    job = new_job(own)
    run = runs.run(job)
    run.batch(0, a=100_000, b=40_000)
    operate(job, "POST", "/substreams:evict", {"query": "q", "names": ["b"], "reason": "gone"})
    run.batch(1, a=101_000)
    assert job.status()["watermark"] == 91_000
    own.empty()
    run = runs.run(job)
    if first == "a heartbeat":
        run.beat(1)
        assert job.status()["watermark"] == 91_000
    assert run.begin(2).stored.pinned_watermark == 91_000


def test_a_job_that_was_reset_while_its_query_is_quiet_stays_clean(own: LocalCoordinator, runs: Runs) -> None:
    """A reset removes a false event time; a heartbeat must not bring it back."""
    job = new_job(own, max_future_skew=None)
    run = runs.run(job)
    run.batch(0, a=10**15)
    operate(job, "POST", ":reset", {"reason": "a clock was broken"})
    for _ in range(2):
        run.beat(0)
    assert (job.status()["watermark"], known(job)) == (None, {})
    run.batch(1, a=100_000)
    run = runs.run(job)
    run.beat(1)
    assert (job.status()["watermark"], known(job)) == (90_000, {"a": 100_000})


def test_a_coordinator_may_lose_everything_twice(own: LocalCoordinator, runs: Runs, clock: VirtualClock) -> None:
    """Also if no batch ran in between that would have written anything."""
    job = new_job(own, idle_timeout=timedelta(seconds=1))
    run = runs.run(job)
    run.batch(0, a=100_000, b=40_000)
    for _ in range(2):
        own.empty()
        run.session.coordinator.watermark_token = None  # as with a new secret
        run.beat(0)
        assert known(job) == {"a": 100_000, "b": 40_000}
        assert job.status()["watermark"] is None or job.status()["watermark"] == 30_000
        clock.advance(1.1)
        run.beat(0)
        assert job.status()["watermark"] == 90_000, "both are idle"


def test_lost_state_is_restored_after_a_failed_batch(own: LocalCoordinator, runs: Runs) -> None:
    """The run that noticed the loss staged the restore; the next run takes the batch over and drops what was staged."""
    job = new_job(own)
    run = runs.run(job)
    run.batch(0, a=100_000)
    before = own.state()
    run.batch(1, a=101_000, b=50_000)
    own.restore(before)
    run.begin(2)
    run = runs.run(job)
    run.batch(2, a=120_000)
    assert known(job) == {"a": 120_000, "b": 50_000}


def test_a_rename_is_no_loss(own: LocalCoordinator, runs: Runs) -> None:
    """The coordinator has no batch under the new name; a substream evicted under the old name stays away."""
    job = new_job(own)
    run = runs.run(job, "old")
    run.batch(0, a=100_000, b=40_000)
    operate(job, "POST", "/substreams:evict", {"query": "old", "names": ["b"], "reason": "gone"})
    run.batch(1, a=110_000)
    job.hand_over("old", "new", "renamed")
    run = runs.run(job, "new")
    run.batch(2, a=120_000)
    assert known(job) == {"a": 120_000}


# -- the coordinator is away ------------------------------------------------------------------------------------------


def test_a_batch_waits_for_the_coordinator_and_its_substreams_stay_active(
    own: LocalCoordinator, runs: Runs, clock: VirtualClock
) -> None:
    """Ten seconds without a coordinator are not ten seconds of silence."""
    job = new_job(own, idle_timeout=timedelta(seconds=6))
    run = runs.run(job)
    run.batch(0, a=100_000, b=40_000)
    own.stop()
    clock.after(10, own.start)
    assert run.batch(1, a=110_000).stored.pinned_watermark == 30_000
    assert job.status()["substreams"] == {"active": 2, "idle": 0, "done": 0, "all_idle": False}
    assert job.status()["watermark"] == 30_000


def test_an_outage_may_be_longer_than_pins_are_kept(own: LocalCoordinator, runs: Runs) -> None:
    """Each batch of the backlog brings its own pin: the coordinator no longer has those of so many batches."""
    job = going_on(own)
    run = runs.run(job)
    run.batch(0, a=1_000_000)
    own.stop()
    for batch_id in range(1, 120):
        run.batch(batch_id, a=1_000_000 + batch_id)
    own.start()
    until(lambda: run.flush(), "the backlog was sent")
    assert job.status()["watermark"] == 990_119
    assert run.batch(120, a=1_000_500).stored.pinned_watermark == 990_119
    assert job.status()["rows"]["on_time"] == 121


def test_an_outage_that_ends_within_a_batch_is_not_silence(
    own: LocalCoordinator, runs: Runs, clock: VirtualClock
) -> None:
    """The backlog is sent while a batch runs; the time until that batch commits counts as an outage too."""
    job = going_on(own, idle_timeout=timedelta(seconds=4))
    run = runs.run(job)
    run.batch(0, a=100_000, b=40_000)
    own.stop()
    run.batch(1, a=101_000)
    clock.advance(6)
    opened = run.begin(2)
    own.start()
    until(lambda: run.flush(), "the backlog was sent")
    clock.advance(6)
    run.report(opened, fold(a=102_000))
    run.commit(opened, fold(a=102_000))
    until(lambda: run.flush(), "the last batch of the outage was sent")
    run.batch(3, a=103_000)
    assert job.status()["substreams"]["idle"] == 0
    assert job.status()["watermark"] == 30_000


def test_under_connect_the_hooks_waiting_is_its_own(own: LocalCoordinator, runs: Runs, clock: VirtualClock) -> None:
    """The client's process starts the run, the hook's process runs it: each accounts for its own outages."""
    job = going_on(own, idle_timeout=timedelta(seconds=3))
    earlier = runs.run(job)
    earlier.batch(0, a=100_000, b=40_000)
    own.stop()
    earlier.batch(1, a=101_000)
    earlier.session.close()
    clock.advance(3)
    client = runs.run(job, owns_files=False)
    hook = Run(runs, cloudpickle.loads(cloudpickle.dumps(client.session)))  # type: ignore[no-untyped-call]
    client.session.run(client.session.protocol.started())
    own.start()
    clock.advance(2)
    hook.batch(2, a=102_000, b=41_000)
    hook.session.settings.connection.on_outage = OnOutage.of(timedelta(minutes=1))
    opened = hook.begin(3)
    own.stop()
    clock.after(4, own.start)
    hook.report(opened, fold(a=103_000))
    hook.commit(opened, fold(a=103_000))
    hook.batch(4, a=104_000)
    assert job.status()["substreams"]["idle"] == 0
    assert job.status()["watermark"] == 31_000


def test_the_wait_for_another_thread_is_not_silence(own: LocalCoordinator, runs: Runs, clock: VirtualClock) -> None:
    """A heartbeat in flight delays a begin; the age of the batch's input includes that delay."""
    job = new_job(own, idle_timeout=timedelta(seconds=2))
    run = runs.run(job)
    run.batch(0, a=100_000, b=40_000)
    with run.session.lock:
        blocked = threading.Thread(target=run.batch, args=(1,), kwargs={"a": 110_000})
        blocked.start()
        until(lambda: (runs.directory / "offsets" / "1").exists(), "the batch was planned")
        time.sleep(0.1)
        clock.advance(3)
    blocked.join()
    assert job.status()["substreams"]["idle"] == 0


# -- what a batch says about silence ----------------------------------------------------------------------------------


def test_under_available_now_a_batch_says_that_input_is_complete_up_to_the_start_of_the_run(
    own: LocalCoordinator, runs: Runs, clock: VirtualClock
) -> None:
    """Spark fixes the input when the run starts; none of its batches has what came later."""
    job = new_job(own, idle_timeout=timedelta(seconds=2))
    run = runs.run(job, input_complete=InputComplete.PER_RUN)
    run.batch(0, a=100_000, b=40_000)
    clock.advance(2.5)
    run.batch(1, a=110_000)
    assert job.status()["watermark"] == 30_000
    run = runs.run(job, input_complete=InputComplete.PER_RUN)
    run.batch(2, a=120_000)
    assert job.status()["watermark"] == 110_000, "b was silent from the first run to the second"


def test_an_earlier_run_under_available_now_says_nothing_about_silence(
    own: LocalCoordinator, runs: Runs, clock: VirtualClock
) -> None:
    """The batch that it planned has the input of the time when that run started, which is unknown."""
    job = new_job(own, idle_timeout=timedelta(seconds=1))
    run = runs.run(job, input_complete=InputComplete.PER_RUN)
    run.batch(0, a=100_000, b=40_000)
    clock.advance(1.5)
    runs.plan(1)
    clock.advance(0.1)
    run = runs.run(job, input_complete=InputComplete.PER_RUN)
    run.batch(1, a=110_000)
    assert job.status()["watermark"] == 30_000
