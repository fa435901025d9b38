"""Reports of the finished batches of a native query.

Invariants:

1. A batch is reported after Spark has committed it.
2. The folds of a batch are removed after they are stored in the backlog.
"""

import json
import math
import re
import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from tidegate_spark.errors import Refused
from tidegate_spark.native.folding import FOLDS
from tidegate_spark.native.listener import WrittenEvidence
from tidegate_spark.protocol.checkpoint import NO_OFFSET, is_marker
from tidegate_spark.protocol.evidence import NOTHING_KNOWN, BatchInput, BatchOffsets, Evidence, ProcessingTime
from tidegate_spark.protocol.fold import Fold
from tidegate_spark.protocol.session import DriverSession

RETRY_AFTER_S = 30.0
UNREAD_BATCHES = 2
LIST_EVERY_S = 5.0

_PART = re.compile(r"(?P<batch>\d+)\.(?P<run>[^.]+)\.\d+")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check for finished batches.

    Attributes:
        batches: Whether Spark has finished batches since the last check.
        rows: Whether tasks have folded rows of these batches.
        inactive: Whether it is certain that Spark has finished no batch since the last check.
        reported: Whether the coordinator has all finished batches.
    """

    batches: bool
    rows: bool
    inactive: bool
    reported: bool


class FinishedBatches:
    """The finished batches of one native input, checked between Spark's batches.

    Args:
        session: The session of the run.
        by_row: Whether Spark classifies rows by their event time, not by their window.
        retained: Minimum number of batches that Spark's log retains.
        has_all_input: Whether each batch contains all input that existed when Spark planned it.
    """

    def __init__(self, session: DriverSession, by_row: bool, retained: int, has_all_input: bool) -> None:
        self.session, self._checkpoint, self._by_row = session, session.checkpoint, by_row
        self._retained, self._has_all_input = retained, has_all_input
        self._next: int | None = None
        self._checked: int | None = None
        # Batches of this run in which source offsets advanced, but no task read a row. None after a row was read, or
        # after the warning.
        self._unread: list[int] | None = []
        self._retry_at = math.inf
        self._list_at = 0.0

    def report(self, calls: int) -> CheckResult:
        """Report the batches that Spark has finished since the last check; the first check includes earlier runs.

        Args:
            calls: Number of times that Spark has asked for the latest offset since the last check.

        Raises:
            Refused: If the coordinator refuses a batch. The client reports the batch again later.
        """
        moved = self._moved()
        # Spark's log still has the next batch if Spark has made fewer calls than it retains batches.
        few = calls < self._retained
        inactive = not moved and few
        if not moved and not few and time.monotonic() >= self._list_at:
            moved = self._moved_by_listing()
            inactive = not moved
        if not moved and time.monotonic() < self._retry_at:
            return CheckResult(False, False, inactive, self._retry_at == math.inf)
        rows = self._keep() if moved else False
        self._retry_at = time.monotonic() + RETRY_AFTER_S
        written, reported = self._written(), False
        try:
            reported = self.session.run(self.session.protocol.report_finished())
        except Refused:  # of a batch, whose results are written
            self.session.run(self.session.protocol.wrote(written, self._last_finished))
            raise
        # The rows of a frame that the output watermark has passed are written, too.
        self.session.run(self.session.protocol.wrote(written, self._last_finished, reported, has_updated=rows))
        if reported:
            self._retry_at = math.inf
            watermark = self.session.protocol.batches.job_watermark
            self.session.row_warnings.check_watermark(watermark, self.session.calls.coordinator_ms(0.0))
        return CheckResult(moved, rows, False, reported)

    @property
    def _last_finished(self) -> int | None:
        return self._next - 1 if self._next else None

    def _written(self) -> int | None:
        """Return the output watermark: that by which Spark has run its latest finished batch.

        A query without stateful operators has written all rows of the batch, up to the watermark of its markers.
        """
        last = self._last_finished
        planned = None if last is None else self._checkpoint.planned(last)
        if last is None or planned is None:
            return None
        reached = planned.watermark_ms
        if not self._checkpoint.has_state():
            offsets = self._checkpoint.source_offsets(last) or ()
            markers = [json.loads(offset)["watermark"] for offset in offsets if is_marker(offset)]
            reached = max(reached, min((marker for marker in markers if isinstance(marker, int)), default=0))
        return self._of_job(reached)

    def _of_job(self, watermark_ms: int) -> int | None:
        """Return the watermark of the job that is equal to a watermark of Spark; None if Spark has none yet."""
        # Zero means that Spark has no watermark yet. Spark treats a row at its watermark as late.
        return None if watermark_ms <= 0 else watermark_ms + 1 if self._by_row else watermark_ms

    def _keep(self) -> bool:
        """Move the folds of finished batches to the backlog. Return whether there are any folds."""
        assert self._next is not None
        finished = {batch_id: runs for batch_id, runs in self._parts().items() if batch_id < self._next}
        for batch_id in sorted(finished):
            self._keep_batch(batch_id, finished[batch_id])
        self._warn_of_unread(finished)
        return bool(finished)

    def _warn_of_unread(self, folded: Collection[int]) -> None:
        """Warn once if source offsets advance in batches of this run, but no task reads a row."""
        assert self._next is not None
        first, self._checked = self._checked, self._next
        if folded:
            self._unread = None
        if first is None or self._unread is None:
            return
        self._unread += [batch for batch in range(first, self._next) if batch not in folded and self._advanced(batch)]
        if len(self._unread) >= UNREAD_BATCHES:
            self.session.log.warning(
                "no task has read a row of this run's batches, although source offsets advanced. If the batches have "
                "rows, the foreachBatch function runs no action on them, and the watermark does not move. Write or "
                "count the DataFrame in every batch.",
                extra={"batch": self._unread[-1]},
            )
            self._unread = None

    def _advanced(self, batch_id: int) -> bool:
        """Return whether another source's offset advanced in a batch; False if the query has several native inputs."""
        now, before = (self._checkpoint.source_offsets(batch) for batch in (batch_id, batch_id - 1))
        if now is None or before is None or sum(map(is_marker, now)) != 1:
            return False
        pairs = zip(before, now, strict=False)
        return any(start not in (NO_OFFSET, end) for start, end in pairs if not is_marker(end))

    def _moved(self) -> bool:
        """Return whether Spark has finished more batches. Only the first call lists Spark's log, which is slow."""
        if self._next is None:
            last = self._checkpoint.finished()
            self._next = 0 if last is None else last + 1
            return True
        before = self._next
        while self._checkpoint.has_finished(self._next):
            self._next += 1
        return self._next != before

    def _moved_by_listing(self) -> bool:
        """Return the result of :meth:`_moved` from a listing, in case Spark's log no longer has the next batch."""
        self._list_at = time.monotonic() + LIST_EVERY_S
        last, before = self._checkpoint.finished(), self._next
        self._next = max(self._next or 0, 0 if last is None else last + 1)
        return self._next != before

    def _parts(self) -> dict[int, dict[str, list[str]]]:
        """Return the names of the folds by batch and by run. The latest run comes last."""
        found: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        written = self._checkpoint.documents(FOLDS)
        for name in sorted(written, key=lambda name: written[name]):
            if part := _PART.fullmatch(name):
                runs = found[int(part["batch"])]
                runs[part["run"]] = [*runs.pop(part["run"], []), name]
        return found

    def _input(self, batch_id: int) -> BatchInput:
        """Return what the offsets tell about a batch. Evidence of an earlier batch of this run is valid, too."""
        if self._has_all_input:
            return BatchInput(Evidence())
        written = WrittenEvidence.read(self._checkpoint)
        if written is None:
            return NOTHING_KNOWN
        evidence = None
        if written.caught_up and written.batch_id <= batch_id:
            substreams = None if written.substreams is None else frozenset(written.substreams)
            evidence = Evidence(substreams, ProcessingTime(written.at_s, self.session.calls.waited_s))
        offsets = None
        if written.offsets is not None and written.batch_id <= batch_id:
            offsets = BatchOffsets.of(written.offsets)
        return BatchInput(evidence, frozenset(written.partitions), offsets)

    def _keep_batch(self, batch_id: int, runs: dict[str, list[str]]) -> None:
        *_, last = runs.values()
        documents = [document for name in last if (document := self._checkpoint.read(f"{FOLDS}/{name}")) is not None]
        protocol = self.session.protocol
        acknowledged = self.session.run(protocol.registration.progress()).batch_id
        if documents and (acknowledged is None or acknowledged < batch_id):
            fold = Fold.merge([Fold.stored(document["fold"]) for document in documents])
            if fold.is_too_large():
                self.session.row_warnings.counted_together(batch_id)
            pinned_watermark = self._of_job(documents[0]["watermark_ms"])
            planned_ms = documents[0]["planned_ms"]
            batch_input = self._input(batch_id)
            self.session.run(protocol.keep_finished(batch_id, pinned_watermark, planned_ms, fold, batch_input))
            # Spark drops late rows only in its stateful operators, so the client does not know whether it did.
            self.session.row_warnings.check(batch_id, fold, is_by_the_clock=True, dropped={})
        for names in runs.values():
            for name in names:
                self._checkpoint.delete(f"{FOLDS}/{name}")
