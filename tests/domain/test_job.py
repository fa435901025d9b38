"""The commands of a job, one rule per test. tests/store compares the Lua functions with this machine."""

from collections.abc import Callable

import pytest

from tests.domain.batches import OTHER, RUN, batch, watermark
from tests.support.machine import JobMachine
from tidegate.domain.batches import BeginOptions, CaughtUp, PartitionReport
from tidegate.domain.config import Frame, FrameThrottle, JobConfig, NoThrottle
from tidegate.domain.errors import (
    BatchForgotten,
    BatchNotBegun,
    BatchOpen,
    JobComplete,
    PinnedWatermarkConflict,
    QueryFenced,
    ReportsMissing,
)
from tidegate.domain.evaluate import accept_token
from tidegate.domain.job import PinnedWatermark, Run, TokenClaim
from tidegate.domain.policies import LimitingLag


def machine(lag: int = 10, idle_timeout_ms: int | None = None, frame: Frame | None = None) -> JobMachine:
    throttle = NoThrottle() if frame is None else FrameThrottle(frame.size, frame.slide, frame.offset)
    return JobMachine(JobConfig(LimitingLag(lag), throttle, idle_timeout_ms), now_ms=0)


def test_the_slowest_substream_holds_the_watermark() -> None:
    """If the max event time of all substreams counted, the rows of a slow substream would be late."""
    job = machine()
    batch(job, RUN, 0, {"fast": 1000, "slow": 300}, 1)
    assert watermark(job) == 290
    held_by = job.watermark_state().held_by
    assert held_by is not None
    assert (held_by.substream, held_by.reason) == ("slow", "slow")


def test_a_report_takes_effect_with_the_commit() -> None:
    """A crash undoes uncommitted rows, so these must not move the watermark."""
    job = machine()
    job.begin(RUN, 0, 1)
    job.stage(RUN, 0, PartitionReport(0, {"a": 500}), 2)
    assert watermark(job) is None
    job.commit(RUN, 0, None, 3)
    assert watermark(job) == 490


def test_an_open_batch_holds_the_emitted_watermark_at_its_pin() -> None:
    """Consumers must not treat rows as complete while another query still writes some of them."""
    job = machine()
    batch(job, RUN, 0, {"a": 100}, 1)
    batch(job, OTHER, 0, {"a": 100}, 1)
    job.begin(OTHER, 1, 2)
    batch(job, RUN, 1, {"a": 300}, 3)
    job.stage(OTHER, 1, PartitionReport(0, {"a": 300}), 3)
    assert watermark(job) == 90
    job.commit(OTHER, 1, None, 4)
    assert watermark(job) == 290


def test_when_only_the_open_batch_is_behind_it_is_named_as_holder() -> None:
    job = machine(idle_timeout_ms=10)
    batch(job, RUN, 0, {"a": 100}, 1)
    job.begin(OTHER, 0, 2)
    batch(job, RUN, 1, {"a": 300}, 3)
    answer = job.watermark_state()
    assert (answer.watermark, answer.coalesced_watermark) == (90, 290)
    assert answer.held_by is not None
    assert (answer.held_by.reason, answer.held_by.query, answer.held_by.batch_id) == ("open_batch", "arrivals", 0)


def test_a_first_batch_that_never_ends_is_named_as_holder() -> None:
    """The query has reported no substream, so `held_by` can only name its batch."""
    job = machine()
    job.begin(RUN, 0, 1)
    held_by = job.sweep(500).held_by
    assert held_by is not None
    assert (held_by.reason, held_by.query, held_by.batch_id) == ("open_batch", "departures", 0)


def test_a_replayed_batch_gets_the_pin_it_had() -> None:
    """A newer watermark would make rows late that were on time before the crash."""
    job = machine()
    batch(job, RUN, 0, {"a": 100}, 1)
    pinned_watermark = job.begin(RUN, 1, 2).pinned_watermark
    batch(job, OTHER, 0, {"a": 9000}, 3)
    batch(job, RUN, 1, {"a": 9000}, 3)
    assert watermark(job) == 8990
    again = job.begin(Run("departures", "checkpoint", "run-2"), 1, 4)
    assert (again.pinned_watermark, again.replayed) == (pinned_watermark, True)


