"""``queries``: read the queries of a job with their latest batches."""

from tidegate.domain.results import QueryRow
from tidegate.domain.state import JobState, Query


def queries(job: JobState) -> list[QueryRow]:
    """Return all queries, sorted by name."""
    return [_row(name, query) for name, query in sorted(job.queries.items())]


def _row(name: str, query: Query) -> QueryRow:
    return QueryRow(
        query=name,
        query_id=query.query_id,
        run_id=query.run_id,
        batch_id=query.latest,
        batch_open=query.open,
        pinned_watermark=None if query.latest is None else query.pinned_watermarks.get(query.latest),
        begun_ms=query.begun_ms,
        idle_clock_ms=None if query.idle_clock_ms is None else query.idle_clock_ms + query.outage_ms,
        last_contact_ms=query.last_contact_ms,
        batch_released=query.open and query.released,
        retired=query.retired,
    )
