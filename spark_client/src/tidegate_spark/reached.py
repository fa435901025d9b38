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
    """``query``: its name. ``batch_id``: the last batch that the coordinator took the commit of. ``max_event_times``:
    the highest
    event time of each substream, in all batches. ``state_epoch``, ``incarnation``: of the job that knows of these;
    None: none does yet. ``watermark_token``: proves the watermark that the last commit was answered with.
    ``incomplete``: the job had lost the end of what it knew, and is told again with the batch that is open.
    """

    query: str
    batch_id: int | None = None
    state_epoch: str | None = None
    incarnation: int | None = None
    max_event_times: dict[str, int] = field(default_factory=dict)
    watermark_token: str | None = None
    incomplete: bool = False

    @classmethod
    def load(cls, query: str, checkpoint: Checkpoint) -> Self:
        reached = cls(**(checkpoint.read(_NAME) or {"query": query}))
        if reached.query != query:
            # Renamed: another query, and how far it had come was handed over. The coordinator never knew its batches.
            reached.query, reached.batch_id, reached.incomplete = query, None, False
        return reached

    def save(self, checkpoint: Checkpoint) -> None:
        checkpoint.write(_NAME, asdict(self))

    def lacking_in(self, answer: Mapping[str, Any]) -> dict[str, int]:
        """The tops that the job which answers is yet to be told: all where it was lost, none where it knows them."""
        return {} if self._known_to(answer) or self._begun_anew(answer) else self.max_event_times

    def settle_in(self, answer: Mapping[str, Any]) -> bool:
        """The job that answers knows what it is to know; returns whether it is another than before."""
        another = not self._known_to(answer)
        if another and self._begun_anew(answer):
            self.batch_id, self.max_event_times, self.watermark_token, self.incomplete = None, {}, None, False
        self.state_epoch, self.incarnation = answer["state_epoch"], answer["incarnation"]
        return another

    def _known_to(self, answer: Mapping[str, Any]) -> bool:
        return bool(answer["state_epoch"] == self.state_epoch)

    def _begun_anew(self, answer: Mapping[str, Any]) -> bool:
        """By somebody, with a reset, or a deletion: then it is not to know what was before."""
        return self.incarnation is not None and bool(answer["incarnation"] > self.incarnation)

    def commit(self, batch_id: int, max_event_times: Mapping[str, int], watermark_token: str | None) -> None:
        """The coordinator has taken the commit of a batch, with its highest event times."""
        self.batch_id, self.watermark_token, self.incomplete = batch_id, watermark_token, False
        for name, max_event_time in max_event_times.items():
            self.max_event_times[name] = max(max_event_time, self.max_event_times.get(name, max_event_time))

    def lost_by(self, previous: int | None, was_open: bool, batch_id: int) -> bool:
        """Whether the coordinator no longer knows of a commit that it took.

        ``previous``: the latest batch it knew when ``batch_id`` was begun, and whether that was open.
        """
        if self.batch_id is None or self.batch_id >= batch_id:
            return False
        return previous is None or previous < self.batch_id or (previous == self.batch_id and was_open)
