"""The procedures of one run of a query."""

from collections.abc import Sequence
from dataclasses import replace

from tidegate_spark.batch import Batch
from tidegate_spark.errors import CoordinatorUnavailable, JobMissing, Refused, TidegateError
from tidegate_spark.protocol.backlog import Backlog, BacklogBatch
from tidegate_spark.protocol.batches import REFUSED_BODY, Batches, Call, OpenBatch, in_turns
from tidegate_spark.protocol.calls import QueryCalls
from tidegate_spark.protocol.choices import QueryChoices
from tidegate_spark.protocol.coordinator import Answer
from tidegate_spark.protocol.effects import HasCheckpoint, Locked, Procedure, ReadPlannedMs, Result
from tidegate_spark.protocol.evidence import (
    ALL_CAUGHT_UP,
    NOTHING_KNOWN,
    BatchInput,
    BatchOffsets,
    Evidence,
    ProcessingTime,
)
from tidegate_spark.protocol.fold import Fold, slot_of
from tidegate_spark.protocol.pinned_watermarks import StoredPinnedWatermark
from tidegate_spark.protocol.registration import QueryRegistration
from tidegate_spark.protocol.retry import ONE_ATTEMPT, SHORT_WAIT_S, OnOutage, RetryPolicy
from tidegate_spark.protocol.settings import QuerySettings


def highest(a: int | None, b: int | None) -> int | None:
    """Return the higher one of two watermarks; None is below all."""
    return max((each for each in (a, b) if each is not None), default=None)


