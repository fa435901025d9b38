"""``stage``: store the report of one partition until its batch commits."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.domain import clock, tokens
from tidegate.domain.batches import begun_query, contact
from tidegate.domain.observation import Values, check_event_times, check_room, set_aside_future
from tidegate.domain.reply import reply
from tidegate.domain.results import CommandResult
from tidegate.domain.rows import RowsByDelay
from tidegate.domain.staging import raise_each, set_each
from tidegate.domain.state import JobState, Query, Run, TokenClaim


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The report of one partition of a batch, by substream.

    Attributes:
        partition: The partition. A later report of the same partition replaces its rows and delays.
        max_event_times: Highest event times.
        rows: Numbers of rows.
        watermarks: Watermarks, for policies that accept them.
        future_rows: Rows that the client set aside because their event times are too far ahead of the clock.
        delays: Rows by delay bucket, relative to the max event time when the batch began.
    """

    partition: int
    max_event_times: Values
    rows: Values = field(default_factory=dict)
    watermarks: Values = field(default_factory=dict)
    future_rows: Values = field(default_factory=dict)
    delays: Mapping[str, RowsByDelay] = field(default_factory=dict)

    @property
    def substreams(self) -> list[str]:
        """The names of the substreams in the report, without duplicates."""
        return list(dict.fromkeys([*self.max_event_times, *self.watermarks, *self.rows, *self.future_rows]))


def stage(
    job: JobState,
    run: Run,
    batch_id: int,
    report: PartitionReport,
    now_ms: int,
    token: TokenClaim | None = None,
) -> CommandResult:
    """Stage the report of a partition; ignore it if the batch has committed.

    Raises:
        QueryFenced, QueryRetired: If this run may not continue the query.
        BatchNotBegun: If this run has not begun the batch.
        EventTimeMissing: If a watermark has no event time, but the policy needs event times.
        TooManySubstreams: If the job would exceed its limit on substreams.
    """
    query = begun_query(job, run, batch_id)
    check_event_times(job, report.max_event_times, report.watermarks)
    is_open = query.open and batch_id == query.latest
    if is_open:
        check_room(job, run.query, report.substreams)
    clock.advance(job, now_ms)
    tokens.accept(job, token)
    contact(job, run.query, query)
    if is_open:
        _stage(job, run.query, query, report)
    return CommandResult(reply(job), is_open)


def _stage(job: JobState, name: str, query: Query, report: PartitionReport) -> None:
    event_times, watermarks = set_aside_future(job, name, report.max_event_times, report.watermarks)
    query.staged.coming |= {other for other in (event_times | watermarks) if (name, other) not in job.substreams}
    query.staged.names |= dict.fromkeys(report.substreams)
    raise_each(query.staged.event_times, event_times)
    raise_each(query.staged.watermarks, watermarks)
    set_each(query.staged.rows, report.partition, report.rows)
    set_each(query.staged.future_rows, report.partition, report.future_rows)
    set_each(query.staged.delays, report.partition, report.delays)
