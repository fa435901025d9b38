"""Batches: the commands of a Spark query, and the checks that reject older runs and other checkpoints.

A batch is open from its ``begin`` to its ``commit``. ``begin`` pins the watermark of the batch, ``stage`` stores the
reports of its partitions, and ``commit`` applies them. ``heartbeat`` reports that a query is caught up.

This is the model. In a coordinator, ``store/lua/batches.lua`` does the same.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.domain.completeness import NO_ROWS, BatchAccounting, RowsByDelay, RowsOfHour
from tidegate.domain.errors import (
    BatchForgotten,
    BatchNotBegun,
    CheckpointConflict,
    JobComplete,
    PinnedWatermarkConflict,
    QueryFenced,
    QueryRetired,
    ReportsMissing,
)
from tidegate.domain.evaluate import accept_token, advance_clock, evaluate, merged_watermark, reply, time_out_caught_up
from tidegate.domain.frames import (
    committed_batch,
    confirm_silence,
    count_rows,
    lose,
    miss_rows,
    unfinished_frame,
    wrote_results,
)
from tidegate.domain.history import NAMES_KEPT, Kind, named
from tidegate.domain.job import (
    Exclusion,
    JobState,
    PinnedWatermark,
    Query,
    Run,
    Staged,
    TableVersion,
    TokenClaim,
    raise_each,
    set_each,
)
from tidegate.domain.limits import learn_arrivals
from tidegate.domain.observe import (
    Values,
    check_event_times,
    check_room,
    count_future,
    end_substreams,
    latest_event_time,
    measure,
    observe,
    restart_substreams,
    set_aside_future,
)
from tidegate.domain.offsets import BatchOffsets, CommittedOffsets, advance, substream_changes
from tidegate.domain.results import Begun, Committed, Effect
from tidegate.domain.values import by_value, highest, member

PINNED_WATERMARKS_KEPT = 100
"""Minimum number of pinned watermarks that a query keeps, equal to Spark's default of ``minBatchesToRetain``."""
OUTPUTS_KEPT = 20
"""Maximum number of tables of a query whose versions are kept, those told last."""

# begin


@dataclass(frozen=True, slots=True)
class BeginOptions:
    """The values that a run sends to begin a batch.

    Attributes:
        sent: The pinned watermark that the client has stored. A new batch receives this pinned watermark.
        keep: Number of pinned watermarks to keep.
        waited_ms: Time that this run has waited for the coordinator since its start.
        input_age_ms: This batch and earlier batches contain all input that is at least this old; None if unknown.
        tells_output: Whether the client tells the output watermark of the query.
        output_watermark: The output watermark; None if the query has written nothing, or does not tell it.
        outputs: Versions of tables that the query writes.
    """

    sent: PinnedWatermark | None = None
    keep: int = PINNED_WATERMARKS_KEPT
    waited_ms: int = 0
    input_age_ms: int | None = 0
    tells_output: bool = False
    output_watermark: int | None = None
    outputs: Sequence[TableVersion] = ()


DEFAULTS = BeginOptions()


