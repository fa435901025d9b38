"""What Spark has finished, and the coordinator is to be told.

Invariants:

1. The coordinator hears of a batch after Spark has committed it, and not before.
2. The folds of a batch are forgotten when they are in the backlog, which keeps them until the coordinator has them.
"""

import math
import re
import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from tidegate_spark.checkpoint import NO_OFFSET, is_marker
from tidegate_spark.delivery import Delivery
from tidegate_spark.fold import Fold
from tidegate_spark.native.folding import FOLDS

AGAIN_AFTER_S = 30.0
UNREAD_BATCHES = 2
LIST_EVERY_S = 5.0

_PART = re.compile(r"(?P<batch>\d+)\.(?P<run>[^.]+)\.\d+")


@dataclass(frozen=True, slots=True)
class Since:
    """What Spark has done since the last look.

    Attributes:
        batches: Whether it has finished batches.
        rows: Whether these had rows of which the coordinator was told, or is told when it is back.
        quiet: Whether it has certainly done nothing.
        reported: Whether the coordinator has taken all that was finished.
    """

    batches: bool
    rows: bool
    quiet: bool
    reported: bool


class Finished:
    """The batches of one native input, looked at between Spark's batches. ``by_row``: rows are judged one by one.
    ``retained``: how many of its last batches Spark remembers at the least.
    """

    def __init__(self, delivery: Delivery, by_row: bool, retained: int) -> None:
        self._delivery, self._checkpoint, self._by_row = delivery, delivery.checkpoint, by_row
        self._retained = retained
        self._next: int | None = None
        self._checked: int | None = None
        self._unread: list[int] | None = []
        """Batches of this run that advanced without a row read; None once a row was read, or after the warning."""
        self._again_at = math.inf
        self._list_at = 0.0

    def look(self, calls: int) -> Since:
        """Tells the coordinator of what was finished since the last look; at the first one, of what earlier runs left.

        ``calls``: how often Spark has planned a batch, or found that there is none, since then.

        :raises Refused: when it says no. It is told again after a while, or with what comes next.
        """
        moved = self._moved()
        # In so few calls Spark cannot have finished so many batches that it has forgotten the first of them.
        few = calls < self._retained
        quiet = not moved and few
        if not moved and not few and time.monotonic() >= self._list_at:
            moved = self._moved_far()
            quiet = not moved
        if not moved and time.monotonic() < self._again_at:
            return Since(False, False, quiet, self._again_at == math.inf)
        rows = self._keep() if moved else False
        self._again_at = time.monotonic() + AGAIN_AFTER_S
        reported = self._delivery.tell_finished()
        if reported:
            self._again_at = math.inf
        return Since(moved, rows, False, reported)

    def _keep(self) -> bool:
        """Moves the folds of what was finished into the backlog; returns whether there are any."""
        assert self._next is not None
        finished = {batch_id: runs for batch_id, runs in self._parts().items() if batch_id < self._next}
        for batch_id in sorted(finished):
            self._keep_batch(batch_id, finished[batch_id])
        self._warn_of_unread(finished)
        return bool(finished)

    def _warn_of_unread(self, folded: Collection[int]) -> None:
        """Warn once if source offsets advance in batches of this run, and no task has read a row of any."""
        assert self._next is not None
        first, self._checked = self._checked, self._next
        if folded:
            self._unread = None
        if first is None or self._unread is None:
            return
        self._unread += [batch for batch in range(first, self._next) if batch not in folded and self._moved_on(batch)]
        if len(self._unread) >= UNREAD_BATCHES:
            self._delivery.log.warning(
                "no task has read a row of this run's batches, although source offsets advanced. If batches have rows, "
                "the foreachBatch function runs no action on them, so the watermark does not move. Write or count the "
                "DataFrame in every batch.",
                extra={"batch": self._unread[-1]},
            )
            self._unread = None

    def _moved_on(self, batch_id: int) -> bool:
        """Return whether another source's offset advanced in a batch, if the query has no other native input."""
        now, before = (self._checkpoint.source_offsets(batch) for batch in (batch_id, batch_id - 1))
        if now is None or before is None or sum(map(is_marker, now)) != 1:
            return False
        pairs = zip(before, now, strict=False)
        return any(start not in (NO_OFFSET, end) for start, end in pairs if not is_marker(end))

    def _moved(self) -> bool:
        """Whether Spark has finished batches. Asked many times a second, so it is one file that is looked for."""
        if self._next is None:
            last = self._checkpoint.finished()
            self._next = 0 if last is None else last + 1
            return True
        before = self._next
        while self._checkpoint.has_finished(self._next):
            self._next += 1
        return self._next != before

    def _moved_far(self) -> bool:
        """The same where the next batch may be one that Spark has finished and forgotten since: by a listing."""
        self._list_at = time.monotonic() + LIST_EVERY_S
        last, before = self._checkpoint.finished(), self._next
        self._next = max(self._next or 0, 0 if last is None else last + 1)
        return self._next != before

    def _parts(self) -> dict[int, dict[str, list[str]]]:
        """The names of the folds there are, by batch, and by the run that wrote them: the latest comes last."""
        found: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        written = self._checkpoint.documents(FOLDS)
        for name in sorted(written, key=lambda name: written[name]):
            if part := _PART.fullmatch(name):
                runs = found[int(part["batch"])]
                runs[part["run"]] = [*runs.pop(part["run"], []), name]
        return found

    def _keep_batch(self, batch_id: int, runs: dict[str, list[str]]) -> None:
        *_, last = runs.values()
        documents = [document for name in last if (document := self._checkpoint.read(f"{FOLDS}/{name}")) is not None]
        told_up_to = self._delivery.told_up_to
        if documents and (told_up_to is None or told_up_to < batch_id):
            fold = Fold.together([Fold.of(document["fold"]) for document in documents])
            if fold.is_too_large():
                self._delivery.log.warning(
                    "has %s substreams in this batch; their rows are accounted for as a whole. Choose a coarser one.",
                    f"{len(fold.substream):,}",
                    extra={"batch": batch_id},
                )
            watermark_ms: int = documents[0]["watermark_ms"]
            # Spark's watermark is zero as long as there is none; and what is at it is late to Spark.
            pinned_watermark = None if watermark_ms <= 0 else watermark_ms + 1 if self._by_row else watermark_ms
            self._delivery.finished(batch_id, pinned_watermark, documents[0]["planned_ms"], fold)
        for names in runs.values():
            for name in names:
                self._checkpoint.delete(f"{FOLDS}/{name}")
