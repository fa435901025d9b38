"""One query and a coordinator that stops, loses state or answers late."""

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
from tidegate_spark.errors import Refused, TidegateError
from tidegate_spark.protocol.backlog import BacklogBatch
from tidegate_spark.protocol.batches import MAX_CAUGHT_UP
from tidegate_spark.protocol.evidence import Evidence
from tidegate_spark.protocol.retry import ONE_ATTEMPT, OnOutage


def new_job(own: LocalCoordinator, **limits: Any) -> Job:
    return own.job(config=limiting_lag(LAG, **limits))


def continuing_job(own: LocalCoordinator, **limits: Any) -> Job:
    return own.job(config=limiting_lag(LAG, **limits), on_outage="continue")


# -- the coordinator loses state --------------------------------------------------------------------------------------


def test_reports_that_the_coordinator_lost_are_sent_again(own: LocalCoordinator, runs: Runs) -> None:
    """The coordinator has the batch but not its reports, so the commit sends the reports again."""
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
    """A restore takes several calls. The watermark does not pass the slowest substream between two calls."""
    job = new_job(own)
    run = runs.run(job)
    run.batch(0, **{f"s{number:05}": 1_000_000 for number in range(12_000)}, z=500_000)
    assert job.status()["watermark"] == 490_000
    own.empty()
    assert runs.run(job).begin(1).stored.pinned_watermark == 490_000


def test_a_lost_declaration_is_repeated(own: LocalCoordinator, runs: Runs) -> None:
    """The store has lost the declaration and keeps its state epoch. A declared substream must still hold."""
    job = new_job(own)
    job.ensure_job()
    before_the_declaration = own.state()
    run = runs.run(job, declared=("a", "b"))
    own.restore(before_the_declaration)
    run.batch(0, a=100_000)
    assert job.status()["watermark"] is None


@pytest.mark.parametrize("declared", [(), ("a", "b")])
def test_an_evicted_substream_does_not_return_with_a_repeated_begin(
    own: LocalCoordinator, runs: Runs, declared: tuple[str, ...]
) -> None:
    """The answer to the first begin was lost. The coordinator has lost nothing, so there is nothing to report again."""
    job = new_job(own)
    run = runs.run(job, declared=declared)
    run.batch(0, a=100_000, b=40_000)
    run.batch(1, a=110_000)
    operate(job, "POST", "/substreams:evict", {"query": "q", "substreams": ["b"], "reason": "gone"})
    run.session.run(run.session.calls.begin(2, None, None, ONE_ATTEMPT))
    run.batch(2, a=120_000)
    assert known(job) == {"a": 120_000}


def test_an_evicted_substream_does_not_return_with_a_repeated_first_commit(own: LocalCoordinator, runs: Runs) -> None:
    """The answer to the first commit of a run was lost. The coordinator has the declaration that preceded it."""
    job = new_job(own)
    runs.run(job, declared=("a", "b")).batch(0, a=100_000, b=40_000)
    run = runs.run(job, declared=("a", "b"))
    opened, rows = run.begin(1), fold(a=110_000)
    run.report(opened, rows)
    run.session.run(run.session.calls.commit(1, rows.row_counts(), rows.reported(), ONE_ATTEMPT))
    operate(job, "POST", "/substreams:evict", {"query": "q", "substreams": ["b"], "reason": "gone"})
    run.batch(1, a=110_000)
    assert known(job) == {"a": 110_000}


def test_an_evicted_substream_does_not_return_with_a_heartbeat_that_comes_late(
    own: LocalCoordinator, runs: Runs
) -> None:
    """The coordinator ignores the heartbeat because the next batch is open, not because it has lost a batch."""
    job = new_job(own)
    run = runs.run(job, declared=("a", "b"))
    run.batch(0, a=100_000, b=40_000)
    run.batch(1, a=110_000)
    operate(job, "POST", "/substreams:evict", {"query": "q", "substreams": ["b"], "reason": "gone"})
    opened = run.begin(2)
    run.beat(1)
    run.report(opened, fold(a=120_000))
    run.commit(opened, fold(a=120_000))
    assert known(job) == {"a": 120_000}


