"""``stage``: store the report of one partition until its batch commits."""

from collections.abc import Mapping

from tidegate.domain import clock, tokens
from tidegate.domain.batches import begun_query, contact
from tidegate.domain.commands.report import NONE
from tidegate.domain.delays import NO_DELAYS
from tidegate.domain.observation import Values, check_event_times, check_room, set_aside_future
from tidegate.domain.reply import reply
from tidegate.domain.results import CommandResult
from tidegate.domain.state import JobState, RowsByDelay, Run, TokenClaim


def stage(
    job: JobState,
    run: Run,
    batch_id: int,
    partition: int,
    max_event_times: Values,
    rows: Values,
    now_ms: int,
    *,
    watermarks: Values = NONE,
    future_rows: Values = NONE,
    delays: Mapping[str, RowsByDelay] = NO_DELAYS,
    token: TokenClaim | None = None,
) -> CommandResult:
    """Stage the report of a partition; ignore it if the batch has committed.

    Args:
        job: The job.
        run: The caller.
        batch_id: The batch.
        partition: The partition; its next report replaces its rows and delays.
        max_event_times: Highest event time by substream.
        rows: Rows by substream.
        now_ms: Processing time.
        watermarks: Watermarks by substream, for policies that accept them.
        future_rows: Rows that the client set aside, because their event times are too far ahead of the clock.
        delays: Rows by bucket of delay, behind the max event time at the begin of the batch.
        token: The client's last watermark token.

    Raises:
        QueryFenced, QueryRetired, BatchNotBegun: If this run has not begun the batch.
        EventTimeMissing: For a watermark alone, under a policy that needs event times.
        TooManySubstreams: If the job has no room for all of them.
    """
    query = begun_query(job, run, batch_id)
    check_event_times(job, max_event_times, watermarks)
    is_open = query.open and batch_id == query.latest
    if is_open:
        check_room(job, run.query, [*max_event_times, *watermarks, *rows, *future_rows])
    clock.advance(job, now_ms)
    tokens.accept(job, token)
    contact(job, run.query, query)
    if is_open:
        event_times, watermarks = set_aside_future(job, run.query, max_event_times, watermarks)
        _merge_highest(query.staged_event_times, event_times)
        _merge_highest(query.staged_watermarks, watermarks)
        query.staged_rows |= {(partition, name): count for name, count in rows.items()}
        query.staged_future_rows |= {(partition, name): count for name, count in future_rows.items()}
        query.staged_delays |= {(partition, name): counts for name, counts in delays.items()}
    return CommandResult(reply(job), is_open)


def _merge_highest(staged: dict[str, int], values: Values) -> None:
    for name, value in values.items():
        staged[name] = max(value, staged.get(name, value))
