"""``retire``: end a query, and move its substreams to a successor or evict them."""

from tidegate.domain import clock
from tidegate.domain.batches import give_up
from tidegate.domain.clock import observed_time
from tidegate.domain.errors import QueryNotFound
from tidegate.domain.evaluate import evaluate
from tidegate.domain.journal import NO_AUDIT, AuditInfo
from tidegate.domain.names import PLACEHOLDER
from tidegate.domain.reply import reply
from tidegate.domain.results import CommandResult
from tidegate.domain.rows import RowCounts
from tidegate.domain.state import JobState, Query
from tidegate.domain.substreams import forget, record_action


def retire(job: JobState, query: str, successor: str | None, now_ms: int, audit: AuditInfo = NO_AUDIT) -> CommandResult:
    """End a query: refuse its current run, and abandon its open batch with the staged reports.

    Args:
        job: The job.
        query: The query.
        successor: The query that receives the substreams, except substreams that it already has. The silence of the
            received substreams starts now. If the successor is None, the job evicts the substreams. If the successor is
            the query itself, the query keeps its substreams and may begin on another checkpoint.
        now_ms: Processing time.
        audit: Actor and reason.

    Raises:
        QueryNotFound: If the job has neither the query nor any substream of the query.
    """
    known = job.queries.get(query)
    own = [key for key in job.substreams if key[0] == query]
    if known is None and not own:
        raise QueryNotFound(query)
    clock.advance(job, now_ms)
    if known is not None and known.retired and not own:
        return CommandResult(reply(job), False)
    if successor == query:
        return _give_up_batch(job, query, known, audit)
    if known is None:  # no call yet: store a query that is retired
        known = job.queries[query] = Query("", "", job.now_ms)
    give_up(known)
    job.last_seen.pop(query, None)
    if successor is not None:
        _hand_over(job, query, successor)
    forget(job, [key for key in own if key in job.substreams])
    names = [name for _, name in own if name != PLACEHOLDER]
    record_action(job, "retire" if successor is None else "hand_over", audit, query, names, successor=successor)
    evaluate(job)
    return CommandResult(reply(job), True)


def _give_up_batch(job: JobState, query: str, known: Query | None, audit: AuditInfo) -> CommandResult:
    applied = known is not None and known.open
    if known is not None and applied:
        give_up(known)
        record_action(job, "hand_over", audit, query, successor=query)
    evaluate(job)
    return CommandResult(reply(job), applied)


def _hand_over(job: JobState, query: str, successor: str) -> None:
    for key in [key for key in job.substreams if key[0] == query and key[1] != PLACEHOLDER]:
        to = successor, key[1]
        if to in job.substreams:
            continue
        substream = job.substreams.pop(key)
        substream.last_event_ms = observed_time(job, successor)
        job.substreams[to] = substream
        job.substreams.pop((successor, PLACEHOLDER), None)
        job.counts[to] = job.counts.get(to, RowCounts()) + job.counts.pop(key, RowCounts())
        for table in (job.reported_rows, job.future_rows, job.diverted_rows):
            table[to] = table.get(to, 0) + table.pop(key, 0)
        if key in job.delays:
            job.delays[to] = job.delays.pop(key)