def test_a_lost_commit_is_recognized_after_a_repeated_begin(own: LocalCoordinator, runs: Runs) -> None:
    """The answer to the first begin showed the loss, but never arrived."""
    job = new_job(own)
    run = runs.run(job)
    run.batch(0, a=100_000)
    before_the_commit = own.state()
    run.batch(1, b=200_000)
    own.restore(before_the_commit)
    run.session.run(run.session.calls.begin(2, None, None, ONE_ATTEMPT))
    run.batch(2, a=300_000)
    assert known(job) == {"a": 300_000, "b": 200_000}


def test_a_run_that_another_run_has_overtaken_sends_nothing_again(own: LocalCoordinator, runs: Runs) -> None:
    """A coordinator that has lost its state cannot fence the older run, so Spark's log of finished batches decides."""
    job = new_job(own)
    run = runs.run(job)
    run.batch(0, a=100_000)
    opened = run.begin(1)
    own.empty()
    (runs.directory / "commits" / "1").touch()
    with pytest.raises(Refused, match="Another run of the query has finished batch 1"):
        run.report(opened, fold(a=200_000))


def test_a_backlog_batch_that_another_run_has_overtaken_is_merged(own: LocalCoordinator, runs: Runs) -> None:
    """A run that was not fenced in time left a batch in the backlog. It must not stop all later runs."""
    job = continuing_job(own)
    first = runs.run(job)
    opened = first.batch(0, a=100_000)
    second = runs.run(job)
    for batch_id in (1, 2):
        second.batch(batch_id, a=100_000 + batch_id)
    first.session.run(BacklogBatch(0, opened.stored, opened.began.at_s, None, fold(b=50_000)).save())
    third = runs.run(job)
    assert third.flush()
    third.batch(3, a=200_000)
    assert known(job) == {"a": 200_000, "b": 50_000}


def test_a_backlog_batch_of_an_overtaken_run_does_not_hide_a_loss(own: LocalCoordinator, runs: Runs) -> None:
    """The coordinator has lost later batches of a newer run, whose commits were acknowledged."""
    job = continuing_job(own)
    runs.run(job).batch(0, a=100_000)
    before_the_newer_run = own.state()
    newer = runs.run(job)
    opened = newer.batch(1, a=110_000)
    newer.batch(2, a=120_000, b=90_000)
    own.restore(before_the_newer_run)
    newer.session.run(BacklogBatch(1, opened.stored, opened.began.at_s, None, fold(a=110_000)).save())
    last = runs.run(job)
    assert last.flush()
    last.batch(3, a=130_000)
    assert known(job) == {"a": 130_000, "b": 90_000}


@pytest.mark.parametrize("first", ["a batch", "a heartbeat"])
def test_the_next_run_restores_the_last_watermark(own: LocalCoordinator, runs: Runs, first: str) -> None:
    """The client stores the watermark token beside the checkpoint, so the watermark does not go back."""
    job = new_job(own)
    run = runs.run(job)
    run.batch(0, a=100_000, b=40_000)
    operate(job, "POST", "/substreams:evict", {"query": "q", "substreams": ["b"], "reason": "gone"})
    run.batch(1, a=101_000)
    assert job.status()["watermark"] == 91_000
    own.empty()
    run = runs.run(job)
    if first == "a heartbeat":
        run.beat(1)
        assert job.status()["watermark"] == 91_000
    assert run.begin(2).stored.pinned_watermark == 91_000


def test_a_heartbeat_after_a_reset_restores_nothing(own: LocalCoordinator, runs: Runs) -> None:
    """A reset removes a wrong event time, and no heartbeat restores it."""
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


