"""The pinned watermarks of a query, stored beside its checkpoint."""

from dataclasses import asdict, dataclass

from tidegate_spark.protocol.effects import ListBatches, Procedure, Read, Remove, Write

KEPT = 100
"""Minimum number of pinned watermarks to keep. If Spark's ``minBatchesToRetain`` is higher, it applies instead."""

_KIND = "pinned_watermarks"


@dataclass(frozen=True, slots=True)
class StoredPinnedWatermark:
    """The stored pinned watermark of a batch.

    Attributes:
        pinned_watermark: The watermark by which rows are classified; None if the job had no watermark.
        watermark_token: The watermark token when the batch began. A later run restores the coordinator with it.
        latest_event_time: Highest event time that is not too far ahead of the clock; None if there is no limit.
        assumed: Whether the watermark was copied from the previous batch because the coordinator was unavailable.
    """

    pinned_watermark: int | None
    watermark_token: str | None
    latest_event_time: int | None = None
    assumed: bool = False


@dataclass(frozen=True, slots=True)
class PinnedWatermarks:
    """The last ``kept`` pinned watermarks of a query."""

    kept: int = KEPT

    def read(self, batch_id: int) -> Procedure[StoredPinnedWatermark | None]:
        """Return the pinned watermark of a batch; None if none is stored."""
        document = yield Read(f"{_KIND}/{batch_id}")
        return None if document is None else StoredPinnedWatermark(**document)

    def newest(self) -> Procedure[tuple[int, StoredPinnedWatermark] | None]:
        """Return the id and the pinned watermark of the latest stored batch; None if no batch is stored."""
        batches = yield ListBatches(_KIND)
        if not batches:
            return None
        stored = yield from self.read(max(batches))
        return None if stored is None else (max(batches), stored)

    def write(self, batch_id: int, stored: StoredPinnedWatermark) -> Procedure[None]:
        """Store the pinned watermark of a batch, and remove that of the batch ``kept`` batches earlier."""
        yield Write(f"{_KIND}/{batch_id}", asdict(stored))
        if batch_id >= self.kept:
            yield Remove(f"{_KIND}/{batch_id - self.kept}")
