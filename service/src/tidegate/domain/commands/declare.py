"""``declare``: make substreams known before their first event, so that they hold the watermark from the start."""

from collections.abc import Mapping, Sequence

from tidegate.domain import clock
from tidegate.domain.errors import JobComplete
from tidegate.domain.journal import NO_AUDIT, AuditInfo
from tidegate.domain.observation import add_substream, check_room, observe, set_aside_future
from tidegate.domain.reply import reply
from tidegate.domain.results import CommandResult
from tidegate.domain.state import JobState
from tidegate.domain.substreams import record_action


def declare(
    job: JobState,
    query: str,
    names: Sequence[str],
    now_ms: int,
    max_event_times: Mapping[str, int] | None = None,
    audit: AuditInfo = NO_AUDIT,
) -> CommandResult:
    """Declare substreams; the watermark does not move before the next evaluation.

    Args:
        job: The job.
        query: The query of the substreams.
        names: The substreams.
        now_ms: Processing time.
        max_event_times: Max event times from which substreams continue if the store has lost theirs. Event times too
            far ahead of the clock are ignored.
        audit: Actor and reason.

    Raises:
        JobComplete: If the job is complete and a substream is new.
        TooManySubstreams: If the job would exceed its limit on substreams.
    """
    new = [name for name in names if (query, name) not in job.substreams]
    if new and job.is_complete:
        raise JobComplete()
    check_room(job, query, new)
    clock.advance(job, now_ms)
    known = {} if max_event_times is None or job.is_complete else max_event_times
    unseen = {name: known[name] for name in names if name in known and _is_unseen(job, query, name)}
    for name in new:
        add_substream(job, query, name)
    event_times, _ = set_aside_future(job, query, unseen, {})
    if event_times:
        observe(job, query, event_times, event_times, {})
        job.evaluation_due = True
    affected = [name for name in names if name in new or name in event_times]
    if affected:
        record_action(job, "declare", audit, query, affected)
    return CommandResult(reply(job), bool(affected))


def _is_unseen(job: JobState, query: str, name: str) -> bool:
    known = job.substreams.get((query, name))
    return known is None or (known.max_event_time is None and not known.done)