def lost_after_a_reset(own: LocalCoordinator, job: Job, runs: Runs) -> Run:
    """Return a run of a job that was reset, and that the coordinator has lost afterwards."""
    run = runs.run(job)
    run.batch(0, a=100_000, b=40_000)
    operate(job, "POST", ":reset", {"reason": "start again"})
    run.batch(1, a=110_000, b=50_000)
    own.empty()
    return run


def test_a_second_loss_after_a_reset_is_not_taken_for_a_reset(own: LocalCoordinator, runs: Runs) -> None:
    """The client creates a lost job in incarnation 1, and its token raises the incarnation to that after the reset."""
    job = new_job(own)
    run = lost_after_a_reset(own, job, runs)
    run.beat(1)
    assert known(job) == {"a": 110_000, "b": 50_000}
    own.empty()
    job.ensure_job()
    run.session.run(run.session.calls.heartbeat(0.0, 1))  # as another query does, with a token of incarnation 2
    run.beat(1)
    assert known(job) == {"a": 110_000, "b": 50_000}


def test_the_configuration_of_a_new_job_of_the_name_is_read(own: LocalCoordinator, runs: Runs) -> None:
    """The job was deleted and created again with another configuration, which has the same revision."""
    job = new_job(own)
    run = runs.run(job)
    run.batch(0, a=100_000)
    before = job.status()
    job.delete()
    new_job(own, max_future_skew=timedelta(days=7)).ensure_job()
    assert job.status()["revision"] == before["revision"]
    run.batch(1, a=110_000)
    assert run.session.protocol.registration.config["max_future_skew_ms"] == 7 * 24 * 3_600_000


def test_a_driver_that_dies_before_it_restores_the_incarnation_is_restored(own: LocalCoordinator, runs: Runs) -> None:
    """The dead driver created the job in incarnation 1. Before the next run, another query restores incarnation 2."""
    job = new_job(own)
    run = lost_after_a_reset(own, job, runs)
    runs.run(job)
    own.empty()
    job.ensure_job()
    run.session.run(run.session.calls.heartbeat(0.0, 1))  # as another query does, with a token of incarnation 2
    runs.run(job).batch(2, a=120_000)
    assert known(job) == {"a": 120_000, "b": 50_000}


def test_a_coordinator_that_loses_its_state_twice_is_restored(
    own: LocalCoordinator, runs: Runs, clock: VirtualClock
) -> None:
    """The state is restored after a second loss too, although no batch ran in between."""
    job = new_job(own, idle_timeout=timedelta(seconds=1))
    run = runs.run(job)
    run.batch(0, a=100_000, b=40_000)
    for _ in range(2):
        own.empty()
        run.session.calls.watermark_token = None  # as if the coordinator had a new secret
        run.beat(0)
        assert known(job) == {"a": 100_000, "b": 40_000}
        assert job.status()["watermark"] is None or job.status()["watermark"] == 30_000
        clock.advance(1.1)
        run.beat(0)
        assert job.status()["watermark"] == 90_000, "both substreams must be idle"


def test_lost_state_is_restored_after_a_failed_batch(own: LocalCoordinator, runs: Runs) -> None:
    """A new run discards what the failed run staged for the restore, and restores the state again."""
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


def test_lost_state_is_restored_if_the_last_batch_runs_again(own: LocalCoordinator, runs: Runs) -> None:
    """The driver died after the commit of batch 2 and before Spark finished it, so the next run begins it again."""
    job = new_job(own)
    run = runs.run(job)
    run.batch(0, a=100_000)
    before = own.state()
    run.batch(1, a=101_000, b=50_000)
    run.batch(2, a=110_000)
    own.restore(before)
    run = runs.run(job)
    run.batch(2, a=110_000)
    assert known(job) == {"a": 110_000, "b": 50_000}


