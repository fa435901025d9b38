"""``report``: apply event times and watermarks immediately, without a batch."""

from collections.abc import Mapping

from tidegate.domain import clock, tokens
from tidegate.domain.delays import NO_DELAYS, measure
from tidegate.domain.errors import JobComplete
from tidegate.domain.evaluate import evaluate
from tidegate.domain.merge import merged_watermark
from tidegate.domain.names import DIRECT
from tidegate.domain.observation import Values, check_event_times, check_room, observe, set_aside_future
from tidegate.domain.reply import reply
from tidegate.domain.results import CommandResult
from tidegate.domain.rows import RowsByDelay
from tidegate.domain.state import JobState, TokenClaim

NONE: Values = {}


def report(
    job: JobState,
    max_event_times: Values,
    now_ms: int,
    *,
    min_event_times: Values = NONE,
    watermarks: Values = NONE,
    delays: Mapping[str, RowsByDelay] = NO_DELAYS,
    token: TokenClaim | None = None,
) -> CommandResult:
    """Apply a report without a batch.

    Args:
        job: The job.
        max_event_times: Highest event time by substream.
        now_ms: Processing time.
        min_event_times: Lowest event time by substream; the default is the highest event time. Watermarks that follow
            the clock do not pass the lowest of these times in the evaluation of this report.
        watermarks: Watermarks by substream, for policies that accept them.
        delays: Rows by delay bucket, for each substream. A repeated report counts the rows again.
        token: The client's last watermark token.

    Raises:
        JobComplete: If the job is complete.
        EventTimeMissing: If a watermark has no event time, but the policy needs event times.
        TooManySubstreams: If the job would exceed its limit on substreams.
    """
    if job.is_complete:
        raise JobComplete()
    check_event_times(job, max_event_times, watermarks)
    check_room(job, DIRECT, [*max_event_times, *watermarks])
    clock.advance(job, now_ms)
    tokens.accept(job, token)
    job.last_contact_ms = job.now_ms
    names = [*max_event_times, *watermarks]
    event_times, watermarks = set_aside_future(job, DIRECT, max_event_times, watermarks)
    measure(job, DIRECT, [*delays.items()], merged_watermark(job))
    applied = observe(job, DIRECT, names, event_times, watermarks)
    lowest = min((min_event_times.get(name, time) for name, time in event_times.items()), default=None)
    evaluate(job, cap=lowest)
    return CommandResult(reply(job), applied)
