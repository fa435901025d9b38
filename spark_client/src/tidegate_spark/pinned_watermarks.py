"""The pins of a query, kept beside its checkpoint: ``<checkpointLocation>/tidegate/pins/<batch>.json``.

A pin is written here before it is used, and sent with every begin of its batch: a coordinator that has lost it takes it
from here. Beside it lies the watermark token of that moment, so that a restarted query can prove what it was told.
"""

from dataclasses import asdict, dataclass

from tidegate_spark.checkpoint import Checkpoint

KEPT = 100
"""How many batches' pins are kept at the least; more where Spark's ``minBatchesToRetain`` is."""

_KIND = "pinned_watermarks"


@dataclass(frozen=True, slots=True)
class StoredPinnedWatermark:
    """What a batch is judged by, as it was written. ``pinned_watermark`` None: the batch began before there was a
    watermark.

    ``latest_event_time``: rows beyond it are too far ahead of the clock; None: none is. ``assumed``: the coordinator
    was away, and this is the pin of the batch before.
    """

    pinned_watermark: int | None
    watermark_token: str | None
    latest_event_time: int | None = None
    assumed: bool = False


class PinnedWatermarks:
    """Pins beside one checkpoint."""

    def __init__(self, checkpoint: Checkpoint, kept: int = KEPT) -> None:
        self._checkpoint = checkpoint
        self.kept = kept

    def read(self, batch_id: int) -> StoredPinnedWatermark | None:
        """The pin of a batch that was begun on this checkpoint before."""
        document = self._checkpoint.read(f"{_KIND}/{batch_id}")
        return None if document is None else StoredPinnedWatermark(**document)

    def newest(self) -> tuple[int, StoredPinnedWatermark] | None:
        """The latest batch that has a pin, and that."""
        batches = self._checkpoint.batches(_KIND)
        kept = self.read(batches[-1]) if batches else None
        return None if kept is None else (batches[-1], kept)

    def write(self, batch_id: int, pinned_watermark: StoredPinnedWatermark) -> None:
        """Keeps a pin, whole or not at all, and forgets the one that is too old to be asked for."""
        self._checkpoint.write(f"{_KIND}/{batch_id}", asdict(pinned_watermark))
        if batch_id >= self.kept:
            self._checkpoint.delete(f"{_KIND}/{batch_id - self.kept}")
