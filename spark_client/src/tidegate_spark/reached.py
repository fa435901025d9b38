"""How far a query has come, kept beside its checkpoint: ``<checkpointLocation>/tidegate/reached.json``.

A coordinator whose Redis was emptied, or has lost the end of its log, is told from this: by a run that goes on, or by
the next one.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from tidegate_spark.checkpoint import Checkpoint

_NAME = "reached"


@dataclass(slots=True)
class Reached:
    """``batch_id``: the last batch that the coordinator took the commit of. ``tops``: the highest event time of each
    substream, in all batches. ``state_epoch``, ``incarnation``: of the job that knows of these; None: none does yet.
    """

    batch_id: int | None = None
    state_epoch: str | None = None
    incarnation: int | None = None
    tops: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Self:
        return cls(**(checkpoint.read(_NAME) or {}))

    def save(self, checkpoint: Checkpoint) -> None:
        checkpoint.write(_NAME, asdict(self))

    def see(self, tops: Mapping[str, int]) -> None:
        """Takes in the highest event times of a batch."""
        for name, top in tops.items():
            self.tops[name] = max(top, self.tops.get(name, top))

    def in_job(self, answer: Mapping[str, Any]) -> bool:
        """Whether the job that answers is the one that knows of all this."""
        return bool(answer["state_epoch"] == self.state_epoch)

    def settle_in(self, answer: Mapping[str, Any]) -> None:
        """Another job answers. One that somebody began anew is not to know what was before; one that was lost is."""
        if self.incarnation is not None and answer["incarnation"] > self.incarnation:
            self.batch_id, self.tops = None, {}
        self.stay_in(answer)

    def stay_in(self, answer: Mapping[str, Any]) -> None:
        """The job that answers knows of all this."""
        self.state_epoch, self.incarnation = answer["state_epoch"], answer["incarnation"]

    def lost_by(self, previous: int | None, was_open: bool, batch_id: int) -> bool:
        """Whether the coordinator no longer knows of a commit that it took.

        ``previous``: the latest batch it knew when ``batch_id`` was begun, and whether that was open.
        """
        if self.batch_id is None or self.batch_id >= batch_id:
            return False
        return previous is None or previous < self.batch_id or (previous == self.batch_id and was_open)
