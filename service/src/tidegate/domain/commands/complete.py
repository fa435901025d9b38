"""``complete``: end the input of a job; the watermark moves past all observed event times."""

from tidegate.domain import clock, holds
from tidegate.domain.emission import advance, raise_watermark
from tidegate.domain.errors import BatchOpen, HoldActive
from tidegate.domain.journal import NO_AUDIT, AuditInfo
from tidegate.domain.numbers import highest
from tidegate.domain.reply import reply
from tidegate.domain.results import CommandResult
from tidegate.domain.state import JobState
from tidegate.domain.substreams import record_action
from tidegate.domain.throttle import offer


def complete(job: JobState, now_ms: int, audit: AuditInfo = NO_AUDIT, up_to: int | None = None) -> CommandResult:
    """Complete a job: end all substreams, and move C to the end of the last frame with events.

    If ``up_to`` is given, C also moves to the end of the last frame that begins before ``up_to``, even in a complete
    job. Without frames, C moves past the max event time. The throttle does not apply.

    Raises:
        BatchOpen: If a batch is open.
        HoldActive: If a hold is in force.
    """
    moves = up_to is not None and (job.coalesced_watermark is None or up_to > job.coalesced_watermark)
    if job.is_complete and not moves:
        clock.advance(job, now_ms)
        return CommandResult(reply(job), False)
    for name, query in sorted(job.queries.items(), key=lambda item: item[0].encode()):
        if query.open:
            raise BatchOpen(name, query.latest)
    for hold in holds.in_order(job):
        if hold.in_force(max(now_ms, job.now_ms) - clock.outage_until(job, now_ms)):
            raise HoldActive(hold.hold, hold.at_most)
    clock.advance(job, now_ms)
    advance(job, offer(job.config.throttle, job.max_watermark, job.coalesced_watermark, job.numbers))
    last = highest(job.max_event_time, None if up_to is None else max(up_to - 1, job.numbers.lowest))
    if last is not None:
        advance(job, job.config.throttle.end_after(last, job.numbers))
    raise_watermark(job, job.coalesced_watermark)
    if not job.is_complete:
        job.is_complete, job.completed_ms = True, job.processing_time.observed_ms
    record_action(job, "complete", audit, up_to=up_to)
    return CommandResult(reply(job), True)
