"""What the coordinator has still to be told: batches that were worked off while it was away (``on_outage="continue"``).

They lie beside the checkpoint, ``<checkpointLocation>/tidegate/backlog/<batch>.json``, until it has them.
"""

from dataclasses import dataclass
from typing import Any

from tidegate_spark.checkpoint import Checkpoint
from tidegate_spark.fold import Fold

_KIND = "backlog"


@dataclass(frozen=True, slots=True)
class Untold:
    """A batch that was worked off: what it saw, and when it began (Unix time, in seconds, by the driver's clock)."""

    batch_id: int
    began_s: float
    fold: Fold


class Backlog:
    """The untold batches of one checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def batches(self) -> list[int]:
        """Which there are, in order."""
        return self._checkpoint.batches(_KIND)

    def read(self, batch_id: int) -> Untold:
        document: dict[str, Any] | None = self._checkpoint.read(_KIND, batch_id)
        assert document is not None, "a batch is forgotten only after it was told, by who told it"
        return Untold(batch_id, document["began_s"], Fold.of(document["fold"]))

    def write(self, untold: Untold) -> None:
        self._checkpoint.write(_KIND, untold.batch_id, {"began_s": untold.began_s, "fold": untold.fold.document()})

    def forget(self, batch_id: int) -> None:
        self._checkpoint.delete(_KIND, batch_id)