def begin(
    job: JobState,
    run: Run,
    batch_id: int,
    now_ms: int,
    options: BeginOptions = DEFAULTS,
    token: TokenClaim | None = None,
) -> Begun:
    """Open a batch and pin its watermark, or return the pinned watermark of a batch that has already begun.

    The run becomes the current run of its query. The begin of a later batch commits the open batch, because Spark
    begins batch N only after batch N - 1 has returned.

    Raises:
        QueryFenced, QueryRetired, CheckpointConflict: If this run may not continue the query.
        BatchForgotten, PinnedWatermarkConflict: If the query no longer keeps the pinned watermark, or the client sent
            another one.
        JobComplete: If the job is complete and the batch is new.
    """
    current = _check_caller(job, run)
    on_checkpoint = current if current is not None and current.query_id == run.query_id else None
    previous, previous_open = (None, False) if on_checkpoint is None else (on_checkpoint.latest, on_checkpoint.open)
    is_replay = previous is not None and batch_id <= previous
    stored = None if on_checkpoint is None else _stored_pin(on_checkpoint, batch_id, is_replay, options.sent)
    if job.is_complete and not is_replay:
        raise JobComplete()

    advance_clock(job, now_ms)
    accept_token(job, token)
    joined = not is_replay and _joins(job, run.query)
    query = _enter(job, run, options.waited_ms)
    # A delayed begin must not replace the versions that the commit of the batch, or a heartbeat, has told since.
    is_taken_over = batch_id == query.latest and query.open and query.begun_by != run.run_id
    if not is_replay or is_taken_over:
        _tell_outputs(query, options.outputs)  # before a lost commit is made up for, which may finish frames
    match stored:
        case None:  # a new batch
            pinned = _open(job, run, query, batch_id, options.sent, options)
        case PinnedWatermark(pinned) if not is_replay:  # abandoned by an operator: begins again as it was pinned
            _open(job, run, query, batch_id, stored, options)
        case PinnedWatermark(pinned) if batch_id == query.latest:  # the latest batch again
            if query.begun_by != run.run_id:  # a new run takes the batch over, and sends all reports again
                query.begun_by, query.staged = run.run_id, Staged()
            if query.open:
                # The answer to the first begin may have been lost, and with it the evidence of a lost commit.
                previous, previous_open = query.previous, query.previous_open
        case PinnedWatermark(pinned):  # an older batch: the client needs its pinned watermark only
            pass
    if batch_id == query.latest:
        query.begun_revision = job.revision  # the client reads this configuration before it counts rows
    query.tells_output = options.tells_output
    # Rows of the batch at its pinned watermark or above are on time, and their results are not yet written.
    told = highest(query.output_watermark, options.output_watermark)
    query.output_watermark = min(told, pinned, key=by_value)
    state, latest = reply(job), latest_event_time(job)
    return Begun(state, pinned, is_replay, joined, latest, previous, previous_open, job.revision, unfinished_frame(job))


def _tell_outputs(query: Query, outputs: Iterable[TableVersion]) -> None:
    """Replace the versions of tables that a query writes. Keep the tables told last."""
    for each in outputs:
        query.outputs.pop(each.table, None)
        query.outputs[each.table] = each.version
    for table in [*query.outputs][:-OUTPUTS_KEPT]:
        del query.outputs[table]


def _stored_pin(query: Query, batch_id: int, is_replay: bool, sent: PinnedWatermark | None) -> PinnedWatermark | None:
    """Return the pinned watermark of a batch that has already begun; None if the batch is new."""
    if batch_id not in query.pinned_watermarks:
        if is_replay:
            raise BatchForgotten(query.latest)
        return None
    stored = PinnedWatermark(query.pinned_watermarks[batch_id])
    if sent is not None and sent != stored:
        raise PinnedWatermarkConflict(stored.value)
    return stored


def _joins(job: JobState, name: str) -> bool:
    """Record and return whether an unexpected query joins a job that has a watermark."""
    known = job.queries.get(name)
    is_new = known is None or (known.retired and not any(query == name for query, _ in job.substreams))
    joins = is_new and name not in job.config.expected_queries and job.coalesced_watermark is not None
    if joins:
        job.history.write(job.now_ms, Kind.JOINED, query=name)
    return joins


