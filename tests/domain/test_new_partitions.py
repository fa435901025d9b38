"""Substreams whose partitions are new, were created again, or are gone: one rule per test."""

from collections.abc import Sequence
from dataclasses import replace

from tests.domain.batches import RUN
from tests.support.machine import JobMachine
from tidegate.domain.batches import PartitionReport
from tidegate.domain.config import JobConfig
from tidegate.domain.offsets import BatchOffsets
from tidegate.domain.policies import LimitingLag

NO_CHANGE = BatchOffsets(["t/0"], [None], [0], [None], [None])


def commit(
    job: JobMachine, batch_id: int, started: Sequence[str] = (), ended: Sequence[str] = (), **times: int
) -> None:
    """Commit a batch with max event times, whose offsets say which substreams started and ended."""
    job.begin(RUN, batch_id, now_ms=batch_id)
    job.stage(RUN, batch_id, PartitionReport(0, times, dict.fromkeys(times, 1)), batch_id)
    job.commit(RUN, batch_id, None, batch_id, offsets=replace(NO_CHANGE, started=started, ended=ended))


def machine(idle_timeout_ms: int | None = None) -> JobMachine:
    job = JobMachine(JobConfig(LimitingLag(10), idle_timeout_ms=idle_timeout_ms), 0)
    commit(job, 0, a=100, b=200)
    assert job.coalesced_watermark == 90
    return job


def states(job: JobMachine) -> dict[str, tuple[str, int | None]]:
    return {row.substream: (row.state, row.watermark) for row in job.substream_table(job.now_ms)}


def records(job: JobMachine) -> list[tuple[str, list[str]]]:
    return [(r.kind, r.details["substreams"]) for r in job.history if r.kind in ("restarted", "ended")]


def test_a_substream_that_starts_again_holds_the_watermark_until_its_first_event() -> None:
    job = machine()
    commit(job, 1, started=["a"], b=500)
    assert states(job) == {"a": ("active", None), "b": ("active", 490)}
    assert (job.coalesced_watermark, records(job)) == (90, [("restarted", ["departures/a"])])
    commit(job, 2, a=60)
    assert states(job)["a"] == ("active", 50), "lower than before"
    assert job.coalesced_watermark == 90, "the watermark never goes back"
    commit(job, 3, a=300)
    assert job.coalesced_watermark == 290


def test_the_events_of_the_batch_are_those_of_the_new_substream() -> None:
    job = machine()
    commit(job, 1, started=["a"], a=95, b=500)
    assert states(job)["a"] == ("active", 85)


def test_a_restarted_substream_can_be_idle() -> None:
    job = machine(idle_timeout_ms=50)
    commit(job, 1, started=["a"], b=500)
    for batch_id in (2, 100):
        commit(job, batch_id, b=500 + batch_id)
    assert states(job)["a"] == ("idle", None)
    assert job.coalesced_watermark == 590


def test_a_substream_that_ends_no_longer_holds_the_watermark() -> None:
    job = machine()
    commit(job, 1, ended=["a", "unknown"], b=500)
    assert states(job) == {"a": ("done", 90), "b": ("active", 490)}
    assert (job.coalesced_watermark, records(job)) == (490, [("ended", ["departures/a"])])


def test_a_substream_that_has_ended_can_start_again() -> None:
    job = machine()
    commit(job, 1, ended=["a"])
    commit(job, 2, started=["a"], b=500)
    assert states(job)["a"] == ("active", None)
    assert job.coalesced_watermark == 190


def test_a_declared_substream_without_events_has_nothing_to_forget() -> None:
    job = machine()
    job.declare(RUN.query, ["c"], 0)
    commit(job, 1, started=["c", "unknown"])
    assert (states(job)["c"], records(job)) == (("active", None), [])


def test_a_repeated_or_earlier_batch_changes_nothing() -> None:
    job = machine()
    commit(job, 1, started=["a"], a=300)
    job.commit(RUN, 1, None, 5, offsets=replace(NO_CHANGE, started=["a"]))
    commit(job, 2, started=["b"])
    told_again = replace(NO_CHANGE, started=["a"], batch_id=1)
    job.begin(RUN, 3, now_ms=3)
    job.commit(RUN, 3, None, 3, offsets=told_again)
    assert records(job) == [("restarted", ["departures/a"]), ("restarted", ["departures/b"])]


def test_a_heartbeat_tells_the_offsets_of_the_batch_that_it_is_about() -> None:
    job = machine()
    job.begin(RUN, 1, now_ms=1)
    job.commit(RUN, 1, None, 1)
    told = replace(NO_CHANGE, started=["a"])
    job.heartbeat(RUN, 2, 2, after_batch=0, offsets=told)
    assert records(job) == [], "the coordinator has a later batch"
    job.heartbeat(RUN, 2, 2, after_batch=1, offsets=told)
    job.heartbeat(RUN, 3, 3, after_batch=1, offsets=told)
    assert records(job) == [("restarted", ["departures/a"])]
