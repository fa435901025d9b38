"""Operators' actions on a job, and queries that join, leave and are replaced: one rule per test."""

import pytest

from tests.domain.batches import OTHER, RUN, batch, watermark
from tests.support.machine import JobMachine
from tidegate.domain.batches import BeginOptions, PartitionReport
from tidegate.domain.config import FrameThrottle, JobConfig
from tidegate.domain.errors import (
    BatchNotBegun,
    CheckpointConflict,
    HoldActive,
    HoldExists,
    JobComplete,
    QueryNotFound,
    QueryRetired,
    SubstreamDone,
    SubstreamNotFound,
)
from tidegate.domain.evaluate import accept_token
from tidegate.domain.history import AuditInfo
from tidegate.domain.job import PinnedWatermark, Run, TokenClaim
from tidegate.domain.policies import LimitingLag
from tidegate.domain.values import DIRECT

AGAIN = Run("departures", "checkpoint", "run-2")
MOVED = Run("departures", "checkpoint-2", "run-3")


def machine(**config: object) -> JobMachine:
    return JobMachine(JobConfig(LimitingLag(0), **config), 0)  # type: ignore[arg-type]


def test_the_history_records_the_actor_and_the_reason_of_an_action() -> None:
    job = machine()
    job.report({"a": 5}, 0)
    job.evict(DIRECT, ["a"], 1, AuditInfo("ann", "sold"))
    record = next(record for record in job.history if record.kind == "action")
    assert record.details == {"action": "evict", "actor": "ann", "reason": "sold", "count": 1, "substreams": ["/a"]}


def test_a_substream_marked_idle_becomes_active_by_its_next_event_only() -> None:
    job = machine(idle_timeout_ms=1000)
    job.report({"a": 100, "b": 10}, 0)
    assert job.idle(DIRECT, ["b"], 0).state.watermark == 100
    job.configure(JobConfig(LimitingLag(0)), 1)
    assert job.substream_table(1)[1].state == "idle"
    job.report({"b": 20}, 2)
    assert job.substream_table(2)[1].state == "active"
    assert watermark(job) == 100


def test_actions_on_substreams_are_all_or_nothing() -> None:
    """If one name is refused, no substream of the list changes."""
    job = machine()
    job.report({"a": 1, "b": 2}, 0)
    for act in (job.idle, job.done):
        with pytest.raises(SubstreamNotFound, match="'x'"):
            act(DIRECT, ["a", "x"], 0)
    job.done(DIRECT, ["b"], 0)
    with pytest.raises(SubstreamDone, match="'b'"):
        job.idle(DIRECT, ["a", "b"], 0)
    assert [row.state for row in job.substream_table(0)] == ["active", "done"]


@pytest.mark.parametrize("removal", ["evict", "retire"])
def test_what_is_removed_leaves_no_trace(removal: str) -> None:
    """A device 23 hours fast must not move the watermark after its eviction, by any rule."""
    job = machine(idle_timeout_ms=1000, max_retention_ms=160)
    job.report({"a": 100, "b": 10}, 0)
    batch(job, RUN, 0, {"fast": 80_000}, 0)
    if removal == "evict":
        job.evict(RUN.query, ["fast"], 1)
    else:
        job.retire(RUN.query, None, 1)
    summary = job.summary()
    assert (summary.max_watermark, summary.max_event_time) == (100, 100)
    assert job.sweep(161).watermark == 10  # the history of the max watermark began anew
    assert job.sweep(321).watermark == 100
    assert job.sweep(1000).watermark == 100
    assert job.complete(1001).state.watermark == 101


def test_an_eviction_of_a_slow_substream_keeps_the_history() -> None:
    """Retention must not start again with each eviction."""
    job = machine(max_retention_ms=160)
    job.report({"a": 100, "b": 10, "slow": 20}, 0)
    job.evict(DIRECT, ["slow"], 80)
    assert job.sweep(160).watermark == 100


def test_a_hold_limits_the_coalesced_watermark_to_the_frame_below_it() -> None:
    """If pinned watermarks could pass a hold, rows below the hold would be late."""
    job = machine(throttle=FrameThrottle(10, 10))
    job.hold("h", 55, None, 0, AuditInfo("ann", "repair"))
    job.report({"a": 200}, 1)
    assert job.watermark_state().coalesced_watermark == 50
    held_by = job.watermark_state().held_by
    assert held_by is not None
    assert (held_by.reason, held_by.hold) == ("hold", "h")
    assert job.begin(RUN, 0, 2).pinned_watermark == 50
    job.commit(RUN, 0, None, 2)
    assert job.release("h", 3).watermark == 200


