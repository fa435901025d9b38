"""The times at which a job changes without new data, and the deadlines of its limits."""

from collections.abc import Iterator

from tidegate.domain import holds
from tidegate.domain.names import DIRECT
from tidegate.domain.results import Deadline
from tidegate.domain.state import JobState
from tidegate.domain.throttle import offer


def next_change_ms(job: JobState) -> int | None:
    """Return the observed time from which an evaluation may change the job; None if only new data can change it."""
    if job.is_complete:
        return None
    return min((time for time in _changes(job) if time is not None), default=None)


def query_deadlines(job: JobState, query: str) -> Iterator[Deadline]:
    """Yield the deadline after which the substreams of a silent query no longer count, if the job has this limit."""
    timeout, seen_ms = job.config.query_timeout_ms, job.last_seen.get(query)
    if timeout is not None and seen_ms is not None:
        yield Deadline("query_timeout_ms", seen_ms + job.unattended_ms + timeout)


def batch_deadlines(job: JobState, name: str) -> Iterator[Deadline]:
    """Yield the deadline after which the open batch of a query no longer holds W, if the job has this limit."""
    limit, query = job.config.max_batch_hold_ms, job.queries[name]
    if limit is not None and query.open and not query.released:
        yield Deadline("max_batch_hold_ms", query.begun_observed_ms + job.unattended_ms + limit)


def _changes(job: JobState) -> Iterator[int | None]:
    now_ms = job.processing_time.observed_ms
    if job.evaluation_due:
        yield now_ms
    yield from _substream_changes(job)
    deadlines = [each for query in job.last_seen for each in query_deadlines(job, query)]
    deadlines += [each for query in job.queries for each in batch_deadlines(job, query)]
    yield from (deadline.at_ms - job.unattended_ms for deadline in deadlines)
    yield from (h.expires_ms - job.unattended_ms for h in job.holds.values() if h.expires_ms is not None)
    if job.retention is not None:
        present = job.max_watermark if job.retention.boundary is None else job.retention.cells[0]
        if present is not None and _would_be_emitted(job, present):
            yield now_ms
        yield job.retention.next_change_ms(lambda watermark: _would_be_emitted(job, watermark))


def _substream_changes(job: JobState) -> Iterator[int | None]:
    at, idle_timeout_ms = job.processing_time, job.config.idle_timeout_ms
    # The clock advances during an outage, so substreams that follow the clock are due after the outage.
    after_outage = job.unattended_at_evaluation_ms not in (None, job.unattended_ms)
    for (query, _), substream in job.substreams.items():
        if job.polls(substream):
            if after_outage and substream.policy.follows_clock:
                yield at.observed_ms
            yield substream.policy_state.next_change_ms(substream.uncapped_watermark, at)
        if substream.counts and query == DIRECT and idle_timeout_ms is not None:
            yield substream.last_event_ms + idle_timeout_ms


def _would_be_emitted(job: JobState, watermark: int) -> bool:
    return offer(job.config.throttle, holds.cap(job, watermark), job.coalesced_watermark, job.numbers) is not None