def test_a_renamed_query_restores_nothing(own: LocalCoordinator, runs: Runs) -> None:
    """A query that is renamed does not restore a substream that was evicted under the old name."""
    job = new_job(own)
    run = runs.run(job, "old")
    run.batch(0, a=100_000, b=40_000)
    operate(job, "POST", "/substreams:evict", {"query": "old", "substreams": ["b"], "reason": "gone"})
    run.batch(1, a=110_000)
    job.hand_over("old", "new", "renamed")
    run = runs.run(job, "new")
    run.batch(2, a=120_000)
    assert known(job) == {"a": 120_000}


# -- outages of the coordinator ---------------------------------------------------------------------------------------


def test_a_batch_waits_for_the_coordinator_and_its_substreams_stay_active(
    own: LocalCoordinator, runs: Runs, clock: VirtualClock
) -> None:
    """An outage of the coordinator does not count towards `idle_timeout`."""
    job = new_job(own, idle_timeout=timedelta(seconds=6))
    run = runs.run(job)
    run.batch(0, a=100_000, b=40_000)
    own.stop()
    clock.after(10, own.start)
    assert run.batch(1, a=110_000).stored.pinned_watermark == 30_000
    assert job.status()["substreams"] == {"active": 2, "skewed": 0, "idle": 0, "done": 0, "all_idle": False}
    assert job.status()["watermark"] == 30_000


def test_a_long_outage_keeps_every_pinned_watermark(own: LocalCoordinator, runs: Runs) -> None:
    """Each batch of the backlog contains its pinned watermark, because the coordinator keeps only the last ones."""
    job = continuing_job(own)
    run = runs.run(job)
    run.batch(0, a=1_000_000)
    own.stop()
    for batch_id in range(1, 120):
        run.batch(batch_id, a=1_000_000 + batch_id)
    own.start()
    until(lambda: run.flush(), "the backlog is sent")
    assert job.status()["watermark"] == 990_119
    assert run.batch(120, a=1_000_500).stored.pinned_watermark == 990_119
    assert job.status()["rows"]["on_time"] == 121


def test_an_outage_that_ends_within_a_batch_is_not_silence(
    own: LocalCoordinator, runs: Runs, clock: VirtualClock
) -> None:
    """The coordinator gets the backlog while a batch is open. The time until its commit counts as an outage."""
    job = continuing_job(own, idle_timeout=timedelta(seconds=4))
    run = runs.run(job)
    run.batch(0, a=100_000, b=40_000)
    own.stop()
    run.batch(1, a=101_000)
    clock.advance(6)
    opened = run.begin(2)
    own.start()
    until(lambda: run.flush(), "the backlog is sent")
    clock.advance(6)
    run.report(opened, fold(a=102_000))
    run.commit(opened, fold(a=102_000))
    until(lambda: run.flush(), "the last batch of the outage is sent")
    run.batch(3, a=103_000)
    assert job.status()["substreams"]["idle"] == 0
    assert job.status()["watermark"] == 30_000


def test_under_connect_each_process_reports_its_outages(own: LocalCoordinator, runs: Runs, clock: VirtualClock) -> None:
    """The client's process starts the run and the hook's process runs it. Each process reports its outages."""
    job = continuing_job(own, idle_timeout=timedelta(seconds=3))
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
    """A heartbeat can delay a begin. The delay does not count towards `idle_timeout`."""
    job = new_job(own, idle_timeout=timedelta(seconds=2))
    run = runs.run(job)
    run.batch(0, a=100_000, b=40_000)
    with run.session.lock:
        blocked = threading.Thread(target=run.batch, args=(1,), kwargs={"a": 110_000})
        blocked.start()
        until(lambda: (runs.directory / "offsets" / "1").exists(), "the batch is planned")
        time.sleep(0.1)
        clock.advance(3)
    blocked.join()
    assert job.status()["substreams"]["idle"] == 0


# -- evidence of silence ----------------------------------------------------------------------------------------------


