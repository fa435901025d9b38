"""What the coordinator has still to be told: batches that were worked off while it was away (``on_outage="continue"``).

They lie beside the checkpoint, ``<checkpointLocation>/tidegate/backlog/<batch>.json``, until it has them.
"""

from dataclasses import asdict, dataclass

from tidegate_spark.checkpoint import Checkpoint
from tidegate_spark.fold import Fold
from tidegate_spark.pinned_watermarks import StoredPinnedWatermark

_KIND = "backlog"


@dataclass(frozen=True, slots=True)
class Untold:
    """A batch that was worked off: by which pin, what it saw, and when it began (Unix time, in seconds).

    ``settled_s``: all that was there by then is in it, or in one before; None: no such moment is known.
    """

    batch_id: int
    kept: StoredPinnedWatermark
    began_s: float
    settled_s: float | None
    fold: Fold


class Backlog:
    """The untold batches of one checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def batches(self) -> list[int]:
        """Which there are, in order."""
        return self._checkpoint.batches(_KIND)

    def read(self, batch_id: int) -> Untold | None:
        """None where it was told meanwhile, by whoever else is telling."""
        document = self._checkpoint.read(f"{_KIND}/{batch_id}")
        if document is None:
            return None
        return Untold(
            **{**document, "kept": StoredPinnedWatermark(**document["kept"]), "fold": Fold.of(document["fold"])}
        )

    def write(self, untold: Untold) -> None:
        self._checkpoint.write(f"{_KIND}/{untold.batch_id}", asdict(untold))

    def forget(self, batch_id: int) -> None:
        self._checkpoint.delete(f"{_KIND}/{batch_id}")
