"""``evict``: remove substreams; a later report adds them as new substreams."""

from collections.abc import Sequence

from tidegate.domain import clock
from tidegate.domain.evaluate import evaluate
from tidegate.domain.journal import NO_AUDIT, AuditInfo
from tidegate.domain.reply import reply
from tidegate.domain.results import CommandResult
from tidegate.domain.state import JobState
from tidegate.domain.substreams import forget, record_action


def evict(job: JobState, query: str, names: Sequence[str], now_ms: int, audit: AuditInfo = NO_AUDIT) -> CommandResult:
    """Remove substreams, and ignore unknown substreams. The watermark does not go back."""
    clock.advance(job, now_ms)
    known = [name for name in names if (query, name) in job.substreams]
    forget(job, [(query, name) for name in known])
    if known:
        record_action(job, "evict", audit, query, known)
    evaluate(job)
    return CommandResult(reply(job), bool(known))
