"""``begin``: open a batch and pin its watermark, or return the pinned watermark of a batch that was begun before."""

from tidegate.domain import batches, clock, tokens
from tidegate.domain.errors import JobComplete
from tidegate.domain.evaluate import evaluate
from tidegate.domain.journal import Kind
from tidegate.domain.observation import latest_event_time
from tidegate.domain.reply import reply
from tidegate.domain.results import BeginResult
from tidegate.domain.state import JobState, PinnedWatermark, Query, Run, TokenClaim


def begin(
    job: JobState,
    run: Run,
    batch_id: int,
    now_ms: int,
    known: PinnedWatermark | None = None,
    keep: int = batches.PINNED_WATERMARKS_KEPT,
    waited_ms: int = 0,
    input_age_ms: int | None = 0,
    token: TokenClaim | None = None,
) -> BeginResult:
    """Begin a batch; a new run replaces the current one, and the begin of a later batch commits the open one.

    Spark begins batch N only after batch N - 1 has returned.

    Args:
        job: The job.
        run: The caller.
        batch_id: The batch.
        now_ms: Processing time.
        known: The pinned watermark that the client has kept; adopted for a new batch.
        keep: Number of pinned watermarks to keep.
        waited_ms: Time that this run has waited for the coordinator since its start.
        input_age_ms: All input that existed this long ago is in this batch or in earlier ones; None if that is unknown.
        token: The client's last watermark token.

    Raises:
        QueryFenced, QueryRetired, CheckpointConflict: If this run may not continue the query.
        BatchForgotten, PinnedWatermarkConflict: If the pinned watermark is gone, or not the client's.
        JobComplete: If the job is complete and the batch is new.
    """
    query = job.queries.get(run.query)
    if query is not None:
        batches.check_run(query, run)
        batches.check_checkpoint(query, run)
    same = query if query is not None and query.query_id == run.query_id else None
    previous, was_open = (None, False) if same is None else (same.latest, same.open)
    is_replay = previous is not None and batch_id <= previous
    # A batch that was given up begins again with its pinned watermark.
    if same is not None and (is_replay or batch_id in same.pinned_watermarks):
        known = PinnedWatermark(batches.stored_pin(same, batch_id, known))
    if job.is_complete and not is_replay:
        raise JobComplete()
    clock.advance(job, now_ms)
    tokens.accept(job, token)
    joined = not is_replay and _joins(job, run.query)
    query = batches.enter(job, run)
    if is_replay:
        if batch_id == query.latest:
            batches.take_over(query, run.run_id)
        clock.add_outage(query, waited_ms)
    else:
        batches.move_to(query, run.query_id)
        clock.add_outage(query, waited_ms)
        input_known_until_ms = None if input_age_ms is None else job.now_ms - input_age_ms
        known = _open(job, run.query, query, batch_id, known, input_known_until_ms, keep)
    assert known is not None
    return BeginResult(
        reply(job), known.value, is_replay, joined, latest_event_time(job), previous, was_open, job.revision
    )


def _open(
    job: JobState,
    name: str,
    query: Query,
    batch_id: int,
    known: PinnedWatermark | None,
    input_known_until_ms: int | None,
    keep: int,
) -> PinnedWatermark:
    """Commit the open batch, open the new one, and return its pinned watermark."""
    commits = query.open
    if commits:
        batches.commit_staged(job, name, query)
    if known is not None:
        # The known pinned watermark must hold W while the previous batch is committed.
        batches.open_batch(job, query, batch_id, known.value, input_known_until_ms, keep)
    if commits:
        evaluate(job)
    if known is None:
        known = PinnedWatermark(job.coalesced_watermark)
        batches.open_batch(job, query, batch_id, known.value, input_known_until_ms, keep)
    return known


def _joins(job: JobState, name: str) -> bool:
    """Record and return whether an unexpected query joins a job that has a watermark."""
    known = job.queries.get(name)
    is_new = known is None or (known.retired and not any(query == name for query, _ in job.substreams))
    joins = is_new and name not in job.config.expected_queries and job.coalesced_watermark is not None
    if joins:
        job.journal.write(job.now_ms, Kind.JOINED, query=name)
    return joins
