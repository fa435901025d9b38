"""The time of the next sweep: when a job changes without new data."""

from collections.abc import Iterator

from tidegate.domain import holds
from tidegate.domain.names import DIRECT
from tidegate.domain.state import JobState
from tidegate.domain.throttle import offer


def next_change_ms(job: JobState) -> int | None:
    """Return the observed time from which an evaluation may change something; None if new data is needed."""
    if job.is_complete:
        return None
    return min((time for time in _changes(job) if time is not None), default=None)


def _changes(job: JobState) -> Iterator[int | None]:
    now_ms, config = job.processing_time.observed_ms, job.config
    if job.evaluation_due:
        yield now_ms
    yield from _substream_changes(job)
    if config.query_timeout_ms is not None:
        yield from (seen_ms + config.query_timeout_ms for seen_ms in job.last_seen.values())
    if config.max_batch_hold_ms is not None:
        holding = (query for query in job.queries.values() if query.open and not query.released)
        yield from (query.begun_observed_ms + config.max_batch_hold_ms for query in holding)
    yield from (h.expires_ms - job.unattended_ms for h in job.holds.values() if h.expires_ms is not None)
    if job.retention is not None:
        present = job.max_watermark if job.retention.boundary is None else job.retention.cells[0]
        if present is not None and _would_be_emitted(job, present):
            yield now_ms
        yield job.retention.next_change_ms(lambda watermark: _would_be_emitted(job, watermark))


def _substream_changes(job: JobState) -> Iterator[int | None]:
    at, idle_timeout_ms = job.processing_time, job.config.idle_timeout_ms
    # The wall clock continued during an outage, so substreams that follow it are due after it.
    after_outage = job.unattended_at_evaluation_ms not in (None, job.unattended_ms)
    for (query, _), substream in job.substreams.items():
        if substream.counts:
            if after_outage and substream.policy.follows_clock:
                yield at.observed_ms
            yield substream.policy_state.next_change_ms(substream.uncapped_watermark, at)
            if query == DIRECT and idle_timeout_ms is not None:
                yield substream.last_event_ms + idle_timeout_ms


def _would_be_emitted(job: JobState, watermark: int) -> bool:
    return offer(job.config.throttle, holds.cap(job, watermark), job.coalesced_watermark, job.numbers) is not None
