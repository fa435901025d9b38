"""``release``: end a hold before it expires."""

from tidegate.domain import clock
from tidegate.domain.errors import HoldNotFound
from tidegate.domain.evaluate import evaluate
from tidegate.domain.journal import NO_AUDIT, AuditInfo
from tidegate.domain.reply import reply
from tidegate.domain.results import WatermarkState
from tidegate.domain.state import JobState
from tidegate.domain.substreams import record_action


def release(job: JobState, hold: str, now_ms: int, audit: AuditInfo = NO_AUDIT) -> WatermarkState:
    """End a hold; raise HoldNotFound if the job has no such hold."""
    if hold not in job.holds:
        raise HoldNotFound(hold)
    clock.advance(job, now_ms)
    del job.holds[hold]
    record_action(job, "release", audit, hold=hold)
    evaluate(job)
    return reply(job)
