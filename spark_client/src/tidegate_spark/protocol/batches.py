"""Procedures that begin, report and commit batches.

The coordinator may lose an open batch, or all of its state, between any two calls. The client then begins the batch
again with the same pinned watermark, and sends all reports of the batch again.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

from tidegate_spark.batch import Batch
from tidegate_spark.errors import JobMissing, Refused
from tidegate_spark.protocol.backlog import BacklogBatch
from tidegate_spark.protocol.calls import QueryCalls
from tidegate_spark.protocol.coordinator import Answer
from tidegate_spark.protocol.effects import HasFinished, Locked, Procedure, Result
from tidegate_spark.protocol.evidence import BatchOffsets, Evidence, ProcessingTime
from tidegate_spark.protocol.fold import Fold, slot_of
from tidegate_spark.protocol.pinned_watermarks import StoredPinnedWatermark
from tidegate_spark.protocol.registration import QueryRegistration
from tidegate_spark.protocol.retry import RetryPolicy, outage_since

MAX_FUTURE_SKEW_MS = 24 * 60 * 60 * 1000
"""The coordinator's default for ``max_future_skew_ms``."""

RESENDS = 3
"""Number of times that a lost batch is sent again before the query fails."""

MAX_CAUGHT_UP = 500
"""Maximum number of substreams that a call may name as caught up."""

LOST_BATCH = frozenset({"batch_not_begun", "reports_missing"})
"""Error codes of a coordinator that has lost an open batch or some of its reports."""


REFUSED_BODY = frozenset({"invalid_request", "body_too_large"})
"""Error codes of a coordinator that does not accept the body of a call."""

SUPERSEDED_BATCH = frozenset({"batch_not_begun", "batch_forgotten"})
"""Error codes of a coordinator that has a later batch of the query than a batch of the backlog."""


@dataclass(slots=True)
class OpenBatch:
    """A batch that Spark has begun and the coordinator has not yet committed.

    Attributes:
        batch: The batch, as a user's function may receive it.
        stored: The pinned watermark by which its rows are classified.
        acknowledged: Whether the coordinator has acknowledged the begin, and receives the reports and the commit. If
            not, the batch goes to the backlog.
        began: Processing time at which the batch began.
        evidence: The evidence that the batch contributes; None if it contributes no evidence.
        offsets: The offsets of the batch in the partitions of Kafka; None if they are not known.
    """

    batch: Batch
    stored: StoredPinnedWatermark
    acknowledged: bool
    began: ProcessingTime
    evidence: Evidence | None
    offsets: BatchOffsets | None = None

    @property
    def batch_id(self) -> int:
        """The id of the batch."""
        return self.batch.batch_id

    def silent_beside(self, substreams: Collection[str]) -> Evidence | None:
        """Return :attr:`evidence` without substreams that have rows in the batch, as many as fit into a call."""
        if self.evidence is None or self.evidence.substreams is None:
            return self.evidence
        names = in_turns(self.evidence.substreams.difference(substreams), self.batch_id)
        return Evidence(frozenset(names), self.evidence.at)


def in_turns(substreams: Collection[str], turn: int) -> list[str]:
    """Return as many substreams as fit into a call; the next turns return the others."""
    names = sorted(substreams)
    first = turn * MAX_CAUGHT_UP % len(names) if len(names) > MAX_CAUGHT_UP else 0
    return [*names[first:], *names[:first]][:MAX_CAUGHT_UP]


Call = Callable[[OpenBatch, Fold, RetryPolicy], Procedure[Result]]


