"""``reopen``: accept input again; the watermark does not go back."""

from tidegate.domain import clock
from tidegate.domain.evaluate import evaluate
from tidegate.domain.journal import NO_AUDIT, AuditInfo
from tidegate.domain.reply import reply
from tidegate.domain.results import CommandResult
from tidegate.domain.state import JobState
from tidegate.domain.substreams import record_action


def reopen(job: JobState, now_ms: int, audit: AuditInfo = NO_AUDIT) -> CommandResult:
    """Reopen a complete job; the time while it was complete does not count towards ``idle_timeout_ms``.

    Rows below the watermark of the job are late.
    """
    clock.advance(job, now_ms)
    applied, job.is_complete = job.is_complete, False
    if applied:
        job.unattended_ms += job.processing_time.observed_ms - job.completed_ms
        record_action(job, "reopen", audit)
        evaluate(job)
    return CommandResult(reply(job), applied)
