"""``substreams``: read the table of substreams."""

from tidegate.domain.clock import observed_time, outage_ms
from tidegate.domain.idleness import state_of
from tidegate.domain.names import PLACEHOLDER, SubstreamKey
from tidegate.domain.results import SubstreamRow
from tidegate.domain.rows import RowCounts
from tidegate.domain.state import JobState, Substream


def substreams(job: JobState, now_ms: int) -> list[SubstreamRow]:
    """Return all substreams, sorted by query and name, with their states at ``now_ms``."""
    now_ms = max(now_ms, job.now_ms)
    return [
        _row(job, key, substream, now_ms) for key, substream in sorted(job.substreams.items()) if key[1] != PLACEHOLDER
    ]


def _row(job: JobState, key: SubstreamKey, substream: Substream, now_ms: int) -> SubstreamRow:
    query, name = key
    timeout = job.config.idle_timeout_ms
    state = "done" if job.is_complete else state_of(substream, observed_time(job, query, now_ms), timeout)
    last_event_ms = substream.last_event_ms + outage_ms(job, query)
    since_ms = substream.since_ms
    if job.is_complete and not substream.done:
        since_ms = job.completed_ms + job.unattended_ms
    elif state == "blocked" and timeout is not None:
        since_ms = last_event_ms + timeout
    return SubstreamRow(
        query=query,
        substream=name,
        state=state,
        since_ms=since_ms,
        watermark=substream.watermark,
        max_event_time=substream.max_event_time,
        lag=None if state == "done" else substream.policy_state.lag,
        last_event_ms=last_event_ms,
        reported_rows=job.reported_rows.get(key, 0),
        future_rows=job.future_rows.get(key, 0),
        counts=job.counts.get(key, RowCounts()),
    )
