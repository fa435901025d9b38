"""The backlog: batches that were processed without the coordinator and not yet reported.

The client stores these batches beside the checkpoint until the coordinator has acknowledged them. The client reports
the backlog before the next batch begins. If the coordinator does not answer then, the flusher reports the backlog in
the background.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from tidegate_spark.errors import CoordinatorUnavailable, TidegateError
from tidegate_spark.protocol.calls import QueryCalls
from tidegate_spark.protocol.effects import Document, ListBatches, Pause, Procedure, Read, Remove, StartFlusher, Write
from tidegate_spark.protocol.evidence import BatchOffsets, Evidence, ProcessingTime
from tidegate_spark.protocol.fold import Fold
from tidegate_spark.protocol.pinned_watermarks import StoredPinnedWatermark
from tidegate_spark.protocol.retry import ONE_ATTEMPT, RetryPolicy

_KIND = "backlog"


@dataclass(frozen=True, slots=True)
class BacklogBatch:
    """A batch that was processed and not yet reported.

    Attributes:
        batch_id: Id of the batch.
        stored: The pinned watermark by which its rows were classified.
        began_s: Unix time at which the batch began.
        evidence: The evidence that the batch contributes; None if it contributes no evidence.
        fold: The fold of its rows.
        offsets: The offsets of the batch in the partitions of Kafka; None if they are not known.
    """

    batch_id: int
    stored: StoredPinnedWatermark
    began_s: float
    evidence: Evidence | None
    fold: Fold
    offsets: BatchOffsets | None = None

    @classmethod
    def of(cls, document: Document) -> "BacklogBatch":
        """Return the batch stored in a document."""
        stored, fold = StoredPinnedWatermark(**document["stored"]), Fold.stored(document["fold"])
        at_s, of = document["complete_s"], document.get("complete_of")
        substreams = None if of is None else frozenset(of)
        evidence = None if at_s is None else Evidence(substreams, ProcessingTime(at_s, 0.0))
        told = document.get("offsets")
        offsets = None if told is None else BatchOffsets.of(told)
        return cls(document["batch_id"], stored, document["began_s"], evidence, fold, offsets)

    def save(self) -> Procedure[None]:
        """Write the batch to the backlog."""
        evidence = self.evidence
        document = {
            "batch_id": self.batch_id,
            "stored": asdict(self.stored),
            "began_s": self.began_s,
            "complete_s": None if evidence is None or evidence.at is None else evidence.at.at_s,
            "complete_of": None if evidence is None or evidence.substreams is None else sorted(evidence.substreams),
            "fold": asdict(self.fold),
            "offsets": None if self.offsets is None else asdict(self.offsets),
        }
        yield Write(f"{_KIND}/{self.batch_id}", document)


ReportBatch = Callable[[BacklogBatch, ProcessingTime, RetryPolicy], Procedure[None]]
"""A function that reports one batch, given the start of the outage and a retry policy."""


class Backlog:
    """The backlog of one run.

    While the backlog has batches, the query reports no newer batch. This time counts as waiting for the coordinator,
    not towards ``idle_timeout``.

    Invariants:

    1. Batches are reported in ascending order.
    2. A batch is removed after the coordinator has acknowledged its commit.
    3. No batch begins at the coordinator before the backlog is empty.
    4. At most one procedure flushes at a time.

    Args:
        calls: The calls of the run.
        report_batch: The function that reports one batch.
        in_background: Whether a flusher also reports the backlog between batches.
    """

    def __init__(self, calls: QueryCalls, report_batch: ReportBatch, in_background: bool) -> None:
        self._calls, self._report_batch, self._in_background = calls, report_batch, in_background
        self._pending: set[int] | None = None
        self._unreached_since: ProcessingTime | None = None
        self._reached_at = ProcessingTime(0.0, 0.0)
        self._flushing = False
        self._warned = False

    def keep(self, batch: BacklogBatch, began: ProcessingTime) -> Procedure[None]:
        """Write a batch that began at ``began`` to the backlog, and record the start of the outage."""
        pending = yield from self._load()
        yield from batch.save()
        pending.add(batch.batch_id)
        if self._unreached_since is None:
            self._unreached_since = max(began, self._reached_at)

    def flush(self, policy: RetryPolicy) -> Procedure[bool]:
        """Report the backlog, unless another procedure flushes it. Return whether the backlog is empty.

        Raises:
            CoordinatorUnavailable: If the coordinator does not answer.
            Refused: If the coordinator refuses a batch.
        """
        if self._flushing:
            return False
        self._flushing = True
        try:
            while (yield from self._flush_next(policy)):
                pass
        finally:
            self._flushing = False
        return True

    def flush_before(self, batch_id: int, policy: RetryPolicy) -> Procedure[bool]:
        """Report the backlog before a batch begins. Return whether the backlog is empty.

        Raises:
            CoordinatorUnavailable: If the coordinator does not answer. The flusher continues if it is enabled.
            Refused: If the coordinator refuses a batch.
        """
        if not self._flushing:
            yield from self._remove(batch_id)  # the replay takes the place of the batch in the backlog
        try:
            return (yield from self.flush(policy))
        except CoordinatorUnavailable:
            yield from self.flush_in_background()
            raise

    def flush_in_background(self) -> Procedure[None]:
        """Start the flusher if it is enabled and not running, unless the backlog is known to be empty."""
        if self._in_background and not self._flushing and self._pending != set():
            self._flushing = True
            yield StartFlusher()

    def flush_again(self) -> Procedure[bool]:
        """Try once to report the backlog in the background. Return whether to try again after a pause.

        If the coordinator refuses a batch, return False: the next begin reports the batch again and raises the error.
        """
        try:
            # Stop if the query has ended: a begin would fence a run that has replaced this one.
            while not (yield Pause(0)) and (yield from self._flush_next(ONE_ATTEMPT)):
                pass
        except CoordinatorUnavailable:
            return True
        except TidegateError as error:
            self._calls.log.error("the coordinator refused a batch of the backlog: %s", error)
        except OSError:  # from the checkpoint's file system, which may recover
            if not self._warned:
                self._calls.log.exception("the backlog cannot be flushed; trying again")
            self._warned = True
            return True
        self.stop_flusher()
        return False

    def stop_flusher(self) -> None:
        """Record that no flusher is running."""
        self._flushing = False

    def _flush_next(self, policy: RetryPolicy) -> Procedure[bool]:
        """Report the earliest batch. Return whether more batches are pending."""
        if self._pending == set():
            return False
        pending = yield from self._load()
        if pending:
            yield from self._flush_batch(min(pending), policy)
        if not pending:
            self._unreached_since, self._reached_at = None, self._calls.now()
        return bool(pending)

    def _flush_batch(self, batch_id: int, policy: RetryPolicy) -> Procedure[None]:
        document = yield Read(f"{_KIND}/{batch_id}")
        if document is not None:
            batch = BacklogBatch.of(document)
            now = self._calls.now()
            # If this run has always reached the coordinator, the batch is from an earlier run.
            since = self._unreached_since or ProcessingTime(batch.began_s, now.waited_s)
            self._unreached_since = since
            self._calls.waited_s = max(now.waited_s, since.waited_s + max(0.0, now.at_s - since.at_s))
            yield from self._report_batch(batch, since, policy)
            self._calls.log.info("this batch of the backlog was reported", extra={"batch": batch_id})
        yield from self._remove(batch_id)

    def _remove(self, batch_id: int) -> Procedure[None]:
        pending = yield from self._load()
        if batch_id in pending:
            yield Remove(f"{_KIND}/{batch_id}")
            pending.discard(batch_id)

    def _load(self) -> Procedure[set[int]]:
        if self._pending is None:
            listed = yield ListBatches(_KIND)
            self._pending = set(listed) if self._pending is None else self._pending
        return self._pending