def test_a_new_run_fences_the_old_one_and_drops_what_it_staged() -> None:
    """A driver that seemed dead must not write into the batch of its successor."""
    job = machine()
    job.begin(RUN, 0, 1)
    job.stage(RUN, 0, PartitionReport(0, {"a": 500}), 2)
    successor = Run("departures", "checkpoint", "run-2")
    job.begin(successor, 0, 3)
    refused: list[Callable[[], object]] = [
        lambda: job.stage(RUN, 0, PartitionReport(0, {"a": 900}), 4),
        lambda: job.commit(RUN, 0, None, 4),
        lambda: job.begin(RUN, 1, 4),
        lambda: job.heartbeat(RUN, 4, 4),
    ]
    for command in refused:
        with pytest.raises(QueryFenced):
            command()
    job.commit(successor, 0, None, 5)
    assert watermark(job) is None


def test_a_new_run_drops_the_reports_of_the_old_one_whatever_its_first_call() -> None:
    """A heartbeat or the replay of an older batch may precede the begin of the open batch."""
    for first_call in ("heartbeat", "replay"):
        job = machine()
        batch(job, RUN, 0, {"a": 50}, 0)
        job.begin(RUN, 1, 1)
        job.stage(RUN, 1, PartitionReport(0, {"a": 9_999_999}, {"a": 50}), 2)
        successor = Run("departures", "checkpoint", "run-2")
        if first_call == "heartbeat":
            job.heartbeat(successor, 3, 3)
        else:
            job.begin(successor, 0, 3)
        with pytest.raises(BatchNotBegun):
            job.commit(successor, 1, None, 4)
        job.begin(successor, 1, 5)
        job.stage(successor, 1, PartitionReport(0, {"a": 100}, {"a": 5}), 5)
        job.commit(successor, 1, None, 6)
        assert watermark(job) == 90


def test_a_heartbeat_that_comes_late_proves_no_more_than_it_did() -> None:
    """The delay of a heartbeat that a proxy repeats is no evidence of silence."""
    job = machine(idle_timeout_ms=100)
    batch(job, RUN, 0, {"a": 500, "b": 50}, 0)
    job.heartbeat(RUN, 20, 20)
    batch(job, RUN, 1, {"a": 600}, 30)
    job.heartbeat(RUN, 20, 5000)
    assert watermark(job) == 40


def test_a_later_begin_commits_the_batch_before() -> None:
    """A lost commit must not hold the watermark forever."""
    job = machine()
    job.begin(RUN, 0, 1)
    job.stage(RUN, 0, PartitionReport(0, {"a": 500}), 2)
    assert job.begin(RUN, 1, 3).pinned_watermark == 490


def test_a_batch_whose_commit_was_lost_is_no_evidence_of_silence() -> None:
    """The store that has lost the commit may also have lost reports of the batch."""
    job = machine(idle_timeout_ms=100)
    batch(job, RUN, 0, {"a": 500, "b": 50}, 0)
    job.begin(RUN, 1, 200)
    job.begin(RUN, 2, 201)
    assert watermark(job) == 40
    job.commit(RUN, 2, None, 202)
    assert watermark(job) == 490


def test_a_kept_pin_is_adopted_and_a_differing_one_refused() -> None:
    """The copy beside the checkpoint remains when the coordinator loses its state."""
    job = machine()
    assert job.begin(RUN, 7, 1, BeginOptions(PinnedWatermark(123))).pinned_watermark == 123
    with pytest.raises(PinnedWatermarkConflict) as refused:
        job.begin(RUN, 7, 1, BeginOptions(PinnedWatermark(124)))
    assert refused.value.details == {"pinned_watermark": 123}


def test_the_begin_of_a_forgotten_batch_is_refused() -> None:
    """Pinned watermarks are kept for as many batches as Spark can replay."""
    job = machine()
    for number in range(101):
        batch(job, RUN, number, {}, number)
    assert job.begin(RUN, 1, 200).replayed
    with pytest.raises(BatchForgotten):
        job.begin(RUN, 0, 200)


def test_a_commit_of_a_batch_that_was_never_begun_changes_nothing() -> None:
    job = machine()
    with pytest.raises(BatchNotBegun):
        job.commit(RUN, 0, None, 1)
    batch(job, RUN, 0, {"a": 100}, 1)
    with pytest.raises(BatchNotBegun):
        job.commit(RUN, 1, None, 2)
    assert watermark(job) == 90


