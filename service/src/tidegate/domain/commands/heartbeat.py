"""``heartbeat``: advance the idle clock of a query that has processed all input and has no new data."""

from tidegate.domain import batches, clock, tokens
from tidegate.domain.evaluate import evaluate
from tidegate.domain.reply import reply
from tidegate.domain.results import CommandResult
from tidegate.domain.state import JobState, Run, TokenClaim


def heartbeat(
    job: JobState,
    run: Run,
    observed_ms: int,
    now_ms: int,
    waited_ms: int = 0,
    after_batch: int | None = None,
    token: TokenClaim | None = None,
) -> CommandResult:
    """Advance the idle clock of a query unless a batch is open; the idle clock never goes back.

    Args:
        job: The job.
        run: The caller.
        observed_ms: Processing time of the coordinator at which the query had no new data.
        now_ms: Processing time.
        waited_ms: Time that this run has waited for the coordinator since its start.
        after_batch: The last batch that the query has finished. If it is not the coordinator's latest batch, reports
            are missing and the idle clock does not advance. None: no check.
        token: The client's last watermark token.

    Raises:
        QueryFenced, QueryRetired, CheckpointConflict: If this run may not continue the query.
    """
    known = job.queries.get(run.query)
    if known is not None:
        batches.check_run(known, run)
        batches.check_checkpoint(known, run)
    clock.advance(job, now_ms)
    tokens.accept(job, token)
    query = batches.enter(job, run)
    clock.add_outage(query, waited_ms)
    applies = not query.open and after_batch in (None, query.latest)
    if applies:
        clock.observe_until(query, min(observed_ms, job.now_ms))
        evaluate(job)
    return CommandResult(reply(job), applies)
