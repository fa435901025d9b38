"""``idle``: declare substreams idle, so that they do not hold the watermark until their next report."""

from collections.abc import Sequence

from tidegate.domain import clock
from tidegate.domain.errors import SubstreamDone
from tidegate.domain.evaluate import evaluate
from tidegate.domain.journal import NO_AUDIT, AuditInfo
from tidegate.domain.reply import reply
from tidegate.domain.results import CommandResult
from tidegate.domain.state import JobState
from tidegate.domain.substreams import check_known, record_action


def idle(job: JobState, query: str, names: Sequence[str], now_ms: int, audit: AuditInfo = NO_AUDIT) -> CommandResult:
    """Make substreams idle; if any substream is unknown or done, no substream changes.

    Raises:
        SubstreamNotFound: If a substream is unknown.
        SubstreamDone: If a substream is done.
    """
    check_known(job, query, names)
    done = [name for name in names if job.substreams[query, name].done]
    if done:
        raise SubstreamDone(query, done)
    clock.advance(job, now_ms)
    new = [name for name in names if not job.substreams[query, name].idle]
    for name in names:
        substream = job.substreams[query, name]
        substream.idle = substream.forced_idle = substream.set_aside = True
        if name in new:
            substream.since_ms = job.now_ms
    if new:
        record_action(job, "idle", audit, query, new)
    evaluate(job)
    return CommandResult(reply(job), bool(new))