def test_silence_counts_only_up_to_what_a_query_has_observed() -> None:
    """An outage of the coordinator or of a query must not make the query's substreams idle."""
    job = machine(idle_timeout_ms=100)
    batch(job, RUN, 0, {"a": 500, "b": 50}, 0)
    job.sweep(1_000_000)
    assert watermark(job) == 40
    held_by = job.watermark_state().held_by
    assert held_by is not None
    assert held_by.reason == "blocked"
    batch(job, RUN, 1, {"a": 600}, 1_000_000)  # begun at that time, without rows of b
    assert watermark(job) == 590


def test_a_batch_proves_silence_up_to_the_age_of_its_input() -> None:
    """A batch planned before an outage is no evidence for the time since. Without an input age, a batch is no evidence
    at all.
    """
    job = machine(idle_timeout_ms=100)
    batch(job, RUN, 0, {"a": 500, "b": 50}, 0)
    job.begin(RUN, 1, 1_000_000, BeginOptions(input_age_ms=999_901))
    job.stage(RUN, 1, PartitionReport(0, {"a": 600}), 1_000_000)
    job.commit(RUN, 1, None, 1_000_000)
    assert watermark(job) == 40
    job.begin(RUN, 2, 2_000_000, BeginOptions(input_age_ms=None))
    job.commit(RUN, 2, None, 2_000_000)
    assert watermark(job) == 40
    job.begin(RUN, 3, 2_000_000, BeginOptions(input_age_ms=1_999_900))
    job.commit(RUN, 3, None, 2_000_000)
    assert watermark(job) == 590


def test_begin_returns_the_previous_batch() -> None:
    """A client that has committed a later batch detects a loss of data in the store."""
    job = machine()
    before = [job.begin(RUN, 0, 0)]
    before.append(job.begin(RUN, 1, 1))
    job.commit(RUN, 1, None, 2)
    before += [job.begin(RUN, 1, 3), job.begin(RUN, 2, 4), job.begin(RUN, 2, 5)]
    job.commit(RUN, 2, None, 6)
    before.append(job.begin(Run("departures", "another-checkpoint", "run-2"), 0, 7))
    previous = [(begun.previous_batch_id, begun.previous_open) for begun in before]
    assert previous == [(None, False), (0, True), (1, False), (1, False), (1, False), (None, False)]


def test_a_commit_is_refused_if_reports_are_missing() -> None:
    """The store may have lost the end of its log between the report and the commit."""
    job = machine()
    job.begin(RUN, 0, 0)
    job.stage(RUN, 0, PartitionReport(0, {"a": 500, "b": 50}, {"a": 1, "b": 1}), 0)
    with pytest.raises(ReportsMissing, match="lacks 1 row counts"):
        job.commit(RUN, 0, None, 1, reported=3)
    assert watermark(job) is None
    assert job.commit(RUN, 0, None, 1, reported=2).applied
    assert watermark(job) == 40
    assert not job.commit(RUN, 0, None, 1, reported=3).applied


def test_a_declared_substream_takes_one_declared_max_event_time() -> None:
    """A program may declare substreams before their query declares the event times that it has reached."""
    job = machine()
    job.declare("departures", ["a", "b"], 0)
    assert job.declare("departures", ["a"], 0, {"a": 500}).applied
    assert not job.declare("departures", ["a"], 0, {"a": 600}).applied
    assert job.declare("departures", ["b"], 0, {"b": 50}).applied
    assert job.sweep(0).watermark == 40


def test_max_event_times_too_far_ahead_of_the_clock_are_not_declared() -> None:
    """The client may have stored the event time of a broken clock."""
    job = JobMachine(JobConfig(LimitingLag(10), max_future_skew_ms=1_000), 0)
    job.declare("departures", ["a", "b"], 0, {"a": 1_001, "b": 1_000})
    assert {row.substream: row.max_event_time for row in job.substream_table(0)} == {"a": None, "b": 1_000}
    assert job.summary().max_event_time == 1_000


def test_a_heartbeat_is_evidence_of_silence_but_not_while_a_batch_is_open() -> None:
    """A silent input closes its windows. An open batch may still contain rows of silent substreams."""
    job = machine(idle_timeout_ms=100)
    batch(job, RUN, 0, {"a": 500, "b": 50}, 0)
    job.begin(RUN, 1, 10)
    assert not job.heartbeat(RUN, 500, 500).applied
    job.commit(RUN, 1, None, 501)
    assert watermark(job) == 40
    job.heartbeat(RUN, 100, 550)  # observed at 100, exactly the timeout after the last events
    assert watermark(job) == 490


