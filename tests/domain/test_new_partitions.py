"""Substreams whose partitions are new, were created again, or are gone: one rule per test."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.domain.batches import RUN
from tests.support.machine import JobMachine
from tidegate.domain.batches import PartitionReport
from tidegate.domain.config import JobConfig
from tidegate.domain.offsets import BatchOffsets
from tidegate.domain.policies import LimitingLag

Reads = Mapping[str, tuple[int | None, int]]
BEGUN: Reads = {"a/0": (0, 100), "b/0": (0, 100)}
CONTINUED: Reads = {"a/0": (100, 110), "b/0": (100, 110)}
CREATED_AGAIN: Reads = {"a/0": (100, 5), "b/0": (100, 110)}
WITHOUT_A: Reads = {"b/0": (100, 110)}


def told(reads: Reads, batch_id: int | None = None, columns: Sequence[str] = ("topic",)) -> BatchOffsets:
    """Return the offsets of a batch that reads each partition from a start to an end. Substreams are topics."""
    starts, ends = [start for start, _ in reads.values()], [end for _, end in reads.values()]
    unknown = [None] * len(reads)
    return BatchOffsets([*reads], starts, ends, unknown, unknown, batch_id=batch_id, substream_columns=columns)


def commit(job: JobMachine, batch_id: int, offsets: BatchOffsets | None, **times: int) -> None:
    """Commit a batch with max event times."""
    job.begin(RUN, batch_id, now_ms=batch_id)
    job.stage(RUN, batch_id, PartitionReport(0, times, dict.fromkeys(times, 1)), batch_id)
    job.commit(RUN, batch_id, None, batch_id, offsets=offsets)


def machine(idle_timeout_ms: int | None = None) -> JobMachine:
    job = JobMachine(JobConfig(LimitingLag(10), idle_timeout_ms=idle_timeout_ms), 0)
    commit(job, 0, told(BEGUN), a=100, b=200)
    assert job.coalesced_watermark == 90
    return job


def states(job: JobMachine) -> dict[str, tuple[str, int | None]]:
    return {row.substream: (row.state, row.watermark) for row in job.substream_table(job.now_ms)}


def records(job: JobMachine) -> list[tuple[str, list[str]]]:
    kinds = ("restarted", "ended")
    return [(r.kind, [of.rpartition("/")[2] for of in r.details["substreams"]]) for r in job.history if r.kind in kinds]


def test_a_topic_that_was_created_again_holds_the_watermark_until_its_first_event() -> None:
    job = machine()
    commit(job, 1, told(CREATED_AGAIN), b=500)
    assert states(job) == {"a": ("active", None), "b": ("active", 490)}
    assert (job.coalesced_watermark, records(job)) == (90, [("restarted", ["a"])])
    commit(job, 2, told({"a/0": (5, 6), "b/0": (110, 111)}), a=60)
    assert states(job)["a"] == ("active", 50), "lower than before"
    assert job.coalesced_watermark == 90, "the watermark never goes back"
    commit(job, 3, told({"a/0": (6, 7), "b/0": (111, 112)}), a=300)
    assert job.coalesced_watermark == 290
    assert len(records(job)) == 1


def test_one_partition_shows_that_a_topic_was_created_again() -> None:
    job = machine()
    columns = ("topic", "partition")
    commit(job, 1, told({"c/0": (0, 100), "c/1": (0, 3), "d/0": (0, 9)}, columns=columns), **{"c/0": 90, "c/1": 95})
    commit(job, 2, told({"c/0": (100, 5), "c/1": (3, 5), "d/0": (9, 9)}, columns=columns))
    assert records(job)[-1] == ("restarted", ["0", "1"])


def test_the_events_of_the_batch_are_those_of_the_new_topic() -> None:
    job = machine()
    commit(job, 1, told(CREATED_AGAIN), a=95, b=500)
    assert states(job)["a"] == ("active", 85)


def test_a_restarted_substream_can_be_idle() -> None:
    job = machine(idle_timeout_ms=50)
    commit(job, 1, told(CREATED_AGAIN), b=500)
    for batch_id in (2, 100):
        commit(job, batch_id, None, b=500 + batch_id)
    assert states(job)["a"] == ("idle", None)
    assert job.coalesced_watermark == 590


def test_an_idle_substream_that_starts_again_holds_the_watermark() -> None:
    job = machine()
    job.declare(RUN.query, ["a", "b", "c"], 0)
    job.idle(RUN.query, ["a", "c"], 0)
    commit(job, 1, told({"a/0": (100, 5), "b/0": (100, 110), "c/0": (7, 5)}), b=500)
    assert {name: state for name, (state, _) in states(job).items()} == dict.fromkeys("abc", "active")
    assert job.coalesced_watermark == 190


def test_a_topic_that_is_gone_does_not_hold_the_watermark() -> None:
    job = machine()
    commit(job, 1, told(WITHOUT_A), b=500)
    assert states(job) == {"a": ("done", 90), "b": ("active", 490)}
    assert (job.coalesced_watermark, records(job)) == (490, [("ended", ["a"])])


def test_a_topic_that_returns_starts_again() -> None:
    job = machine()
    commit(job, 1, told(WITHOUT_A), b=500)
    commit(job, 2, told({"a/0": (0, 3), "b/0": (110, 120)}), a=480, b=600)
    assert states(job)["a"] == ("active", 470)
    assert (job.coalesced_watermark, records(job)) == (490, [("ended", ["a"]), ("restarted", ["a"])])


def test_a_topic_stays_while_it_has_partitions() -> None:
    job = machine()
    commit(job, 1, told({"a/1": (0, 1), "b/0": (100, 110)}), b=500)
    assert (states(job)["a"], records(job)) == (("active", 90), [])


def test_the_last_topic_does_not_end() -> None:
    """The watermark would pass everything, and the topic may be about to be created again."""
    job = machine()
    commit(job, 1, told({}))
    assert records(job) == []
    commit(job, 2, told({"a/0": (0, 5), "b/0": (100, 110)}), b=500)
    assert states(job)["a"] == ("active", 90), "the partitions of the batch before are not known"


def test_no_topic_ends_if_no_other_one_holds_the_watermark() -> None:
    """The remaining topics have no rows yet, so the watermark of the job would pass their first ones."""
    job = machine()
    job.report({"elsewhere": 9990}, 0)
    commit(job, 1, told({"c/0": (0, 0)}))
    assert (records(job), job.coalesced_watermark) == ([], 90)
    job.idle(RUN.query, ["b"], 2)
    commit(job, 2, told({"b/0": (110, 111), "c/0": (0, 0)}))
    assert (records(job), job.coalesced_watermark) == ([], 90)


def test_topics_that_were_created_again_while_none_was_left_start_again() -> None:
    """Spark then reads them from the beginning. No batch told the offsets in between."""
    job = machine()
    commit(job, 1, told({"a/0": (0, 5), "b/0": (0, 7)}), b=500)
    assert states(job) == {"a": ("active", None), "b": ("active", 490)}


def test_new_partitions_with_events_do_not_start_again() -> None:
    """A client may tell the offsets of a batch after its rows."""
    job = machine()
    commit(job, 1, None, c=1000)
    commit(job, 2, told({**CONTINUED, "c/0": (0, 9)}, batch_id=1), a=500, b=500)
    assert (states(job)["c"], records(job)) == (("active", 990), [])


def test_changes_are_found_after_batches_that_told_nothing() -> None:
    """The store may have lost a commit, and a client may not know the offsets of a batch."""
    job = machine()
    commit(job, 1, None, b=500)
    commit(job, 2, told({"b/0": (110, 120), "c/0": (0, 1)}), b=600)
    assert records(job) == [("ended", ["a"])]
    commit(job, 3, None)
    commit(job, 4, told({"b/0": (20, 30), "c/0": (1, 1)}), b=700)
    assert records(job)[1:] == [("restarted", ["b"])], "it starts below the end of an earlier batch"


def test_a_repeated_or_earlier_batch_changes_nothing() -> None:
    job = machine()
    commit(job, 1, told(CREATED_AGAIN), a=300)
    job.commit(RUN, 1, None, 5, offsets=told(CREATED_AGAIN))
    commit(job, 2, told(CREATED_AGAIN, batch_id=1))
    assert records(job) == [("restarted", ["a"])]


def test_substreams_that_are_not_partitions_do_not_change() -> None:
    job = machine()
    commit(job, 1, told(CREATED_AGAIN, columns=()))
    commit(job, 2, told(WITHOUT_A, columns=()))
    assert records(job) == []


def test_a_heartbeat_tells_the_offsets_of_the_batch_that_it_is_about() -> None:
    job = machine()
    commit(job, 1, None)
    job.heartbeat(RUN, 2, 2, after_batch=0, offsets=told(CREATED_AGAIN))
    assert records(job) == [], "the coordinator has a later batch"
    job.heartbeat(replace(RUN, query_id="another", run_id="another"), 2, 2, after_batch=1, offsets=told(CREATED_AGAIN))
    assert records(job) == []
    job.heartbeat(replace(RUN, run_id="later"), 2, 2, after_batch=1, offsets=told(CREATED_AGAIN))
    job.heartbeat(replace(RUN, run_id="later"), 3, 3, after_batch=1, offsets=told(CREATED_AGAIN))
    assert records(job) == [("restarted", ["a"])]
