"""``done``: end substreams, so that they never hold the watermark again."""

from collections.abc import Sequence

from tidegate.domain import clock
from tidegate.domain.evaluate import evaluate
from tidegate.domain.journal import NO_AUDIT, AuditInfo
from tidegate.domain.reply import reply
from tidegate.domain.results import CommandResult
from tidegate.domain.state import JobState
from tidegate.domain.substreams import check_known, record_action


def done(job: JobState, query: str, names: Sequence[str], now_ms: int, audit: AuditInfo = NO_AUDIT) -> CommandResult:
    """Mark substreams as done; the watermark does not go back.

    Raises:
        SubstreamNotFound: If a substream is unknown; no substream changes.
    """
    check_known(job, query, names)
    clock.advance(job, now_ms)
    new = [name for name in names if not job.substreams[query, name].done]
    for name in new:
        substream = job.substreams[query, name]
        substream.done, substream.since_ms = True, job.now_ms
    if new:
        record_action(job, "done", audit, query, new)
    evaluate(job)
    return CommandResult(reply(job), bool(new))