class QueryProtocol:
    """One run of a query. :mod:`tidegate_spark.protocol` describes its states and invariants.

    Args:
        settings: The settings of the query.
        run_id: Id of this run.
        owns_files: Whether this process writes the files beside the checkpoint.
    """

    def __init__(self, settings: QuerySettings, run_id: str, owns_files: bool) -> None:
        self._settings, self._owns_files = settings, owns_files
        self.calls = QueryCalls(settings, run_id)
        self._log = self.calls.log
        self.registration = QueryRegistration(self.calls, owns_files)
        self.batches = Batches(self.calls, self.registration)
        self.backlog = Backlog(self.calls, self.batches.report_backlog_batch, self._on_outage.continues)
        self._started = self.calls.now()
        self._has_begun = self._choices_adopted = False
        self._turn = 0

    @property
    def _on_outage(self) -> OnOutage:
        return self._settings.connection.on_outage

    # -- the query ------------------------------------------------------------------------------------------------

    def start(self, adopt: bool = True) -> Procedure[None]:
        """Announce the query, flush the backlog of earlier runs, and adopt the choices.

        Args:
            adopt: Whether to adopt the choices. A native query adopts them after it has reported the folds of earlier
                runs.

        Raises:
            CoordinatorUnavailable: If the coordinator does not answer, and the query may not start without it.
            Refused: If the coordinator refuses a call.
            InvalidUsage: If the query's columns or windows differ from those of the previous run, or the checkpoint
                belongs to another job.
        """
        if self._owns_files and (yield HasCheckpoint()):
            yield from self.registration.progress()  # refuses the checkpoint of another job
            yield from self._check_choices()
        policy = self._on_outage.first_policy
        try:
            yield from self.registration.announce(policy)
            self.batches.max_future_skew_ms = self.registration.config["max_future_skew_ms"]
            if (yield from self.backlog.flush(policy)) and adopt:
                yield from self.adopt_choices()
        except CoordinatorUnavailable as error:
            if not self._on_outage.continues:
                raise
            self._log.warning("the query starts without the coordinator (%s)", error.reason)

    def started(self, written: int | None = None, finished: int | None = None) -> Procedure[None]:
        """Tell what is written, and flush the rest of the backlog in the background, after Spark has started the query.

        Args:
            written: The output watermark of the query, which an earlier run may not have told; None if there is none.
            finished: The last batch that Spark has finished; None if there is none.
        """
        yield Locked(self._tell_before_first_batch(written, finished))
        if self._owns_files:
            yield from self.backlog.flush_in_background()

    def _tell_before_first_batch(self, written: int | None, finished: int | None) -> Procedure[None]:
        if not self._has_begun:  # the begin of a batch tells it, too
            yield from self.wrote(written, finished, self.registration.is_announced)

    def _check_choices(self) -> Procedure[None]:
        choices = self._settings.choices
        if choices is not None and not self._choices_adopted:
            before = yield from QueryChoices.load()
            if before is not None:
                choices.check(before, self._settings.replaces_substreams)

    def adopt_choices(self) -> Procedure[None]:
        """Store the choices of the query. If they replace substreams, mark the earlier substreams as idle.

        Call this method after all batches of earlier runs are reported, because a report makes a substream active
        again.
        """
        choices = self._settings.choices
        if choices is None or self._choices_adopted or not self._owns_files or not (yield HasCheckpoint()):
            return
        before = yield from QueryChoices.load()
        if before is not None and choices.replaces(before):
            reason = "replaced: the query was started with other columns"
            yield Locked(self.registration.forget_substreams(reason))
        if before != choices:
            yield from choices.save()
        self._choices_adopted = True

    # -- a batch --------------------------------------------------------------------------------------------------

    def begin(self, batch_id: int, batch_input: BatchInput = NOTHING_KNOWN) -> Procedure[OpenBatch]:
        """Begin a batch, and store its pinned watermark.

        ``batch_input`` is what the offsets tell about the batch. New partitions hold the watermark before a row of them
        is read.

        With ``on_outage="continue"``, the batch begins without the coordinator if the coordinator does not answer, or
        the backlog is not yet flushed. A new batch then takes the pinned watermark of the previous batch.

        Raises:
            CoordinatorUnavailable: If the coordinator does not answer, and the batch may not continue without it.
            Refused: If the coordinator refuses the batch.
        """
        opened = yield from self._begin(batch_id, batch_input)
        pinned, written = opened.stored.pinned_watermark, self.calls.output_watermark
        if pinned is None or (written is not None and written > pinned):
            self.calls.output_watermark = pinned  # on-time rows of the batch are not yet written
        return opened

    def _begin(self, batch_id: int, batch_input: BatchInput) -> Procedure[OpenBatch]:
        yield from self._check_choices()
        yield from self.registration.load_token()
        pinned_watermarks = self._settings.pinned_watermarks
        stored = yield from pinned_watermarks.read(batch_id)
        before = stored
        if stored is None and batch_id:
            before = yield from pinned_watermarks.read(batch_id - 1)
        evidence = yield from self._dated(batch_id, batch_input.evidence)
        self.registration.partitions = batch_input.partitions
        yield Locked(self.registration.keep_continuing(batch_input.offsets))
        policy = self._on_outage.policy if before is None else self._on_outage.first_policy
        try:
            flushed = yield from self.backlog.flush_before(batch_id, policy)
            if flushed:
                yield from self.adopt_choices()
            if flushed or before is None or not self._on_outage.continues:
                opened = yield from self.batches.begin(batch_id, stored, evidence, policy)
                opened.offsets = batch_input.offsets
                return opened
        except CoordinatorUnavailable as error:
            if before is None or not self._on_outage.continues:
                raise
            self._log_continuing(batch_id, error)
        if stored is None:
            yield from self.batches.check_unfinished(batch_id)
            # While this run waited, another run may have stored one.
            stored = yield from pinned_watermarks.read(batch_id)
        if stored is None:
            stored = replace(before, watermark_token=self.calls.watermark_token, assumed=True)
            yield from pinned_watermarks.write(batch_id, stored)
        batch = self.batches.batch(batch_id, stored, replayed=before is stored)
        return OpenBatch(batch, stored, False, self.calls.now(), evidence, batch_input.offsets)

    def report(self, batch: OpenBatch, fold: Fold) -> Procedure[None]:
        """Stage the fold of a batch. Raise the same errors as :meth:`begin`."""
        yield from self._call_or_continue(self.batches.report, batch, fold)

    def commit(self, batch: OpenBatch, fold: Fold) -> Procedure[Answer | None]:
        """Commit a batch. Return the answer; None if the batch is in the backlog.

        Raises:
            CoordinatorUnavailable, Refused: As in :meth:`begin`.
        """
        answer = yield from self._call_or_continue(self.batches.commit, batch, fold)
        if answer is None:
            began = batch.began
            yield from self.backlog.keep(
                BacklogBatch(batch.batch_id, batch.stored, began.at_s, batch.evidence, fold, batch.offsets), began
            )
            yield from self.backlog.flush_in_background()
        return answer

    def _call_or_continue(self, call: Call[Result], batch: OpenBatch, fold: Fold) -> Procedure[Result | None]:
        """Make a call about a batch; return None if the batch continues without the coordinator."""
        if not batch.acknowledged:
            return None
        try:
            return (yield from self.batches.resending(call, batch, fold, self._on_outage.first_policy))
        except CoordinatorUnavailable as error:
            if not self._on_outage.continues:
                raise
            self._log_continuing(batch.batch_id, error)
            batch.acknowledged = False
            return None

    def _log_continuing(self, batch_id: int | None, error: CoordinatorUnavailable) -> None:
        self._log.warning("the query continues without the coordinator (%s)", error.reason, extra={"batch": batch_id})

    def wrote(
        self,
        output_watermark: int | None,
        after_batch: int | None,
        is_reachable: bool = True,
        has_updated: bool = False,
    ) -> Procedure[None]:
        """Tell that everything that the query writes for event times below its output watermark is written.

        A failure is logged only: the next begin and the next heartbeat tell it.

        Args:
            output_watermark: The output watermark; None if the query has none.
            after_batch: The last batch that has written; None if it is not known.
            is_reachable: Whether the coordinator has answered lately. If not, only later calls tell it.
            has_updated: Whether the batch may have changed results below the output watermark. Only frames wait for
                them.
        """
        written, told = highest(output_watermark, self.calls.output_watermark), self.calls.told_output
        self.calls.output_watermark = written
        is_awaited = has_updated and slot_of(self.registration.config) is not None
        is_known = told is not None and written == told and not is_awaited
        if output_watermark is None or not is_reachable or is_known:
            return
        try:
            yield from self.calls.heartbeat(0.0, after_batch, (), policy=RetryPolicy(SHORT_WAIT_S))
        except TidegateError as error:
            self._log.warning(
                "the results of this batch are written, but the coordinator does not know it before the next call: %s",
                error,
                extra={"batch": after_batch},
            )

    def batch_without_rows(self, batch_id: int, pinned_watermark: int | None) -> Batch:
        """Return a batch without rows, which is not begun at the coordinator."""
        return self.batches.batch(batch_id, StoredPinnedWatermark(pinned_watermark, None), replayed=False)

    def _dated(self, batch_id: int, evidence: Evidence | None) -> Procedure[Evidence | None]:
        """Return the evidence of a batch with its time; None if the time is not known."""
        first, self._has_begun = not self._has_begun, True
        now = self.calls.now()
        # An earlier run may have planned the first batch.
        planned_ms = (yield ReadPlannedMs(batch_id)) if first else int(1000 * now.at_s)
        return None if planned_ms is None else self._dated_by(planned_ms, now, evidence)

    def _dated_by(self, planned_ms: int, now: ProcessingTime, evidence: Evidence | None) -> Evidence | None:
        if evidence is None:
            return None
        planned_s = planned_ms / 1000
        if self._fixes_input_at_start:
            if planned_s < self._started.at_s:  # by an earlier run
                return None
            return replace(evidence, at=min(evidence.at or self._started, self._started))
        return replace(evidence, at=evidence.at or ProcessingTime(min(planned_s, now.at_s), now.waited_s))

    @property
    def _fixes_input_at_start(self) -> bool:
        """Whether the batches of this run contain only input that existed when the run started."""
        return self._settings.available_now and not self._settings.complete_batches

    # -- batches that Spark has finished --------------------------------------------------------------------------

    def keep_finished(
        self, batch_id: int, pinned_watermark: int | None, planned_ms: int, fold: Fold, batch_input: BatchInput
    ) -> Procedure[None]:
        """Add a batch to the backlog after Spark has classified its rows and finished the batch.

        Args:
            batch_id: Id of the batch.
            pinned_watermark: The watermark by which Spark classified the rows; None if Spark had none.
            planned_ms: Time at which Spark planned the batch (epoch milliseconds).
            fold: The fold of its rows.
            batch_input: As in :meth:`begin`.
        """
        now = self.calls.now()
        stored = StoredPinnedWatermark(pinned_watermark, self.calls.watermark_token)
        evidence = self._dated_by(planned_ms, now, batch_input.evidence)
        self.registration.partitions = batch_input.partitions
        yield from self._settings.pinned_watermarks.write(batch_id, stored)
        yield from self.backlog.keep(BacklogBatch(batch_id, stored, now.at_s, evidence, fold, batch_input.offsets), now)

    def report_finished(self) -> Procedure[bool]:
        """Report the backlog. If the coordinator does not answer, continue in the background.

        Returns:
            Whether the backlog is empty.

        Raises:
            Refused: If the coordinator refuses a batch, which stays in the backlog.
        """
        try:
            return (yield from self.backlog.flush(self._on_outage.first_policy))
        except CoordinatorUnavailable as error:
            self._log_continuing(None, error)
            yield from self.backlog.flush_in_background()
            return False

    # -- heartbeats -----------------------------------------------------------------------------------------------

    def heartbeat(
        self,
        age_s: float,
        after_batch: int | None,
        evidence: Evidence | None = ALL_CAUGHT_UP,
        offsets: BatchOffsets | None = None,
    ) -> Procedure[Answer | None]:
        """Report what was caught up ``age_s`` seconds ago, and restore state that the coordinator has lost.

        Args:
            age_s: Time since the substreams were caught up, in seconds.
            after_batch: The last batch that the query had finished at that time; None if it had finished none.
            evidence: The evidence. None: no evidence; the heartbeat only tells that the query is alive.
            offsets: The offsets of that batch or an earlier one; None if its commit has told them.

        Returns:
            The answer; None if the coordinator had lost the job.

        Raises:
            TidegateError: If the heartbeat fails. The next heartbeat carries newer evidence.
        """
        yield from self.registration.load_token()
        if self._fixes_input_at_start:
            age_s = max(age_s, self.calls.now().at_s - self._started.at_s)
        try:
            answer = yield from self._tell(age_s, after_batch, self._named(evidence), offsets)
        except JobMissing as missing:
            yield Locked(self._restore_job(missing, after_batch))
            return None
        if not answer["applied"] or not self.registration.is_announced_in(answer):
            yield Locked(self._follow_heartbeat(answer, after_batch))
        return answer

    def _tell(
        self, age_s: float, after_batch: int | None, substreams: Sequence[str] | None, offsets: BatchOffsets | None
    ) -> Procedure[Answer]:
        """Send a heartbeat. If the coordinator refuses the offsets, send it without them."""
        try:
            return (yield from self.calls.heartbeat(age_s, after_batch, substreams, offsets))
        except Refused as refusal:
            if offsets is None or refusal.code not in REFUSED_BODY:
                raise
            return (yield from self.calls.heartbeat(age_s, after_batch, substreams))

    def _named(self, evidence: Evidence | None) -> Sequence[str] | None:
        """Return the names for a heartbeat, as many as fit into a call; None for all substreams of the query."""
        if evidence is None:
            return ()
        self._turn += 1
        return None if evidence.substreams is None else in_turns(evidence.substreams, self._turn)

    def _restore_job(self, missing: JobMissing, after_batch: int | None) -> Procedure[None]:
        yield from self.registration.announce_again(ONE_ATTEMPT, missing)
        yield from self.registration.restore(after_batch, ONE_ATTEMPT)

    def _follow_heartbeat(self, answer: Answer, after_batch: int | None) -> Procedure[None]:
        yield from self.registration.follow(answer, ONE_ATTEMPT)
        if not answer["applied"]:
            yield from self.registration.restore(after_batch, ONE_ATTEMPT)
