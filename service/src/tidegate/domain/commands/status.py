"""``status``: read the summary of a job."""

from tidegate.domain.names import PLACEHOLDER
from tidegate.domain.results import JobSummary
from tidegate.domain.state import JobState


def status(job: JobState) -> JobSummary:
    """Return the summary of a job."""
    named = [substream for (_, name), substream in job.substreams.items() if name != PLACEHOLDER]
    done = len(named) if job.is_complete else sum(substream.done for substream in named)
    idle = 0 if job.is_complete else sum(substream.idle and not substream.done for substream in named)
    return JobSummary(
        max_event_time=job.max_event_time,
        max_watermark=job.max_watermark,
        active=len(named) - idle - done,
        idle=idle,
        done=done,
        all_idle=job.all_idle,
        counts=job.total,
        future_rows=job.future_total,
        tokens_ignored=job.tokens_ignored,
        emissions=job.emissions,
        throttled=job.throttled,
        last_contact_ms=job.last_contact_ms,
        open_batches=sum(query.open for query in job.queries.values()),
        limits=dict(job.limits),
        holds=tuple(job.holds[hold] for hold in sorted(job.holds)),
        missing_queries=tuple(sorted(query for query, name in job.substreams if name == PLACEHOLDER)),
    )