def test_a_heartbeat_proves_nothing_while_the_coordinator_lacks_a_batch() -> None:
    """The query has processed a batch that it has not reported yet, so its substreams may not be silent."""
    job = machine(idle_timeout_ms=100)
    batch(job, RUN, 0, {"a": 500, "b": 50}, 0)
    assert not job.heartbeat(RUN, 500, 500, after_batch=1).applied
    assert watermark(job) == 40
    batch(job, RUN, 1, {"b": 60}, 501)
    assert job.heartbeat(RUN, 502, 502, after_batch=1).applied
    assert watermark(job) == 50


def test_while_a_batch_is_open_a_heartbeat_is_evidence_of_the_batch_before() -> None:
    """Under load, a client that learns the offsets of a batch after the batch sends them during the next one."""
    job = machine(idle_timeout_ms=100)
    batch(job, RUN, 0, {"a": 500, "b": 50, "c": 60}, 0)
    job.begin(RUN, 1, 200, BeginOptions(input_age_ms=None))
    assert not job.heartbeat(RUN, 100, 210, after_batch=1, caught_up=["b"]).applied
    assert job.heartbeat(RUN, 100, 210, after_batch=0, caught_up=["b"]).applied
    assert {row.substream: row.state for row in job.substream_table(210)}["b"] == "idle"
    assert job.heartbeat(RUN, 100, 220, after_batch=0).applied
    assert {row.substream: row.state for row in job.substream_table(220)}["c"] == "idle"


def test_a_heartbeat_is_no_evidence_of_a_batch_whose_commit_was_lost() -> None:
    """Reports of that batch may be lost, too. The next begin applies what is there."""
    job = machine(idle_timeout_ms=100)
    batch(job, RUN, 0, {"a": 500, "b": 50}, 0)
    job.begin(RUN, 1, 10)
    job.begin(RUN, 2, 20, BeginOptions(input_age_ms=None))
    assert not job.heartbeat(RUN, 500, 500, after_batch=1).applied
    assert not job.heartbeat(RUN, 500, 500, after_batch=0).applied
    assert watermark(job) == 40


def test_a_caught_up_substream_becomes_idle_while_others_have_unread_input() -> None:
    """A query with a standing backlog must not be held for ever by a silent partition that it has read to the end."""
    job = machine(idle_timeout_ms=100)
    batch(job, RUN, 0, {"a": 500, "b": 50, "c": 60}, 0)
    for number, at in ((1, 99), (2, 100)):
        job.begin(RUN, number, at)
        job.stage(RUN, number, PartitionReport(0, {"a": 500 + number}), at)
        job.commit(RUN, number, None, at, caught_up=CaughtUp(["b", "never seen"], 0))
        assert {row.substream: row.state for row in job.substream_table(at)} == {
            "a": "active",
            "b": "active" if at < 100 else "idle",
            "c": "active" if at < 100 else "blocked",  # no evidence
        }
    assert watermark(job) == 50


def test_what_was_read_of_some_substreams_is_no_evidence_for_others() -> None:
    """The time of the begin does not count, and a run that repeats the commit must not widen the evidence."""
    job = machine(idle_timeout_ms=100)
    batch(job, RUN, 0, {"a": 500, "b": 50}, 0)
    job.begin(RUN, 1, 500)
    job.commit(RUN, 1, None, 500, caught_up=CaughtUp(["a"], 401))
    assert watermark(job) == 40
    job.begin(RUN, 2, 500, BeginOptions(input_age_ms=None))
    job.commit(RUN, 2, None, 500)
    assert watermark(job) == 40
    job.begin(RUN, 3, 500, BeginOptions(input_age_ms=None))
    job.commit(RUN, 3, None, 500, caught_up=CaughtUp(["b"], 400))
    assert watermark(job) == 490


def test_a_heartbeat_for_some_substreams_leaves_the_idle_clock() -> None:
    job = machine(idle_timeout_ms=100)
    batch(job, RUN, 0, {"a": 500, "b": 50, "c": 60}, 0)
    assert job.heartbeat(RUN, 200, 200, caught_up=["b"]).applied
    assert {row.substream: row.state for row in job.substream_table(200)} == {
        "a": "blocked",
        "b": "idle",
        "c": "blocked",
    }
    assert watermark(job) == 50


