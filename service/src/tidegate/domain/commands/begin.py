"""``begin``: open a batch and pin its watermark, or return the pinned watermark of a batch that has already begun."""

from dataclasses import dataclass

from tidegate.domain import batches, clock, tokens
from tidegate.domain.errors import JobComplete
from tidegate.domain.evaluate import evaluate
from tidegate.domain.journal import Kind
from tidegate.domain.observation import latest_event_time
from tidegate.domain.reply import reply
from tidegate.domain.results import BeginResult
from tidegate.domain.state import JobState, PinnedWatermark, Query, Run, TokenClaim


@dataclass(frozen=True, slots=True)
class BeginOptions:
    """The values that a run sends to begin a batch.

    Attributes:
        known: The pinned watermark that the client has stored. A new batch receives this pinned watermark.
        keep: Number of pinned watermarks to keep.
        waited_ms: Time that this run has waited for the coordinator since its start.
        input_age_ms: This batch and earlier batches contain all input that is at least this old; None if unknown.
    """

    known: PinnedWatermark | None = None
    keep: int = batches.PINNED_WATERMARKS_KEPT
    waited_ms: int = 0
    input_age_ms: int | None = 0


DEFAULTS = BeginOptions()


def begin(
    job: JobState,
    run: Run,
    batch_id: int,
    now_ms: int,
    options: BeginOptions = DEFAULTS,
    token: TokenClaim | None = None,
) -> BeginResult:
    """Begin a batch, and make the run the current run of its query.

    The begin of a later batch commits the open batch, because Spark begins batch N only after batch N - 1 has returned.

    Raises:
        QueryFenced, QueryRetired, CheckpointConflict: If this run may not continue the query.
        BatchForgotten, PinnedWatermarkConflict: If the query no longer keeps the pinned watermark, or the client sent
            another one.
        JobComplete: If the job is complete and the batch is new.
    """
    same = _same_query(job, run)
    previous, was_open = (None, False) if same is None else (same.latest, same.open)
    is_replay = previous is not None and batch_id <= previous
    known = options.known
    # An abandoned batch begins again with its pinned watermark.
    if same is not None and (is_replay or batch_id in same.pinned_watermarks):
        known = PinnedWatermark(batches.stored_pin(same, batch_id, known))
    if job.is_complete and not is_replay:
        raise JobComplete()
    clock.advance(job, now_ms)
    tokens.accept(job, token)
    joined = not is_replay and _joins(job, run.query)
    query = batches.enter(job, run)
    clock.add_outage(query, options.waited_ms)
    if not is_replay:
        batches.move_to(query, run.query_id)
        known = _open(job, run.query, query, batch_id, known, options)
        query.previous, query.previous_open = previous, was_open
    elif batch_id == query.latest:
        previous, was_open = _take_over(query, run.run_id)
    assert known is not None
    return BeginResult(
        reply(job), known.value, is_replay, joined, latest_event_time(job), previous, was_open, job.revision
    )


def _same_query(job: JobState, run: Run) -> Query | None:
    """Check the run and return its query; None if the query is new or was on another checkpoint."""
    query = job.queries.get(run.query)
    if query is None:
        return None
    batches.check_run(query, run)
    batches.check_checkpoint(query, run)
    return query if query.query_id == run.query_id else None


def _open(
    job: JobState, name: str, query: Query, batch_id: int, known: PinnedWatermark | None, options: BeginOptions
) -> PinnedWatermark:
    """Commit the open batch, open the new one, and return its pinned watermark."""
    age_ms = options.input_age_ms
    input_known_until_ms = None if age_ms is None else job.now_ms - age_ms
    commits = query.open
    if commits:
        # The store has lost the commit, and perhaps also reports of this batch. The batch is therefore no evidence that
        # substreams are silent.
        query.input_known_until_ms = None
        batches.commit_staged(job, name, query)
    if known is not None:
        # The known pinned watermark must hold W while the previous batch is committed.
        batches.open_batch(job, query, batch_id, known.value, input_known_until_ms, options.keep)
    if commits:
        evaluate(job)
    if known is None:
        known = PinnedWatermark(job.coalesced_watermark)
        batches.open_batch(job, query, batch_id, known.value, input_known_until_ms, options.keep)
    return known


def _take_over(query: Query, run_id: str) -> tuple[int | None, bool]:
    """Continue the latest batch in a run; return the batch before it, and whether it was open at the first begin."""
    batches.take_over(query, run_id)
    if query.open:
        # The answer to the first begin may have been lost, and with it the evidence of a lost commit.
        return query.previous, query.previous_open
    return query.latest, False


def _joins(job: JobState, name: str) -> bool:
    """Record and return whether an unexpected query joins a job that has a watermark."""
    known = job.queries.get(name)
    is_new = known is None or (known.retired and not any(query == name for query, _ in job.substreams))
    joins = is_new and name not in job.config.expected_queries and job.coalesced_watermark is not None
    if joins:
        job.journal.write(job.now_ms, Kind.JOINED, query=name)
    return joins