def test_under_available_now_input_is_complete_up_to_the_start_of_the_run(
    own: LocalCoordinator, runs: Runs, clock: VirtualClock
) -> None:
    """Spark fixes the input when the run starts, so no batch is evidence of silence after that time."""
    job = new_job(own, idle_timeout=timedelta(seconds=2))
    run = runs.run(job, available_now=True)
    run.batch(0, a=100_000, b=40_000)
    clock.advance(2.5)
    run.batch(1, a=110_000)
    assert job.status()["watermark"] == 30_000
    run = runs.run(job, available_now=True)
    run.batch(2, a=120_000)
    assert job.status()["watermark"] == 110_000, "b must be idle: it was silent between the two runs"


def test_a_batch_of_an_earlier_run_is_no_evidence_of_silence(
    own: LocalCoordinator, runs: Runs, clock: VirtualClock
) -> None:
    """A batch that an earlier run planned is no evidence of silence, because the start of that run is unknown."""
    job = new_job(own, idle_timeout=timedelta(seconds=1))
    run = runs.run(job, available_now=True)
    run.batch(0, a=100_000, b=40_000)
    clock.advance(1.5)
    runs.plan(1)
    clock.advance(0.1)
    run = runs.run(job, available_now=True)
    run.batch(1, a=110_000)
    assert job.status()["watermark"] == 30_000


# -- offsets as evidence ----------------------------------------------------------------------------------------------


def states(job: Job) -> dict[str, str]:
    return {row["substream"]: row["state"] for row in job.substreams()}


def test_a_partition_that_was_read_to_its_end_does_not_hold_a_query_with_a_backlog(
    own: LocalCoordinator, runs: Runs, clock: VirtualClock
) -> None:
    """``silent`` has no unread row, and ``behind`` has some, but not in this batch."""
    job = new_job(own, idle_timeout=timedelta(seconds=2))
    run = runs.run(job)
    run.batch(0, None, busy=100_000, silent=40_000, behind=50_000)
    clock.advance(3)
    run.batch(1, Evidence(frozenset({"silent"})), busy=110_000)
    assert states(job) == {"busy": "active", "silent": "idle", "behind": "blocked"}
    assert job.status()["watermark"] == 40_000
    run.batch(2, Evidence(), busy=120_000)
    assert states(job) == {"busy": "active", "silent": "idle", "behind": "idle"}


def test_a_batch_with_unread_input_is_no_evidence(own: LocalCoordinator, runs: Runs, clock: VirtualClock) -> None:
    job = new_job(own, idle_timeout=timedelta(seconds=2))
    run = runs.run(job)
    run.batch(0, None, a=100_000, b=40_000)
    clock.advance(3)
    run.batch(1, None, a=110_000)
    run.beat(1, evidence=None)
    assert states(job) == {"a": "active", "b": "blocked"}
    run.beat(1, evidence=Evidence(frozenset({"b"})))
    assert states(job) == {"a": "active", "b": "idle"}


def test_under_available_now_the_latest_offsets_are_those_of_the_start(
    own: LocalCoordinator, runs: Runs, clock: VirtualClock
) -> None:
    job = new_job(own, idle_timeout=timedelta(seconds=2))
    run = runs.run(job, available_now=True)
    run.batch(0, None, a=100_000, b=40_000)
    clock.advance(2.5)
    run.batch(1, Evidence(), a=110_000)  # all input up to the start of the run
    assert states(job) == {"a": "active", "b": "blocked"}
    run.beat(1)
    assert states(job) == {"a": "active", "b": "blocked"}, "an idle trigger has not asked for later input"
    run = runs.run(job, available_now=True)
    run.batch(2, Evidence(), a=120_000)
    assert states(job) == {"a": "active", "b": "idle"}


