"""A job as far as it is held: the domain's machine, made from what the store tells of those who may hold it.

It knows the holds, the open batches and the live substreams that are furthest behind, as they are at one moment. What
else the job has is ahead of these, so that taking one of them away leads to the same watermark here as there.
"""

from tidegate.domain.config import JobConfig
from tidegate.domain.history import History
from tidegate.domain.job import JobMachine
from tidegate.domain.policy import Moment, PolicyState
from tidegate.domain.query import QueryState
from tidegate.domain.records import Hold
from tidegate.domain.substream import Substream
from tidegate.store.replies import REST, Reply, answer, number


class _AtAMoment(PolicyState):
    """A policy's state as it is now, and when it will change next."""

    def __init__(self, watermark: int | None, next_change_ms: int | None) -> None:
        self.watermark, self.lagged, self._next_change_ms = watermark, None, next_change_ms

    def next_change_ms(self, reading: int | None, at: Moment) -> int | None:
        return self._next_change_ms


def machine(reply: Reply, config: JobConfig) -> JobMachine:
    """From the reply of the script ``explain``. ``config``: what the document in it says."""
    found = answer(reply)
    _document, lost, max_watermark, max_event_time, all_idle, *rest = reply[REST:]
    coalesced_since, watermark_since, retention, holds, open_, live, queries = rest
    job = JobMachine(config, found.now_ms, found.incarnation, found.state_epoch)
    # A new machine waits for the queries that are expected; those of this one may have shown themselves, or ended.
    job.substreams.clear()
    job.contacts.clear()
    job.queries.clear()
    job.unattended_ms, job.max_event_time, job.complete = int(lost), number(max_event_time), found.complete
    coalescer = job.coalescer
    coalescer.coalesced_watermark, coalescer.watermark, coalescer.max_watermark = (
        found.coalesced_watermark,
        found.watermark,
        number(max_watermark),
    )
    coalescer.all_idle = all_idle == "1"
    coalescer.coalesced_watermark_since_ms, coalescer.watermark_since_ms = int(coalesced_since), int(watermark_since)
    if config.max_retention_ms is not None and retention:
        coalescer.retention = _history(retention)
    for name, at_most, expires, reason in holds:
        job.holds[name] = Hold(name, int(at_most), number(expires), reason)
    for name, lost_by_query, idle_clock, contact in queries:
        query = job.queries[name] = QueryState("", "", found.now_ms)
        query.unattended_ms, query.idle_clock_ms = int(lost_by_query), number(idle_clock)
        if contact:
            job.contacts[name] = int(contact)
    for name, pinned_watermark, latest, begun, begun_observed in open_:
        query = job.queries[name]
        query.latest, query.open, query.begun_ms = int(latest), True, int(begun)
        query.begun_observed_ms = int(begun_observed)
        query.pinned_watermarks[int(latest)] = number(pinned_watermark)
    for member, reading, seen, last_event, change in live:
        name, _, substream = member.partition("/")
        state = _AtAMoment(number(reading), number(change))
        job.substreams[name, substream] = Substream(
            config.policy_of(substream), state, int(last_event), number(seen), number(reading)
        )
    return job


def _history(text: str) -> History:
    length, boundary, *cells = text.split(",")
    history = History(int(length))
    history.boundary, history.cells = number(boundary), [number(cell) for cell in cells]
    return history
