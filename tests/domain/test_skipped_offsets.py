"""The offsets that the batches of a query have skipped: one rule per test."""

from collections.abc import Mapping

from tests.domain.batches import RUN
from tests.support.machine import JobMachine
from tidegate.domain.config import JobConfig
from tidegate.domain.job import Run, TokenClaim
from tidegate.domain.offsets import BatchOffsets, OffsetsStatus
from tidegate.domain.policies import LimitingLag

MOVED = Run(RUN.query, "checkpoint-2", "run-2")


def told(
    reads: Mapping[str, tuple[int | None, int]], batch_id: int | None = None, latest: int | None = None
) -> BatchOffsets:
    """Return the offsets of a batch that reads each partition from a start to an end."""
    size = len(reads)
    starts, ends = [start for start, _ in reads.values()], [end for _, end in reads.values()]
    return BatchOffsets([*reads], starts, ends, [latest] * size, [None] * size, batch_id=batch_id)


def machine() -> JobMachine:
    return JobMachine(JobConfig(LimitingLag(0)), 0)


def commit(job: JobMachine, batch_id: int, offsets: BatchOffsets | None, run: Run = RUN) -> None:
    job.begin(run, batch_id, now_ms=batch_id)
    job.commit(run, batch_id, None, batch_id, offsets=offsets)


def records(job: JobMachine) -> list[tuple[str, int, list[str]]]:
    kinds = ("offsets_skipped", "offsets_restarted")
    return [(r.kind, r.details["count"], r.details["partitions"]) for r in job.history if r.kind in kinds]


def status(job: JobMachine) -> OffsetsStatus:
    (row,) = job.query_table()
    assert row.offsets is not None
    return row.offsets


def test_a_batch_that_starts_at_the_end_of_the_one_before_skips_nothing() -> None:
    job = machine()
    for batch_id in range(4):
        commit(job, batch_id, told({"t/0": (10 * batch_id, 10 * batch_id + 10), "t/1": (0, 0)}, latest=50))
    assert records(job) == []
    found = status(job)
    assert (found.batch_id, found.partitions, found.unread, found.skipped) == (3, 2, 10 + 50, 0)
    assert [(row.partition, row.committed, row.unread) for row in found.most_behind] == [
        ("t/1", 0, 50),
        ("t/0", 40, 10),
    ]


def test_a_batch_that_starts_later_has_skipped_offsets() -> None:
    """Kafka has deleted their records."""
    job = machine()
    commit(job, 0, told({"t/0": (0, 10), "t/1": (0, 10)}))
    commit(job, 1, told({"t/0": (10, 20), "t/1": (15, 20)}))
    assert records(job) == [("offsets_skipped", 5, ["t/1"])]
    commit(job, 2, told({"t/0": (27, 30), "t/1": (23, 30), "t/2": (99, 100)}))
    assert records(job)[1:] == [("offsets_skipped", 10, ["t/0", "t/1"])]
    assert status(job).skipped == 15


def test_a_new_checkpoint_begins_anew() -> None:
    """It may read again, or from later on; the last batches of the old checkpoint may not have told their offsets."""
    job = machine()
    commit(job, 0, told({"t/0": (0, 10)}))
    job.begin(MOVED, 0, now_ms=1)
    (row,) = job.query_table()
    assert row.offsets is None, "else a reader would take the offsets for those of the new checkpoint"
    commit(job, 0, told({"t/0": (0, 4)}), MOVED)
    commit(job, 0, told({"t/0": (90, 95)}), Run(RUN.query, "checkpoint-3", "run-3"))
    assert (records(job), status(job).skipped) == ([], 0)


def test_a_token_of_a_later_incarnation_forgets_offsets() -> None:
    """The store has lost the job since, and the offsets are those of the earlier incarnation."""
    job = machine()
    commit(job, 0, told({"t/0": (0, 10)}))
    job.begin(RUN, 1, now_ms=1, token=TokenClaim(job.incarnation + 1, None))
    job.commit(RUN, 1, None, 1, offsets=told({"t/0": (15, 20)}))
    assert (records(job), status(job).skipped) == ([], 0)


def test_a_batch_that_ends_below_its_start_has_a_new_topic() -> None:
    job = machine()
    commit(job, 0, told({"t/0": (0, 100)}))
    commit(job, 1, told({"t/0": (100, 40)}))
    commit(job, 2, told({"t/0": (40, 60)}))
    assert records(job) == [("offsets_restarted", 40, ["t/0"])]
    assert status(job).skipped == 40


def test_a_gap_in_what_was_told_is_no_gap_in_what_was_read() -> None:
    """A client may not know the offsets of a batch, and a coordinator may have lost a commit."""
    job = machine()
    commit(job, 0, told({"t/0": (0, 10)}))
    commit(job, 1, None)
    commit(job, 2, told({"t/0": (20, 30)}))
    commit(job, 3, told({"t/0": (None, 40)}))
    assert records(job) == []


def test_offsets_that_arrive_late_are_those_of_their_batch() -> None:
    job = machine()
    commit(job, 0, None)
    commit(job, 1, told({"t/0": (0, 10)}, batch_id=0))
    commit(job, 2, told({"t/0": (12, 20)}, batch_id=1))
    assert records(job) == [("offsets_skipped", 2, ["t/0"])]
    commit(job, 3, told({"t/0": (0, 10)}, batch_id=0))
    assert (status(job).batch_id, status(job).skipped) == (1, 2)


def test_a_repeated_commit_changes_nothing() -> None:
    job = machine()
    commit(job, 0, told({"t/0": (0, 10)}))
    job.commit(RUN, 0, None, 5, offsets=told({"t/0": (15, 20)}))
    assert (records(job), status(job).at_ms) == ([], 0)
