"""``restore``: raise the watermarks of known substreams to given values."""

from collections.abc import Mapping

from tidegate.domain import clock, holds
from tidegate.domain.emission import advance, emit
from tidegate.domain.errors import JobComplete
from tidegate.domain.journal import NO_AUDIT, AuditInfo
from tidegate.domain.numbers import above, by_value
from tidegate.domain.reply import reply
from tidegate.domain.results import CommandResult
from tidegate.domain.state import JobState
from tidegate.domain.substreams import check_known, record_action


def restore(
    job: JobState, query: str, watermarks: Mapping[str, int], now_ms: int, audit: AuditInfo = NO_AUDIT
) -> CommandResult:
    """Raise watermarks of substreams, and raise C to the lowest watermark of all substreams.

    Holds limit C; the throttle does not.

    Raises:
        JobComplete: If the job is complete.
        SubstreamNotFound: If a substream is unknown.
    """
    if job.is_complete:
        raise JobComplete()
    check_known(job, query, watermarks)
    clock.advance(job, now_ms)
    new = [name for name, watermark in watermarks.items() if above(watermark, job.substreams[query, name].watermark)]
    for name in new:
        job.substreams[query, name].watermark = watermarks[name]
    if new:
        record_action(job, "restore", audit, query, new)
        job.evaluation_due = True
        lowest = min((substream.watermark for substream in job.substreams.values()), key=by_value)
        advance(job, holds.cap(job, lowest))
        emit(job)
    return CommandResult(reply(job), bool(new))