class Batches:
    """The batches of one run.

    Attributes:
        unfinished_frame: Start of the first frame that is not finished; None if the job has no frames, or this process
            does not know it.
        incarnation: Incarnation of the job, which rises when an operator resets or deletes it.
        max_future_skew_ms: Maximum distance of an event time ahead of the clock, in milliseconds: the coordinator's
            limit if known, else its default. None if there is no limit.
        job_watermark: The latest emitted watermark that the run has received; None if it has received none.
    """

    def __init__(self, calls: QueryCalls, registration: QueryRegistration) -> None:
        self._calls, self._registration, self._log = calls, registration, calls.log
        self.job_watermark: int | None = None
        self.unfinished_frame: int | None = None
        self.incarnation = 1
        self.max_future_skew_ms: int | None = registration.config.get("max_future_skew_ms", MAX_FUTURE_SKEW_MS)

    def batch(self, batch_id: int, stored: StoredPinnedWatermark, replayed: bool) -> Batch:
        """Return a batch as a user's function may receive it."""
        return Batch(
            batch_id,
            watermark=stored.pinned_watermark,
            job_watermark=self.job_watermark,
            job=self._calls.job,
            query=self._calls.settings.query,
            replayed=replayed,
            incarnation=self.incarnation,
            unfinished_frame=self.unfinished_frame,
        )

    def begin(
        self,
        batch_id: int,
        stored: StoredPinnedWatermark | None,
        evidence: Evidence | None,
        policy: RetryPolicy,
    ) -> Procedure[OpenBatch]:
        """Begin a batch at the coordinator. If ``stored`` is None, store the pinned watermark in the answer."""
        began = self._calls.clock.monotonic()
        begin = partial(self._begin, batch_id, stored, evidence, policy)
        answer: Answer = yield Locked(self._announced(begin, batch_id, policy))
        yield from self._check_order(batch_id, stored, answer)
        self._follow(answer)
        latest = answer["latest_event_time"]
        self.max_future_skew_ms = None if latest is None else latest - answer["now_ms"]
        if answer["joined"]:
            self._log.warning(
                "the query joins the job at the watermark %s: its rows below this watermark are late. To make the job "
                "wait for this query, add its name to expected_queries in the configuration.",
                answer["coalesced_watermark"],
            )
        replayed = answer["replayed"] or stored is not None
        if stored is None:
            if outage_since(began, self._calls.clock):
                yield from self.check_unfinished(batch_id)
            stored = StoredPinnedWatermark(answer["pinned_watermark"], answer["watermark_token"], latest)
            yield from self._calls.settings.pinned_watermarks.write(batch_id, stored)
        return OpenBatch(self.batch(batch_id, stored, replayed), stored, True, self._calls.now(), evidence)

    def _follow(self, answer: Answer) -> None:
        self.job_watermark, self.incarnation = answer["watermark"], answer["incarnation"]
        self.unfinished_frame = answer.get("unfinished_frame")  # an earlier version of the coordinator lacks it

    def _check_order(self, batch_id: int, stored: StoredPinnedWatermark | None, answer: Answer) -> Procedure[None]:
        """Check that the coordinator is not ahead of the checkpoint, because an older checkpoint was restored.

        If it is ahead by this batch only, the batch runs again with its pinned watermark. The coordinator ignores its
        reports, so its max event times are reported with the next batch.

        Raises:
            Refused: If the coordinator has a later batch, and Spark has not finished this batch. The coordinator would
                refuse the reports of this batch.
        """
        latest = answer["previous_batch_id"]
        if latest is None or latest < batch_id:
            return
        if latest > batch_id:
            if (yield HasFinished(batch_id)):
                return  # another run of the query is ahead
            query = self._calls.settings.query
            detail = (
                f"The coordinator has batch {latest} of query {query!r}, and the checkpoint continues with batch "
                f"{batch_id}: an older checkpoint was restored. Hand the query over to a new name (job.hand_over), "
                "and start it under this name on this checkpoint, with another output path."
            )
            raise Refused(409, {"code": "batch_forgotten", "detail": detail})
        if stored is None and not answer["previous_open"]:
            # A run stores the pinned watermark before it commits the batch.
            self._log.warning(
                "the coordinator has committed this batch, and the checkpoint does not know it: an older checkpoint "
                "was restored. The row counts do not include this attempt, whose max event times are reported with the "
                "next batch.",
                extra={"batch": batch_id},
            )
            yield Locked(self._registration.report_with_next_batch({}, restored_before=batch_id + 1))

    def check_unfinished(self, batch_id: int) -> Procedure[None]:
        """Check that no other run of the query has finished a batch while this run waited for the coordinator.

        The coordinator fences an older run, unless it has lost its state.

        Raises:
            Refused: If Spark's log records the batch as finished.
        """
        if (yield HasFinished(batch_id)):
            detail = f"Another run of the query has finished batch {batch_id}. Stop one of the two runs."
            raise Refused(409, {"code": "query_fenced", "detail": detail})

    def _announced(
        self, begin: Callable[[], Procedure[Answer]], batch_id: int, policy: RetryPolicy
    ) -> Procedure[Answer]:
        yield from self._registration.ensure_announced(policy)
        try:
            yield from self._registration.declare_partitions(policy)
            answer = yield from begin()
        except JobMissing as missing:
            yield from self._registration.announce_again(policy, missing)
            answer = yield from begin()
        yield from self._registration.began(answer, batch_id, policy)
        return answer

    def _begin(
        self,
        batch_id: int,
        stored: StoredPinnedWatermark | None,
        evidence: Evidence | None,
        policy: RetryPolicy,
    ) -> Procedure[Answer]:
        if stored is None and batch_id == 0:
            yield from self._warn_of_another_checkpoint(policy)
        try:
            return (yield from self._calls.begin(batch_id, stored, evidence, policy))
        except Refused as refusal:
            if refusal.code != "pinned_watermark_conflict" or stored is None or not stored.assumed:
                raise
            # An earlier begin arrived, but its answer was lost.
            self._log.warning(
                "the coordinator has another pinned watermark for this batch; its rows are classified by the watermark "
                "that was assumed during the outage",
                extra={"batch": batch_id},
            )
            return (yield from self._calls.begin(batch_id, None, evidence, policy))

    def _warn_of_another_checkpoint(self, policy: RetryPolicy) -> Procedure[None]:
        caller = yield from self._calls.caller()
        for known in (yield from self._calls.queries(policy)):
            if known["query"] == self._calls.settings.query and known["query_id"] != caller["query_id"]:
                self._log.warning(
                    "the query ran on another checkpoint before (%s). Batch ids start again at 0, so a function that "
                    "writes under the batch id replaces the output of that checkpoint: write to another path. The job "
                    "keeps its watermark, so rows below the watermark are late if the query reads them again. To start "
                    "from the beginning, use another job.",
                    known["query_id"],
                )

    def report(self, batch: OpenBatch, fold: Fold, policy: RetryPolicy) -> Procedure[None]:
        """Stage the fold of a batch."""
        yield from self._calls.report(batch.batch_id, fold.reports(), policy)

    def commit(self, batch: OpenBatch, fold: Fold, policy: RetryPolicy) -> Procedure[Answer]:
        """Commit a batch. If the coordinator refuses its offsets, commit it without them."""
        offsets = yield from self._told(batch)
        try:
            answer = yield from self._commit(batch, fold, policy, offsets)
        except Refused as refusal:
            if batch.offsets is None or refusal.code not in REFUSED_BODY:
                raise
            self._log.warning(
                "the coordinator does not accept the offsets of this batch, which is committed without them: %s",
                refusal,
                extra={"batch": batch.batch_id},
            )
            answer = yield from self._commit(batch, fold, policy, None)
        self._follow(answer)
        yield Locked(self._registration.committed(answer, batch.batch_id, fold.max_event_times(), batch.offsets))
        return answer

    def _commit(
        self, batch: OpenBatch, fold: Fold, policy: RetryPolicy, offsets: BatchOffsets | None
    ) -> Procedure[Answer]:
        progress = yield from self._registration.progress()
        # The rows of the batches that the coordinator has lost are not counted, so the frames are not counted, either.
        slot = None if progress.restoring else slot_of(self._registration.config)
        silent = batch.silent_beside(fold.substream)
        counts = fold.row_counts(slot)
        return (yield from self._calls.commit(batch.batch_id, counts, fold.reported(), policy, silent, offsets))

    def _told(self, batch: OpenBatch) -> Procedure[BatchOffsets | None]:
        """Return the offsets of a batch; without starts after a batch that the coordinator has with other ends."""
        progress = yield from self._registration.progress()
        if batch.offsets is None or batch.batch_id != progress.restored_before:
            return batch.offsets
        return replace(batch.offsets, starts=(None,) * len(batch.offsets.starts))

    def resending(
        self, call: Call[Result], batch: OpenBatch, fold: Fold, policy: RetryPolicy, is_finished: bool = False
    ) -> Procedure[Result]:
        """Make a call about a batch. If the coordinator has lost the batch, send it again and repeat the call.

        Args:
            call: The call.
            batch: The batch.
            fold: The fold of its rows.
            policy: The retry policy.
            is_finished: Whether Spark has finished the batch, because it is in the backlog.
        """
        for _ in range(RESENDS):
            try:
                return (yield from call(batch, fold, policy))
            except JobMissing as missing:
                yield from self._registration.announce_again(policy, missing)
            except Refused as refusal:
                if refusal.code not in LOST_BATCH:
                    raise
            if not is_finished:
                yield from self.check_unfinished(batch.batch_id)
            self._log.warning("the coordinator has lost this batch; sending it again", extra={"batch": batch.batch_id})
            yield from self.begin(batch.batch_id, batch.stored, batch.evidence, policy)
            yield from self.report(batch, fold, policy)
        return (yield from call(batch, fold, policy))

    def report_backlog_batch(self, batch: BacklogBatch, since: ProcessingTime, policy: RetryPolicy) -> Procedure[None]:
        """Begin, report and commit a batch of the backlog; ``since`` is the start of the outage.

        If another run has committed a later batch, the coordinator refuses this batch. Its max event times are then
        reported with the next batch.
        """
        evidence = batch.evidence
        if evidence is not None and evidence.at is not None:
            evidence = replace(evidence, at=ProcessingTime(evidence.at.at_s, since.waited_s))
        try:
            opened = yield from self.begin(batch.batch_id, batch.stored, evidence, policy)
            opened.offsets = batch.offsets
            yield from self.resending(self.report, opened, batch.fold, policy, is_finished=True)
            yield from self.resending(self.commit, opened, batch.fold, policy, is_finished=True)
        except Refused as refusal:
            if refusal.code not in SUPERSEDED_BATCH:
                raise
            self._log.warning(
                "the coordinator has a later batch of another run; its row counts do not include this batch of the "
                "backlog, whose max event times are reported with the next batch",
                extra={"batch": batch.batch_id},
            )
            yield Locked(self._registration.report_with_next_batch(batch.fold.max_event_times()))