def test_a_run_that_commits_the_batch_of_another_confirms_no_more(
    own: LocalCoordinator, runs: Runs, clock: VirtualClock
) -> None:
    """The driver dies after the begin of a batch that had read some partitions only. Its offsets are then unknown."""
    job = new_job(own, idle_timeout=timedelta(seconds=2))
    run = runs.run(job)
    run.batch(0, None, a=100_000, b=40_000, c=50_000)
    clock.advance(3)
    run.begin(1, Evidence(frozenset({"b"})))
    run = runs.run(job)
    run.batch(1, None, a=110_000)
    assert states(job) == {"a": "active", "b": "blocked", "c": "blocked"}


def test_a_backlog_batch_with_unread_input_is_no_evidence(
    own: LocalCoordinator, runs: Runs, clock: VirtualClock
) -> None:
    job = continuing_job(own, idle_timeout=timedelta(seconds=2))
    run = runs.run(job)
    run.batch(0, Evidence(), a=100_000, b=40_000)
    opened = run.begin(1, Evidence(frozenset({"b"})))
    own.stop()
    clock.advance(0.1)
    run.report(opened, fold(a=110_000))
    run.commit(opened, fold(a=110_000))
    run.batch(2, Evidence(frozenset({"b"})), a=120_000)
    own.start()
    until(lambda: run.flush(), "the backlog is sent")
    clock.advance(5)
    assert states(job) == {"a": "blocked", "b": "blocked"}


def test_more_substreams_than_fit_into_a_call_are_confirmed_in_turns(
    own: LocalCoordinator, runs: Runs, clock: VirtualClock
) -> None:
    job = new_job(own, idle_timeout=timedelta(seconds=2))
    run, names = runs.run(job), [f"s{number:04}" for number in range(MAX_CAUGHT_UP + 200)]
    read, times = None, {"busy": 100_000} | dict.fromkeys(names, 50_000)
    opened = run.begin(0, read)
    run.report(opened, fold(**times))
    run.commit(opened, fold(**times))
    clock.advance(3)
    idle = []
    for batch_id in (1, 2):
        run.batch(batch_id, Evidence(frozenset(names)), busy=100_000 + batch_id)
        idle.append(job.status()["substreams"]["idle"])
    assert idle == [MAX_CAUGHT_UP, len(names)]


def test_partitions_of_the_source_hold_the_watermark_before_their_first_row(
    own: LocalCoordinator, runs: Runs, clock: VirtualClock
) -> None:
    job = new_job(own, idle_timeout=timedelta(seconds=2))
    run = runs.run(job)
    opened = run.begin(0, None, frozenset({"a", "b"}))
    assert states(job).keys() == {"a", "b"}, "declared before the batch has a row"
    run.report(opened, fold(a=100_000))
    run.commit(opened, fold(a=100_000))
    assert job.status()["watermark"] is None
    clock.advance(3)
    opened = run.begin(1, Evidence(frozenset({"b"})), frozenset({"a", "b"}))
    run.report(opened, fold(a=110_000))
    run.commit(opened, fold(a=110_000))
    assert states(job) == {"a": "active", "b": "idle"}, "proven empty for the timeout"
    assert job.status()["watermark"] == 100_000
    job.evict("q", ["b"])
    opened = run.begin(2, Evidence(frozenset({"b"})), frozenset({"a", "b", "c"}))
    assert states(job).keys() == {"a", "c"}, "an evicted partition is not declared again"
    run.report(opened, fold(a=120_000))
    run.commit(opened, fold(a=120_000))
    own.stop()
    own.empty()
    own.start()
    run.begin(3, None, frozenset({"a", "b", "c"}))
    assert states(job).keys() == {"a", "b", "c"}, "the state was lost"


def test_without_an_idle_timeout_partitions_hold_the_watermark_from_their_first_row(
    own: LocalCoordinator, runs: Runs, clock: VirtualClock
) -> None:
    job = new_job(own)
    run = runs.run(job)
    run.begin(0, None, frozenset({"a", "b"}))
    assert states(job) == {}


