"""Idleness: silent substreams do not hold the merged watermark.

A query is known to have processed all input up to its idle clock. A substream becomes idle when the idle clock of its
query is ``idle_timeout_ms`` past the last event of the substream. The idle clock does not advance while the query is
silent or a batch is open; in that time, a silent substream is *blocked*, not idle. For reports without batches, the
observed time of the job is the idle clock.
"""

from tidegate.domain.journal import Kind, named
from tidegate.domain.names import DIRECT, SubstreamKey, member
from tidegate.domain.results import SubstreamState
from tidegate.domain.schedule import query_deadlines
from tidegate.domain.state import JobState, Substream


def expire(job: JobState) -> None:
    """Make substreams idle if they were silent for ``idle_timeout_ms`` by the idle clock of their query."""
    if job.config.idle_timeout_ms is None:
        return
    for query in (DIRECT, *job.queries):
        silent = {
            key: substream
            for key, substream in job.substreams.items()
            if key[0] == query and substream.counts and is_silent(job, query, substream)
        }
        _set_idle(job, "idle_timeout_ms", query, silent)


def is_silent(job: JobState, query: str, substream: Substream) -> bool:
    """Return whether the idle clock of the query is ``idle_timeout_ms`` past the substream's last event."""
    timeout = job.config.idle_timeout_ms
    clock: int | None = job.processing_time.observed_ms
    if query != DIRECT:
        clock = job.queries[query].idle_clock_ms if query in job.queries else None
    return timeout is not None and clock is not None and clock - substream.last_event_ms >= timeout


def time_out_queries(job: JobState) -> None:
    """Make all substreams of a query idle if the query has made no call for ``query_timeout_ms``."""
    due = [(query, each) for query in job.last_seen for each in query_deadlines(job, query) if each.at_ms <= job.now_ms]
    for query, deadline in due:
        del job.last_seen[query]
        counting = {key: s for key, s in job.substreams.items() if key[0] == query and s.counts}
        _set_idle(job, deadline.limit, query, counting)
        for substream in counting.values():
            substream.forced_idle = True


def _set_idle(job: JobState, limit: str, query: str, substreams: dict[SubstreamKey, Substream]) -> None:
    if not substreams:
        return
    for substream in substreams.values():
        substream.idle, substream.since_ms = True, job.now_ms
    job.limits[limit] += 1
    longest_first = sorted(substreams.items(), key=lambda item: (item[1].last_event_ms, member(item[0]).encode()))
    job.journal.write(job.now_ms, Kind.IDLE, limit=limit, query=query, **named(member(key) for key, _ in longest_first))


def reactivate(substream: Substream, observed_ms: int) -> bool:
    """Record an event of a substream at an observed time; return whether it was idle."""
    was_idle, substream.idle, substream.forced_idle = substream.idle, False, False
    substream.set_aside = False
    substream.last_event_ms = observed_ms
    return was_idle


def state_of(substream: Substream, observed_ms: int, idle_timeout_ms: int | None) -> SubstreamState:
    """Return the state of a substream at an observed time of its query."""
    if substream.done:
        return "done"
    if substream.idle:
        return "idle"
    if idle_timeout_ms is not None and observed_ms - substream.last_event_ms >= idle_timeout_ms:
        return "blocked"
    return "active"