def _open(
    job: JobState, run: Run, query: Query, batch_id: int, given: PinnedWatermark | None, options: BeginOptions
) -> int | None:
    """Commit the open batch, open the new one, and return its pinned watermark: the given one, or else C."""
    if query.query_id != run.query_id:  # the batches of the previous checkpoint have other numbers
        query.query_id = run.query_id
        query.latest, query.open, query.begun_ms = None, False, None
        query.output_watermark = query.proven_ms = None
        query.pinned_watermarks.clear()
        query.staged = Staged()
    query.previous, query.previous_open = query.latest, query.open

    commits = query.open
    if commits:
        # The store has lost the commit, and perhaps also reports of this batch. The batch is therefore no evidence that
        # substreams are silent.
        query.input_known_until_ms = None
        _commit_staged(job, run.query, query)
        miss_rows(job)
        if given is None:
            evaluate(job)
    pinned = job.coalesced_watermark if given is None else given.value

    query.latest, query.open, query.begun_ms, query.begun_by = batch_id, True, job.now_ms, query.run_id
    query.begun_observed_ms, query.released = job.moment.observed_ms, False
    wrote_results(job, run.query)
    query.input_known_until_ms = None if options.input_age_ms is None else job.now_ms - options.input_age_ms
    query.begun_merged = merged_watermark(job)
    # A job without a target does not read what its other queries have proven, which costs a read of each.
    has_target = job.config.arrival_target is not None
    query.begun_proven_ms = min(job.proven_ms, query.proven_ms, key=by_value) if has_target else query.proven_ms
    query.staged = Staged()
    query.pinned_watermarks[batch_id] = pinned
    oldest = batch_id - max(options.keep, PINNED_WATERMARKS_KEPT)
    for old in [kept for kept in query.pinned_watermarks if kept <= oldest]:
        del query.pinned_watermarks[old]

    if commits and given is not None:  # the given pinned watermark must hold W in this evaluation
        evaluate(job)
    return pinned


# stage


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
    job: JobState, run: Run, batch_id: int, report: PartitionReport, now_ms: int, token: TokenClaim | None = None
) -> Effect:
    """Store the report of a partition until its batch commits; ignore it if the batch has committed.

    Raises:
        QueryFenced, QueryRetired: If this run may not continue the query.
        BatchNotBegun: If this run has not begun the batch.
        EventTimeMissing: If a watermark has no event time, but the policy needs event times.
        TooManySubstreams: If the job would exceed its limit on substreams.
    """
    query = _begun_query(job, run, batch_id)
    check_event_times(job, report.max_event_times, report.watermarks)
    is_open = query.open and batch_id == query.latest
    if is_open:
        check_room(job, run.query, report.substreams)
    advance_clock(job, now_ms)
    accept_token(job, token)
    _contact(job, run.query, query)
    if is_open:
        event_times, watermarks = set_aside_future(job, run.query, report.max_event_times, report.watermarks)
        staged = query.staged
        staged.coming |= {name for name in (event_times | watermarks) if (run.query, name) not in job.substreams}
        staged.names |= dict.fromkeys(report.substreams)
        raise_each(staged.event_times, event_times)
        raise_each(staged.watermarks, watermarks)
        set_each(staged.rows, report.partition, report.rows)
        set_each(staged.future_rows, report.partition, report.future_rows)
        set_each(staged.delays, report.partition, report.delays)
    return Effect(reply(job), is_open)


