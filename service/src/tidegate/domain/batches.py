"""Batches and runs: begin, pin, stage, commit, and the checks that reject older runs and other checkpoints."""

from tidegate.domain.clock import observe_until
from tidegate.domain.delays import measure
from tidegate.domain.errors import (
    BatchForgotten,
    BatchNotBegun,
    CheckpointConflict,
    PinnedWatermarkConflict,
    QueryFenced,
    QueryRetired,
)
from tidegate.domain.journal import Kind
from tidegate.domain.merge import merged_watermark
from tidegate.domain.observation import count_future, observe
from tidegate.domain.schedule import batch_deadlines
from tidegate.domain.staging import Staged
from tidegate.domain.state import JobState, PinnedWatermark, Query, Run

PINNED_WATERMARKS_KEPT = 100
"""Minimum number of pinned watermarks that a query keeps, equal to Spark's default of ``minBatchesToRetain``."""


def check_run(query: Query, run: Run) -> None:
    """Check that a run may make calls.

    Raises:
        QueryFenced: If a newer run has replaced this run.
        QueryRetired: If the query was retired since the run started.
    """
    if query.retired and run.run_id in (*query.fenced_runs, query.run_id):
        raise QueryRetired(run.query)
    if run.run_id in query.fenced_runs:
        raise QueryFenced(query.run_id)


def check_checkpoint(query: Query, run: Run) -> None:
    """Raise CheckpointConflict if a batch of another checkpoint is open."""
    if run.query_id != query.query_id and query.open:
        raise CheckpointConflict(query.latest, query.query_id)


def begun_query(job: JobState, run: Run, batch_id: int) -> Query:
    """Return the query of a batch that this run has begun.

    Raises:
        QueryFenced: If a newer run has replaced this run.
        QueryRetired: If the query was retired.
        BatchNotBegun: If the batch is later than the latest batch, or another checkpoint or run began it.
    """
    query = job.queries.get(run.query)
    if query is None:
        raise BatchNotBegun(run.query, batch_id)
    check_run(query, run)
    is_begun = query.latest is not None and batch_id <= query.latest
    if not is_begun or (run.query_id, run.run_id) != (query.query_id, query.begun_by):
        raise BatchNotBegun(run.query, batch_id)
    return query


def stored_pin(query: Query, batch_id: int, known: PinnedWatermark | None) -> int | None:
    """Return the pinned watermark of a batch that has already begun.

    Raises:
        BatchForgotten: If the query no longer keeps the pinned watermark.
        PinnedWatermarkConflict: If the client's pinned watermark differs.
    """
    if batch_id not in query.pinned_watermarks:
        raise BatchForgotten(query.latest)
    pinned = query.pinned_watermarks[batch_id]
    if known is not None and known.value != pinned:
        raise PinnedWatermarkConflict(pinned)
    return pinned


def contact(job: JobState, name: str, query: Query) -> None:
    """Record a call of a query."""
    query.last_contact_ms = job.last_contact_ms = job.now_ms
    job.last_seen[name] = job.processing_time.observed_ms


def enter(job: JobState, run: Run) -> Query:
    """Make a run the current run of its query: add an unknown query, and fence the previous run."""
    query = job.queries.get(run.query)
    if query is None:
        query = job.queries[run.query] = Query(run.query_id, run.run_id, job.now_ms)
    query.retired = False
    before = query.run_id
    if run.run_id != before:
        query.run_id, query.waited_ms = run.run_id, 0
        if before:  # "" if the query was retired before its first call
            query.fenced_runs = [*query.fenced_runs, before][-PINNED_WATERMARKS_KEPT:]
            job.journal.write(job.now_ms, Kind.FENCED, query=run.query, run_id=before)
    contact(job, run.query, query)
    return query


def move_to(query: Query, query_id: str) -> None:
    """Switch a query without an open batch to a checkpoint.

    If this is another checkpoint, delete the batches of the previous checkpoint.
    """
    if query_id != query.query_id:
        query.query_id = query_id
        query.latest, query.open, query.begun_ms = None, False, None
        query.pinned_watermarks.clear()
        query.staged = Staged()


def take_over(query: Query, run_id: str) -> None:
    """Let a run continue the latest batch; discard reports that another run staged."""
    if query.begun_by != run_id:
        query.begun_by = run_id
        query.staged = Staged()


def open_batch(
    job: JobState, query: Query, batch_id: int, pinned: int | None, input_known_until_ms: int | None, keep: int
) -> None:
    """Open a batch and pin its watermark; delete all but the last ``keep`` pinned watermarks."""
    query.latest, query.open, query.begun_ms, query.begun_by = batch_id, True, job.now_ms, query.run_id
    query.begun_observed_ms, query.released = job.processing_time.observed_ms, False
    query.input_known_until_ms, query.begun_merged = input_known_until_ms, merged_watermark(job)
    query.pinned_watermarks[batch_id] = pinned
    query.staged = Staged()
    oldest = batch_id - max(keep, PINNED_WATERMARKS_KEPT)
    for old in [kept for kept in query.pinned_watermarks if kept <= oldest]:
        del query.pinned_watermarks[old]


def commit_staged(job: JobState, name: str, query: Query) -> None:
    """Apply the staged reports of the open batch and close it; the caller must evaluate the job afterwards."""
    measure(job, name, [(of, rows) for (_, of), rows in query.staged.delays.items()], query.begun_merged)
    observe(job, name, query.staged.names, query.staged.event_times, query.staged.watermarks)
    if query.input_known_until_ms is not None:
        observe_until(query, query.input_known_until_ms)
    for (_partition, substream), count in query.staged.rows.items():
        key = name, substream
        if key in job.substreams:
            job.reported_rows[key] = job.reported_rows.get(key, 0) + count
    for (_partition, substream), count in query.staged.future_rows.items():
        count_future(job, name, {substream: count})
    query.open = False
    query.staged = Staged()


def give_up(query: Query) -> None:
    """Retire a query and undo the begin of its open batch; a new begin of this batch returns its pinned watermark."""
    if query.open and query.latest is not None:
        query.latest = query.latest - 1 if query.latest else None
    query.open, query.released, query.begun_ms, query.retired = False, False, None, True
    query.staged = Staged()


def release_overdue(job: JobState) -> None:
    """Stop open batches from holding W after their deadline."""
    for name, query in job.queries.items():
        for deadline in batch_deadlines(job, name):
            if deadline.at_ms <= job.now_ms:
                query.released = True
                job.limits[deadline.limit] += 1
                job.journal.write(job.now_ms, Kind.BATCH_RELEASED, query=name, batch_id=query.latest)