def test_waiting_for_the_coordinator_does_not_count_as_silence() -> None:
    """A waiting query reads no input, so an outage of ten seconds must not make its substreams idle."""
    job = machine(idle_timeout_ms=100)
    batch(job, RUN, 0, {"a": 500, "b": 50}, 0)
    job.begin(RUN, 1, 10_050, BeginOptions(waited_ms=10_000))
    job.stage(RUN, 1, PartitionReport(0, {"a": 600}), 10_050)
    job.commit(RUN, 1, None, 10_050, waited_ms=10_000)
    batch_2 = job.begin(RUN, 2, 10_099, BeginOptions(waited_ms=10_000))
    job.commit(RUN, 2, None, 10_099, waited_ms=10_000)
    assert batch_2.pinned_watermark == 40
    assert [row.state for row in job.substream_table(10_099)] == ["active", "active"]
    job.begin(RUN, 3, 10_100, BeginOptions(waited_ms=10_000))
    job.commit(RUN, 3, None, 10_100, waited_ms=10_000)
    assert watermark(job) == 590


def test_a_substream_that_becomes_active_again_holds_without_moving_anything_back() -> None:
    job = machine(idle_timeout_ms=100)
    batch(job, RUN, 0, {"a": 500, "b": 50}, 0)
    job.heartbeat(RUN, 200, 200)
    batch(job, RUN, 1, {"a": 900, "b": 60}, 201)
    assert watermark(job) == 490
    batch(job, RUN, 2, {"b": 700}, 202)
    assert watermark(job) == 690


def test_direct_reporters_are_judged_by_plain_timeout() -> None:
    """Direct reporters have no batches that prove silence."""
    job = machine(idle_timeout_ms=100)
    job.report({"a": 500, "b": 50}, 0)
    job.report({"a": 600}, 99)
    assert job.sweep(99).watermark == 40
    assert job.sweep(100).watermark == 590


def test_declared_substreams_hold_from_the_start() -> None:
    """A substream without a report may still have the oldest rows."""
    job = machine()
    job.declare("departures", ["late-starter"], 0)
    batch(job, RUN, 0, {"a": 500}, 1)
    assert watermark(job) is None
    held_by = job.watermark_state().held_by
    assert held_by is not None
    assert (held_by.reason, held_by.substream) == ("never_reported", "late-starter")


def test_a_frame_throttle_emits_only_boundaries() -> None:
    job = machine(lag=0, frame=Frame(100, 100))
    batch(job, RUN, 0, {"a": 199}, 1)
    assert watermark(job) == 100


def test_the_end_of_input_closes_the_last_frame_and_freezes_the_job() -> None:
    """The last windows must close without further events."""
    job = machine(frame=Frame(100, 100))
    batch(job, RUN, 0, {"a": 200, "b": 130}, 1)
    job.begin(RUN, 1, 2)
    with pytest.raises(BatchOpen):
        job.complete(3)
    job.commit(RUN, 1, None, 4)
    assert job.complete(5).state.watermark == 300
    assert not job.complete(6).applied
    commands: list[Callable[[], object]] = [lambda: job.begin(RUN, 2, 7), lambda: job.report({"x": 1}, 7)]
    for command in commands:
        with pytest.raises(JobComplete):
            command()
    assert job.begin(RUN, 1, 8).replayed


def test_a_policy_change_moves_nothing_back() -> None:
    job = machine(lag=10)
    batch(job, RUN, 0, {"a": 500}, 1)
    job.configure(JobConfig(LimitingLag(400)), 2)
    assert watermark(job) == 490
    job.configure(JobConfig(LimitingLag(1)), 3)
    assert watermark(job) == 499


def test_a_proven_watermark_heals_and_an_older_incarnation_does_not() -> None:
    """After the store has lost the end of its log, a client's token restores the watermark."""
    job = machine()
    job.incarnation = 2
    accept_token(job, TokenClaim(1, 10_000))
    assert (watermark(job), job.tokens_ignored) == (None, 1)
    accept_token(job, TokenClaim(2, 700))
    assert watermark(job) == 700
    accept_token(job, TokenClaim(2, 600))
    assert watermark(job) == 700
    assert [record.kind for record in job.history].count("watermark_restored") == 1