# commit


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Substreams of a query, and the age of the time up to which their input was read.

    Attributes:
        substreams: Names of the substreams.
        age_ms: Age of the time at the call.
    """

    substreams: Collection[str]
    age_ms: int


def commit(
    job: JobState,
    run: Run,
    batch_id: int,
    accounting: BatchAccounting | None,
    now_ms: int,
    waited_ms: int = 0,
    reported: int | None = None,
    token: TokenClaim | None = None,
    caught_up: CaughtUp | None = None,
    offsets: BatchOffsets | None = None,
    outputs: Sequence[TableVersion] = (),
) -> Committed:
    """Apply the staged reports of a batch and account for its rows, exactly once; a repeated commit changes nothing.

    Args:
        job: The job.
        run: The caller.
        batch_id: The batch.
        accounting: Rows by class and by hour; None if the client does not account for them.
        now_ms: Processing time.
        waited_ms: Time that this run has waited for the coordinator since its start.
        reported: Number of row counts sent, one per partition and substream. None: no check.
        token: The client's last watermark token.
        caught_up: Substreams whose input up to a time is in this batch or an earlier batch. The time of the begin then
            does not count. None: the time of the begin counts for all substreams of the query.
        offsets: The offsets of the batch in the partitions of its source; None if the client does not know them.
        outputs: Versions of tables that the query writes.

    Raises:
        QueryFenced, QueryRetired, BatchNotBegun: If this run has not begun the batch.
        ReportsMissing: If fewer row counts are staged than ``reported``.
    """
    query = _begun_query(job, run, batch_id)
    is_open = query.open and batch_id == query.latest
    if is_open and reported is not None and reported > len(query.staged.rows):
        raise ReportsMissing(run.query, batch_id, reported - len(query.staged.rows))
    advance_clock(job, now_ms)
    accept_token(job, token)
    _contact(job, run.query, query)
    _add_outage(query, waited_ms)
    if is_open:
        _tell_outputs(query, outputs)
        lost = _apply_offsets(job, run, query, batch_id, offsets)
        _commit_staged(job, run.query, query, caught_up)
        _lose_each(job, lost)
        # The client may not know the frames that were declared while the batch was open.
        knows_frames = query.begun_revision >= job.frames.revision
        of_frames = () if accounting is None or not knows_frames else accounting.frames or ()
        learn_arrivals(job, query.begun_proven_ms, of_frames)
        evaluate(job)
        if accounting is not None:
            _account(job, run.query, accounting, of_frames)
        is_counted = accounting is not None and accounting.frames is not None
        if accounting is None or (accounting.counts and not is_counted) or not knows_frames:
            miss_rows(job)
    return Committed(reply(job), is_open, unfinished_frame(job))


def _lose_each(job: JobState, lost: Iterable[Exclusion]) -> None:
    for each in lost:
        lose(job, each)


def _apply_offsets(
    job: JobState, run: Run, query: Query, batch_id: int, offsets: BatchOffsets | None
) -> list[Exclusion]:
    """Apply the offsets of a batch, unless those of a later batch were applied; return the lost offsets.

    The caller must record the losses after the rows of the batch, and evaluate the job.

    Substreams end only if another one of the source holds the watermark. Otherwise, the watermark would pass all rows
    that the source has next, for example those of a topic that is about to be created again.

    Args:
        job: The job.
        run: The caller.
        query: The query of the caller.
        batch_id: The batch of the offsets, unless they name another one.
        offsets: The offsets; None if they are not known.
    """
    if offsets is None:
        return []
    before, of_batch = query.checkpoint_offsets, batch_id if offsets.batch_id is None else offsets.batch_id
    told = CommittedOffsets(job.now_ms, run.query_id, of_batch, offsets)
    query.offsets, lost = advance(before, told, run.query, job.history)
    of_lost = (run.query, query.offsets.batch_id)
    losses = [
        Exclusion(kind, sum(found.values()), None, (), *of_lost, tuple([*found][:NAMES_KEPT])) for kind, found in lost
    ]
    if query.offsets is before or job.is_complete:
        return losses
    changes = substream_changes(before, offsets)
    again = [name for name in changes.new if (known := job.substreams.get((run.query, name))) and known.done]
    restarted = restart_substreams(job, run.query, [*changes.restarted, *again])
    present = (job.substreams.get((run.query, name)) for name in changes.present)
    others_hold = any(substream is not None and substream.counts for substream in present)
    ended = end_substreams(job, run.query, changes.gone if others_hold else ())
    for kind, changed in ((Kind.RESTARTED, restarted), (Kind.ENDED, ended)):
        if changed:
            job.history.write(job.now_ms, kind, query=run.query, **named(member((run.query, of)) for of in changed))
    return losses


def _commit_staged(job: JobState, name: str, query: Query, caught_up: CaughtUp | None = None) -> None:
    """Apply the staged reports of the open batch and close it; the caller must evaluate the job afterwards."""
    staged = query.staged
    measure(job, name, [(of, rows) for (_, of), rows in staged.delays.items()], query.begun_merged)
    observe(job, name, staged.names, staged.event_times, staged.watermarks)
    if caught_up is not None:
        until_ms = job.now_ms - caught_up.age_ms
        time_out_caught_up(job, name, until_ms - query.outage_ms, caught_up.substreams)
        confirm_silence(job, name, until_ms, caught_up.substreams)
    elif query.input_known_until_ms is not None:
        _advance_idle_clock(query, query.input_known_until_ms)
        confirm_silence(job, name, query.input_known_until_ms)
    for (_partition, substream), count in staged.rows.items():
        key = name, substream
        if key in job.substreams:
            job.reported_rows[key] = job.reported_rows.get(key, 0) + count
    for (_partition, substream), count in staged.future_rows.items():
        count_future(job, name, {substream: count})
    query.open = False
    query.staged = Staged()


def _account(job: JobState, query: str, accounting: BatchAccounting, of_frames: Sequence[RowsOfHour]) -> None:
    is_diverted = accounting.late_disposition == "diverted"
    for name, counts in accounting.by_substream():
        key = query, name
        diverted = counts.late if is_diverted else 0
        job.total += counts
        job.diverted_total += diverted
        if key in job.substreams:
            job.row_counts[key] = job.row_counts.get(key, NO_ROWS) + counts
            job.diverted_rows[key] = job.diverted_rows.get(key, 0) + diverted
    known = {name: (query, name) for name in accounting.substreams if (query, name) in job.substreams}
    rows = ((known.get(name), of_hour) for name, of_hour in accounting.by_hour())
    job.ledger.add(rows, accounting.late_disposition, accounting.all_hours, latest_event_time(job))
    count_rows(job, query, of_frames, accounting.late_disposition, latest_event_time(job))


# heartbeat


def heartbeat(
    job: JobState,
    run: Run,
    caught_up_ms: int,
    now_ms: int,
    waited_ms: int = 0,
    after_batch: int | None = None,
    token: TokenClaim | None = None,
    caught_up: Collection[str] | None = None,
    offsets: BatchOffsets | None = None,
    tells_output: bool = False,
    output_watermark: int | None = None,
    outputs: Sequence[TableVersion] = (),
) -> Effect:
    """Advance the idle clock of a query that was caught up, and raise its output watermark; neither goes back.

    While a batch is open, the heartbeat must be about the batch before it: the input of the open batch came later.

    Args:
        job: The job.
        run: The caller.
        caught_up_ms: Processing time of the coordinator at which the query was caught up.
        now_ms: Processing time.
        waited_ms: Time that this run has waited for the coordinator since its start.
        after_batch: The last batch that the query had finished. If it is not the last batch that the coordinator has
            committed, reports may be missing, and the idle clock does not advance. None: no check, but no batch may be
            open.
        token: The client's last watermark token.
        caught_up: Substreams of the query that were caught up; the idle clock then stays. None: all substreams.
        offsets: The offsets of ``after_batch`` or an earlier batch; None if the client has no offsets to tell.
        tells_output: Whether the client tells the output watermark of the query.
        output_watermark: The output watermark; None if the query has written nothing, or the client does not tell it.
        outputs: Versions of tables that the query writes. They are ignored if the coordinator has committed a batch
            after ``after_batch``, whose commit has told later ones.

    Raises:
        QueryFenced, QueryRetired, CheckpointConflict: If this run may not continue the query.
    """
    _check_caller(job, run)
    advance_clock(job, now_ms)
    accept_token(job, token)
    query = _enter(job, run, waited_ms)
    if tells_output and run.query_id == query.query_id:
        query.tells_output = True
        query.output_watermark = highest(query.output_watermark, output_watermark)
    if query.open:
        applies = after_batch is not None and after_batch == query.previous and not query.previous_open
    else:
        applies = after_batch in (None, query.latest)
    committed = committed_batch(job, run.query)
    is_current = not query.open if after_batch is None else committed is None or after_batch >= committed
    if is_current and run.query_id == query.query_id:
        _tell_outputs(query, outputs)
    is_told = tells_output and after_batch is not None and query.latest is not None and after_batch >= query.latest
    if is_told and not query.open and run.query_id == query.query_id:
        wrote_results(job, run.query)
    if applies:
        if after_batch is not None and run.query_id == query.query_id:
            _lose_each(job, _apply_offsets(job, run, query, after_batch, offsets))
        until_ms = min(caught_up_ms, job.now_ms)
        if caught_up is None:
            _advance_idle_clock(query, until_ms)
        else:
            time_out_caught_up(job, run.query, until_ms - query.outage_ms, caught_up)
        confirm_silence(job, run.query, until_ms, caught_up)
        evaluate(job)
    return Effect(reply(job), applies)


# Callers: runs of a query on its checkpoint


def _check_caller(job: JobState, run: Run) -> Query | None:
    """Return the query that a run may continue; None if the query is new.

    Raises:
        QueryFenced: If a newer run has replaced this run.
        QueryRetired: If the query was retired since the run started.
        CheckpointConflict: If a batch of another checkpoint is open.
    """
    query = job.queries.get(run.query)
    if query is None:
        return None
    _check_run(query, run)
    if run.query_id != query.query_id and query.open:
        raise CheckpointConflict(query.latest, query.query_id)
    return query


def _begun_query(job: JobState, run: Run, batch_id: int) -> Query:
    """Return the query of a batch that this run has begun.

    Raises:
        QueryFenced, QueryRetired: If this run may not continue the query.
        BatchNotBegun: If the batch is later than the latest batch, or another checkpoint or run began it.
    """
    query = job.queries.get(run.query)
    if query is None:
        raise BatchNotBegun(run.query, batch_id)
    _check_run(query, run)
    is_begun = query.latest is not None and batch_id <= query.latest
    if not is_begun or (run.query_id, run.run_id) != (query.query_id, query.begun_by):
        raise BatchNotBegun(run.query, batch_id)
    return query


def _check_run(query: Query, run: Run) -> None:
    if query.retired and run.run_id in (*query.fenced_runs, query.run_id):
        raise QueryRetired(run.query)
    if run.run_id in query.fenced_runs:
        raise QueryFenced(query.run_id)


def _enter(job: JobState, run: Run, waited_ms: int) -> Query:
    """Make a run the current run of its query: add an unknown query, and fence the previous run."""
    query = job.queries.get(run.query)
    if query is None:
        query = job.queries[run.query] = Query(run.query_id, run.run_id, job.now_ms)
    query.retired = False
    before = query.run_id
    if run.run_id != before:
        query.run_id, query.waited_ms = run.run_id, 0
        query.outputs.clear()  # the previous run may have written a version that it has not told
        if before:  # "" if the query was retired before its first call
            query.fenced_runs = [*query.fenced_runs, before][-PINNED_WATERMARKS_KEPT:]
            job.history.write(job.now_ms, Kind.FENCED, query=run.query, run_id=before)
    _contact(job, run.query, query)
    _add_outage(query, waited_ms)
    return query


def _contact(job: JobState, name: str, query: Query) -> None:
    """Record a call of a query."""
    query.last_contact_ms = job.last_contact_ms = job.now_ms
    job.last_seen[name] = job.moment.observed_ms


def _add_outage(query: Query, waited_ms: int) -> None:
    """Record how long the current run has waited for the coordinator since its start."""
    query.outage_ms += max(0, waited_ms - query.waited_ms)
    query.waited_ms = max(waited_ms, query.waited_ms)


def _advance_idle_clock(query: Query, time_ms: int) -> None:
    """Record that the query was caught up at a processing time."""
    query.idle_clock_observed_ms = highest(time_ms - query.outage_ms, query.idle_clock_observed_ms)
    query.proven_ms = highest(time_ms, query.proven_ms)


def give_up(job: JobState, name: str, reason: str) -> None:
    """Retire a query and abandon its open batch; a new begin of this batch returns its pinned watermark."""
    query = job.queries[name]
    if query.open:
        lose(job, Exclusion(reason, 1, query.pinned_watermark, (), name, query.latest))
    if query.open and query.latest is not None:
        query.latest = query.latest - 1 if query.latest else None
    query.open, query.released, query.begun_ms, query.retired = False, False, None, True
    wrote_results(job, name)
    query.staged = Staged()
    query.outputs.clear()
