"""The checkpoint of a query in a simulation, and the effects of Spark on it."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate_spark.protocol import effects
from tidegate_spark.protocol.batches import OpenBatch
from tidegate_spark.protocol.effects import Effect


@dataclass(frozen=True, slots=True)
class Plan(Effect):
    """Plan the next batch, or the last one if it is not finished. The result is its id; None if there is no input."""


@dataclass(frozen=True, slots=True)
class ReadEvidence(Effect):
    """Read what the offsets prove. The result is a :class:`BatchInput`, or with ``is_idle`` the evidence or None."""

    is_idle: bool


@dataclass(frozen=True, slots=True)
class Classify(Effect):
    """Classify the rows of a batch by its pinned watermark. The result is their fold."""

    batch: OpenBatch


@dataclass(frozen=True, slots=True)
class Finish(Effect):
    """Write a batch to Spark's commit log."""

    batch_id: int


@dataclass(frozen=True, slots=True)
class Planned:
    """An entry of Spark's offset log: the time of the plan, and the number of rows of each substream up to its end."""

    at_ms: int
    ends: Mapping[str, int]


@dataclass
class Disk:
    """The checkpoint of a query: Spark's logs, and the documents of the client."""

    offsets: dict[int, Planned] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    documents: dict[str, bytes] = field(default_factory=dict)

    def perform(self, effect: Effect) -> Any:
        """Perform an effect of the client."""
        match effect:
            case effects.Read(name):
                content = self.documents.get(name)
                return None if content is None else pickle.loads(content)  # noqa: S301 - written by this class
            case effects.Write(name, document):
                self.documents[name] = pickle.dumps(document)
            case effects.Remove(name):
                self.documents.pop(name, None)
            case effects.ListBatches(kind):
                names = (name.split("/") for name in self.documents)
                return sorted(int(name[1]) for name in names if name[0] == kind and len(name) > 1)
            case effects.HasCheckpoint():
                return True
            case effects.ReadPlannedMs(batch_id):
                planned = self.offsets.get(batch_id)
                return None if planned is None else planned.at_ms
            case effects.HasFinished(batch_id):
                return batch_id in self.finished
            case _:
                raise TypeError(f"unknown effect {effect!r}")
        return None
