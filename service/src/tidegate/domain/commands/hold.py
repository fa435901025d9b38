"""``hold``: keep C, and therefore W, at or below a value."""

from tidegate.domain import clock
from tidegate.domain.errors import HoldExists, JobComplete
from tidegate.domain.journal import NO_AUDIT, AuditInfo
from tidegate.domain.reply import reply
from tidegate.domain.results import CommandResult, Hold
from tidegate.domain.state import JobState
from tidegate.domain.substreams import record_action


def hold(
    job: JobState, hold: str, at_most: int, duration_ms: int | None, now_ms: int, audit: AuditInfo = NO_AUDIT
) -> CommandResult:
    """Keep C at or below ``at_most``; if C is already higher, C does not move.

    A repeated hold expires at the later of the two times. If ``duration_ms`` is None, the hold lasts until it is
    released.

    Raises:
        HoldExists: If a hold with the same name has another value.
        JobComplete: If the job is complete.
    """
    if job.is_complete:
        raise JobComplete()
    present = job.holds.get(hold)
    latest_ms = max(now_ms, job.now_ms) - clock.outage_until(job, now_ms)
    if present is not None and present.in_force(latest_ms) and present.at_most != at_most:
        raise HoldExists(hold, present.at_most)
    clock.advance(job, now_ms)
    present = job.holds.get(hold)
    in_force = present if present is not None and present.in_force(job.now_ms) else None
    expires_ms = None if duration_ms is None else job.now_ms + duration_ms
    if in_force is not None and not _is_later(expires_ms, in_force.expires_ms):
        return CommandResult(reply(job), False)
    if present is not None and in_force is None:
        job.evaluation_due = True  # the expired hold no longer limits C
    job.holds[hold] = Hold(hold, at_most, expires_ms, audit.reason)
    record_action(job, "hold", audit, hold=hold, at_most=at_most)
    return CommandResult(reply(job), True)


def _is_later(expires_ms: int | None, before_ms: int | None) -> bool:
    return before_ms is not None and (expires_ms is None or expires_ms > before_ms)
