"""``commit``: apply the staged reports of a batch and account for its rows, exactly once."""

from tidegate.domain import batches, clock, tokens
from tidegate.domain.errors import ReportsMissing
from tidegate.domain.evaluate import evaluate
from tidegate.domain.observation import latest_event_time
from tidegate.domain.reply import reply
from tidegate.domain.results import CommandResult
from tidegate.domain.rows import BatchAccounting, RowCounts
from tidegate.domain.state import JobState, Run, TokenClaim


def commit(
    job: JobState,
    run: Run,
    batch_id: int,
    accounting: BatchAccounting | None,
    now_ms: int,
    waited_ms: int = 0,
    reported: int | None = None,
    token: TokenClaim | None = None,
) -> CommandResult:
    """Commit a batch; a repeated commit changes nothing.

    Args:
        job: The job.
        run: The caller.
        batch_id: The batch.
        accounting: Rows by class and by hour; None if the client does not account for them.
        now_ms: Processing time.
        waited_ms: Time that this run has waited for the coordinator since its start.
        reported: Number of row counts sent, one per partition and substream. None: no check.
        token: The client's last watermark token.

    Raises:
        QueryFenced, QueryRetired, BatchNotBegun: If this run has not begun the batch.
        ReportsMissing: If fewer row counts are staged than ``reported``.
    """
    query = batches.begun_query(job, run, batch_id)
    is_open = query.open and batch_id == query.latest
    if is_open and reported is not None and reported > len(query.staged.rows):
        raise ReportsMissing(run.query, batch_id, reported - len(query.staged.rows))
    clock.advance(job, now_ms)
    tokens.accept(job, token)
    batches.contact(job, run.query, query)
    clock.add_outage(query, waited_ms)
    if is_open:
        batches.commit_staged(job, run.query, query)
        evaluate(job)
        if accounting is not None:
            _account(job, run.query, accounting)
    return CommandResult(reply(job), is_open)


def _account(job: JobState, query: str, accounting: BatchAccounting) -> None:
    is_diverted = accounting.late_disposition == "diverted"
    for name, counts in accounting.by_substream():
        key = query, name
        diverted = counts.late if is_diverted else 0
        job.total += counts
        job.diverted_total += diverted
        if key in job.substreams:
            job.counts[key] = job.counts.get(key, RowCounts()) + counts
            job.diverted_rows[key] = job.diverted_rows.get(key, 0) + diverted
    known = {name: (query, name) for name in accounting.substreams if (query, name) in job.substreams}
    rows = ((known.get(name), of_hour) for name, of_hour in accounting.by_hour())
    job.ledger.add(rows, accounting.late_disposition, accounting.all_hours, latest_event_time(job))