def test_a_hold_below_the_watermark_stops_it_where_it_is() -> None:
    """The watermark stays where it is and does not go back to the hold."""
    job = machine()
    job.report({"a": 100}, 0)
    job.hold("h", 50, 10, 1)
    assert job.report({"a": 200}, 2).state.watermark == 100
    with pytest.raises(HoldExists):
        job.hold("h", 60, None, 3)
    with pytest.raises(HoldActive):
        job.complete(3)
    assert job.sweep(11).watermark == 200


def test_a_release_raises_the_watermark_of_an_idle_job() -> None:
    """No data follows the release, so the release itself must raise the watermark."""
    job = machine(idle_timeout_ms=10)
    job.hold("h", 50, None, 0)
    job.report({"a": 100}, 0)
    assert job.sweep(20).watermark == 50
    assert job.release("h", 21).watermark == 100


def test_substreams_of_a_retired_query_do_not_hold_the_watermark() -> None:
    """The operator accepts the loss of the rows that the query has not committed."""
    job = machine()
    batch(job, RUN, 0, {"a": 10})
    batch(job, OTHER, 0, {"b": 500})
    job.begin(RUN, 1, 2)
    assert job.retire("departures", None, 3).state.watermark == 500
    with pytest.raises(QueryRetired):
        job.commit(RUN, 1, None, 4)
    with pytest.raises(QueryRetired):
        job.begin(RUN, 2, 4)
    with pytest.raises(QueryRetired):
        job.heartbeat(RUN, 4, 4)
    assert not job.retire("departures", None, 5).applied
    with pytest.raises(QueryNotFound):
        job.retire("never", None, 5)


def test_a_retired_query_can_be_started_again() -> None:
    """The query joins the job again, so its rows below the watermark are late."""
    job = machine()
    batch(job, RUN, 0, {"a": 10})
    batch(job, OTHER, 0, {"b": 500})
    job.retire("departures", None, 3)
    begun = job.begin(AGAIN, 1, 4)
    assert (begun.joined, begun.pinned_watermark) == (True, 500)


def test_a_successor_takes_over_the_substreams_of_its_predecessor() -> None:
    """The successor takes over the substreams, except those that it already has."""
    job = machine()
    batch(job, RUN, 0, {"a": 10, "b": 900})
    batch(job, OTHER, 0, {"b": 500})
    assert job.retire("departures", "arrivals", 2).state.watermark == 10
    assert {(row.query, row.substream, row.max_event_time) for row in job.substream_table(2)} == {
        ("arrivals", "a", 10),
        ("arrivals", "b", 500),
    }


def test_a_query_that_lost_its_checkpoint_gives_up_its_batch() -> None:
    """The query keeps its substreams and continues with another checkpoint. Calls of its old run are refused."""
    job = machine()
    batch(job, RUN, 0, {"a": 10})
    job.begin(RUN, 1, 2)
    with pytest.raises(CheckpointConflict):
        job.begin(MOVED, 0, 3)
    assert job.retire("departures", "departures", 4).applied
    with pytest.raises(QueryRetired):
        job.commit(RUN, 1, None, 5)
    assert job.begin(MOVED, 0, 6).pinned_watermark == 10
    assert [row.substream for row in job.substream_table(6)] == ["a"]


def test_a_batch_abandoned_by_mistake_begins_again_with_its_pin() -> None:
    """The old checkpoint was found again, so the batch must keep its first pinned watermark."""
    job = machine()
    batch(job, RUN, 0, {"a": 10})
    assert job.begin(RUN, 1, 2).pinned_watermark == 10
    job.retire("departures", "departures", 3)
    batch(job, OTHER, 0, {"b": 5})
    job.done("departures", ["a"], 4)
    batch(job, OTHER, 1, {"b": 700})
    begun = job.begin(AGAIN, 1, 5)
    assert (begun.replayed, begun.pinned_watermark) == (False, 10)
    job.stage(AGAIN, 1, PartitionReport(0, {"c": 20}), 6)
    assert job.commit(AGAIN, 1, None, 7).applied


def test_a_job_waits_for_expected_queries_until_they_report_substreams() -> None:
    """An empty first batch has no substreams, so the job continues to wait."""
    job = machine(expected_queries=("departures",))
    batch(job, OTHER, 0, {"b": 500})
    held_by = job.watermark_state().held_by
    assert held_by is not None
    assert (held_by.reason, held_by.query, watermark(job)) == ("missing_query", "departures", None)
    batch(job, RUN, 0, {})
    assert watermark(job) is None
    batch(job, RUN, 1, {"a": 300})
    assert watermark(job) == 300
    assert job.summary().missing_queries == ()


