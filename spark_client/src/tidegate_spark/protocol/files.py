"""The client's files beside the checkpoint, under ``<checkpointLocation>/tidegate``.

=============================  =========================================================================
``pinned_watermarks/<batch>``  the pinned watermark of a batch, written before a row is judged by it
``progress``                   the progress of the query (:mod:`tidegate_spark.protocol.progress`)
``backlog/<batch>``            a batch that was processed without the coordinator
``choices``                    the columns and windows that the query was started with
=============================  =========================================================================
"""

from dataclasses import asdict, dataclass

from tidegate_spark.protocol.effects import ListBatches, Procedure, Read, Remove, Write

KEPT = 100
"""Minimum number of pinned watermarks that are kept; a higher ``minBatchesToRetain`` of Spark keeps more."""

_KIND = "pinned_watermarks"


@dataclass(frozen=True, slots=True)
class StoredPinnedWatermark:
    """The stored pinned watermark of a batch.

    Attributes:
        pinned_watermark: Rows below it are late; None if the job had no watermark.
        watermark_token: The watermark token at the begin, with which a later run restores the coordinator.
        latest_event_time: Rows above it are too far ahead of the clock; None without a limit.
        assumed: Whether it is that of the batch before, because the coordinator was unavailable.
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
        """Return the latest batch that has a pinned watermark, and the pinned watermark; None if there is none."""
        batches = yield ListBatches(_KIND)
        if not batches:
            return None
        stored = yield from self.read(max(batches))
        return None if stored is None else (max(batches), stored)

    def write(self, batch_id: int, stored: StoredPinnedWatermark) -> Procedure[None]:
        """Store the pinned watermark of a batch, and remove the oldest."""
        yield Write(f"{_KIND}/{batch_id}", asdict(stored))
        if batch_id >= self.kept:
            yield Remove(f"{_KIND}/{batch_id - self.kept}")
