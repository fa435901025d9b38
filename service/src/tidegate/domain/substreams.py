"""Steps of the commands that change the set of substreams."""

from collections.abc import Iterable, Sequence

from tidegate.domain.errors import SubstreamNotFound
from tidegate.domain.journal import AuditInfo, Kind, named
from tidegate.domain.names import PLACEHOLDER, SubstreamKey, member
from tidegate.domain.numbers import above, highest
from tidegate.domain.observation import add_substream
from tidegate.domain.policy import Reported
from tidegate.domain.state import JobState, Substream


def check_known(job: JobState, query: str, names: Iterable[str]) -> None:
    """Raise SubstreamNotFound if a substream is unknown."""
    unknown = [name for name in names if (query, name) not in job.substreams]
    if unknown:
        raise SubstreamNotFound(query, unknown)


def forget(job: JobState, keys: Sequence[SubstreamKey]) -> None:
    """Remove substreams with their counts and delays. The totals of the job still contain their rows."""
    removed = [job.substreams.pop(key) for key in keys]
    _lower_maxima(job, removed)
    for key in keys:
        for table in (job.counts, job.reported_rows, job.future_rows, job.diverted_rows, job.delays):
            table.pop(key, None)


def _lower_maxima(job: JobState, removed: Iterable[Substream]) -> None:
    """Let the maxima of a job be those of the remaining substreams, so that the removed ones never move it again."""
    event_time = highest(None, *(substream.max_event_time for substream in removed))
    watermark = highest(None, *(substream.watermark for substream in removed))
    remaining = job.substreams.values()
    if event_time is not None and event_time == job.max_event_time:
        job.max_event_time = highest(None, *(substream.max_event_time for substream in remaining))
    if watermark is None:
        return
    if not above(job.max_watermark, watermark):
        left = highest(None, *(substream.watermark for substream in remaining))
        job.max_watermark = left if above(job.max_watermark, left) else job.max_watermark
        latest = highest(job.max_watermark, job.coalesced_watermark)
        job.merged_highest = latest if above(job.merged_highest, latest) else job.merged_highest
    if job.retention is not None:
        # A cell up to this watermark may be of a removed substream. Without the cell, retention acts later.
        job.retention.cells = [cell if above(cell, watermark) else None for cell in job.retention.cells]


def expect_queries(job: JobState) -> None:
    """Add a placeholder for each expected query without substreams, and remove all other placeholders."""
    known = {query for query, name in job.substreams if name != PLACEHOLDER}
    for query, name in list(job.substreams):
        if name == PLACEHOLDER and query not in job.config.expected_queries:
            del job.substreams[query, name]
            if query not in job.queries:
                job.last_seen.pop(query, None)
    for query in job.config.expected_queries:
        is_retired = query in job.queries and job.queries[query].retired
        if query not in known and (query, PLACEHOLDER) not in job.substreams and not is_retired:
            add_substream(job, query, PLACEHOLDER, Reported())
            job.last_seen.setdefault(query, job.processing_time.observed_ms)


def record_action(
    job: JobState, action: str, audit: AuditInfo, query: str = "", names: Sequence[str] = (), **details: object
) -> None:
    """Write an operator's command to the journal."""
    if names:
        details |= named(member((query, name)) for name in names)
    job.journal.write(
        job.now_ms, Kind.ACTION, action=action, query=query, actor=audit.actor, reason=audit.reason, **details
    )