def test_partitions_are_declared_in_a_job_that_was_lost_before_the_first_batch(
    own: LocalCoordinator, runs: Runs, clock: VirtualClock
) -> None:
    job = new_job(own, idle_timeout=timedelta(seconds=2))
    run = runs.run(job)
    own.stop()
    own.empty()
    own.start()
    run.begin(0, None, frozenset({"a", "b"}))
    assert states(job).keys() == {"a", "b"}


def test_a_declared_substream_that_is_a_partition_is_declared_once(
    own: LocalCoordinator, runs: Runs, clock: VirtualClock
) -> None:
    """The run has declared it at its start, and an operator may have evicted it since."""
    job = new_job(own, idle_timeout=timedelta(seconds=2))
    run = runs.run(job, declared=("a", "b"))
    opened = run.begin(0)
    run.report(opened, fold(a=100_000))
    run.commit(opened, fold(a=100_000))
    job.evict("q", ["b"])
    run.begin(1, None, frozenset({"a", "b", "c"}))
    assert states(job).keys() == {"a", "c"}


# -- versions of tables -----------------------------------------------------------------------------------------------


def versions(job: Job) -> dict[str, str]:
    """Return the versions of tables that the coordinator knows."""
    (query,) = job.queries()
    return {each["table"]: each["version"] for each in query["outputs"]}


def wrote_table(run: Run, table: str, version: str) -> None:
    run.session.run(run.session.calls.wrote_table(table, version))


def write_batch(run: Run) -> None:
    """Run batch 0, whose function writes a table."""
    opened = run.begin(0)
    run.report(opened, fold(a=1))
    wrote_table(run, "lake.hours", "7")
    run.commit(opened, fold(a=1))


def test_a_commit_tells_the_versions_of_tables(own: LocalCoordinator, runs: Runs) -> None:
    job = new_job(own)
    run = runs.run(job)
    write_batch(run)
    assert versions(job) == {"lake.hours": "7"}
    run.batch(1, a=2)
    assert versions(job) == {"lake.hours": "7"}
    for table in range(30):
        wrote_table(run, f"t{table:02}", "1")
    run.batch(2, a=3)
    assert len(versions(job)) == 20
    assert set(versions(job)) >= {f"t{table:02}" for table in range(10)}, "the commit tells the rest"


def test_a_version_written_after_the_commit_is_told_until_a_begin(own: LocalCoordinator, runs: Runs) -> None:
    """The coordinator ignores versions in a heartbeat about an earlier batch: it may be a delayed one."""
    job = new_job(own)
    run = runs.run(job, tells_output=True)
    run.batch(0, a=100_000)
    run.batch(1, a=200_000)
    wrote_table(run, "lake.hours", "7")
    run.beat(0)
    assert versions(job) == {}
    run.session.run(run.session.protocol.wrote(90_000, 1))
    assert versions(job) == {"lake.hours": "7"}
    wrote_table(run, "lake.hours", "8")
    own.stop()
    with pytest.raises(TidegateError):
        run.beat(1)
    own.start()
    run.begin(2)
    assert versions(job) == {"lake.hours": "8"}


def test_a_replay_of_a_committed_batch_tells_its_versions(own: LocalCoordinator, runs: Runs) -> None:
    """The coordinator ignores what a repeated commit tells, so the next call tells it again."""
    job = new_job(own)
    runs.run(job).batch(0, a=1)
    run = runs.run(job)
    write_batch(run)
    run.beat(0)
    assert versions(job) == {"lake.hours": "7"}


def test_another_run_does_not_keep_the_versions(own: LocalCoordinator, runs: Runs) -> None:
    """The first run may have written a version that it has not told."""
    job = new_job(own)
    run = runs.run(job)
    write_batch(run)
    runs.run(job).begin(1)
    assert versions(job) == {}