def test_the_limits_apply_to_a_missing_expected_query() -> None:
    """The watermark passes the missing query after its timeout, and the history names the query."""
    job = machine(expected_queries=("departures",), query_timeout_ms=100)
    job.report({"b": 500}, 0)
    assert job.sweep(100).watermark == 500
    idle = next(record for record in job.history if record.kind == "idle")
    assert (idle.details["limit"], idle.details["query"]) == ("query_timeout_ms", "departures")


def test_a_substream_continues_from_its_declared_max_event_time() -> None:
    """After a loss of the store, the first batch alone would give a lower watermark."""
    job = machine()
    job.declare("departures", ["a", "b"], 0, {"a": 100})
    job.declare("departures", ["b"], 0, {"b": 50})  # already declared, without an event time
    assert watermark(job) is None
    batch(job, RUN, 0, {"b": 70})
    assert watermark(job) == 70


def test_reopening_leaves_the_watermark_and_the_substreams() -> None:
    """An operator completed the wrong job, and its input continues."""
    job = machine(throttle=FrameThrottle(10, 10))
    job.report({"a": 15, "b": 28}, 0)
    assert job.complete(1).state.watermark == 30
    assert [row.state for row in job.substream_table(1)] == ["done", "done"]
    assert job.reopen(2).state.watermark == 30
    assert [row.state for row in job.substream_table(2)] == ["active", "active"]
    assert job.report({"a": 55, "b": 47}, 3).state.watermark == 40


def test_a_reset_keeps_only_the_configuration_and_the_history() -> None:
    """Tokens that were issued before the reset prove nothing about the new incarnation."""
    job = machine(expected_queries=("departures",))
    batch(job, RUN, 0, {"a": 10**15})
    answer = job.reset(2, "fresh", AuditInfo("ann", "microseconds"))
    assert (answer.incarnation, answer.state_epoch, answer.watermark) == (2, "fresh", None)
    assert job.summary().missing_queries == ("departures",)
    accept_token(job, TokenClaim(1, 10**15))
    assert (job.watermark, job.tokens_ignored) == (None, 1)
    with pytest.raises(BatchNotBegun):
        job.commit(RUN, 0, None, 3)
    assert job.begin(RUN, 1, 3, BeginOptions(PinnedWatermark(None))).pinned_watermark is None
    assert [record.kind for record in job.history][-1] == "action"


def test_a_known_pin_holds_during_the_implied_commit_of_the_batch_before() -> None:
    """The coordinator has lost the begin of batch 2. The implied commit of batch 1 must not raise W past the rows of
    batch 2.
    """
    job = machine()
    batch(job, RUN, 0, {"a": 10})
    job.begin(RUN, 1, 2)
    job.stage(RUN, 1, PartitionReport(0, {"a": 500}), 2)
    answer = job.begin(RUN, 2, 3, BeginOptions(PinnedWatermark(10))).state
    assert (answer.coalesced_watermark, answer.watermark) == (500, 10)


def test_the_end_of_input_is_above_every_event_time() -> None:
    """The done substream had the max event time, and its last window must close. An evicted one does not count."""
    job = machine(throttle=FrameThrottle(100, 100))
    job.report({"a": 1000, "b": 2050, "c": 3050}, 0)
    job.done(DIRECT, ["b"], 1)
    job.evict(DIRECT, ["c"], 1)
    assert job.summary().max_event_time == 2050
    assert job.complete(2).state.watermark == 2100


def test_an_expected_query_retired_before_its_first_batch_stays_retired() -> None:
    """A new configuration must not undo the retirement."""
    job = machine(expected_queries=("departures",))
    job.report({"b": 500}, 0)
    assert job.retire("departures", None, 1).state.watermark == 500
    job.configure(JobConfig(LimitingLag(5), expected_queries=("departures",)), 2)
    assert job.summary().missing_queries == ()
    assert job.begin(RUN, 0, 3).pinned_watermark == 500
    assert [record.kind for record in job.history].count("fenced") == 0


def test_a_repeated_hold_lasts_until_the_later_expiry() -> None:
    job = machine()
    job.hold("h", 50, 10, 0)
    job.report({"a": 100}, 0)
    assert job.hold("h", 50, 100, 5).applied
    assert not job.hold("h", 50, 20, 6).applied
    assert job.sweep(104).watermark == 50
    assert job.sweep(105).watermark == 100
    job.complete(106)
    with pytest.raises(JobComplete):
        job.hold("h", 50, None, 107)
