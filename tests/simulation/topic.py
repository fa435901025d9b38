"""Kafka in a simulation: the partitions of a topic, and what Spark and the brokers tell about their offsets."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from tests.simulation.checkpoint import Disk
from tests.simulation.loop import Loop
from tests.simulation.source import Source
from tidegate_spark.sources.brokers import Brokers
from tidegate_spark.sources.offsets import PartitionNames, SourceOffsets
from tidegate_spark.sources.plan import StreamSources
from tidegate_spark.sources.running import QueryOffsets

TURN_MS = 150_000
"""Time for which a partition comes first."""
LONGEST_DELAY_MS = 30_000
"""Longest time for which Spark waits for a minimum of input (``maxTriggerDelay``)."""

Offsets = Mapping[str, int]
"""The offsets by substream. The substream ``t/2`` is partition 2 of the topic ``t``, and each row has an offset."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a query reads a topic.

    Attributes:
        limit: Maximum number of rows in a batch until the input ends; None: a batch has all rows.
        minimum: Number of unread rows for which Spark waits before it plans a batch.
        reads_committed: Whether the rows of an open transaction, and those after them, cannot be read.
        by_partition: Whether the client knows that the substreams are the partitions.
    """

    limit: int | None = None
    minimum: int = 0
    reads_committed: bool = False
    by_partition: bool = True

    @classmethod
    def drawn(cls, random: Random) -> "Reading":
        """Return a way of reading from a random source."""
        limit = random.choice((None, 1, 2, 4))
        minimum = random.choice((0, 0, 2)) if limit is None else 0
        return cls(limit, minimum, random.random() < 0.5, random.random() < 0.6)

    @property
    def sources(self) -> StreamSources:
        """What the client reads from the plan of the query."""
        return StreamSources(has_kafka=True, has_minimum=self.minimum > 0, reads_committed=self.reads_committed)

    @property
    def names(self) -> PartitionNames | None:
        """The names of the substreams that are partitions, as the client knows them."""
        return PartitionNames(("topic", "partition")) if self.by_partition else None

    def readable(self, sources: Mapping[str, Source], now_ms: int) -> Offsets:
        """Return the ends up to which the partitions can be read."""
        if self.reads_committed:
            return {name: source.committed_at(now_ms) for name, source in sources.items()}
        return {name: source.length_at(now_ms) for name, source in sources.items()}

    def plan(self, now_ms: int, before: Offsets, readable: Offsets, waited_ms: int, is_ended: bool) -> Offsets | None:
        """Return the ends of the next batch; None if there is too little input for a batch.

        With a limit, one partition comes first for some minutes, as the first files of a backlog do, and others may be
        left out. (Spark gives each partition of Kafka with unread rows a share.)
        """
        unread = sum(readable.values()) - sum(before.values())
        if unread == 0 or (unread < self.minimum and waited_ms < LONGEST_DELAY_MS):
            return None
        if self.limit is None or is_ended:
            return readable
        ends, left = {name: before.get(name, 0) for name in readable}, self.limit
        names, turn = sorted(readable), now_ms // TURN_MS
        for name in (names[(turn + each) % len(names)] for each in range(len(names))):
            taken = min(left, readable[name] - ends[name])
            ends[name] += taken
            left -= taken
        return ends


class TopicOffsets:
    """What Spark tells one run of a query about its offsets, and the brokers about the partitions.

    Attributes:
        latest: The ends up to which the partitions could be read when this run last planned a batch or tried to; None
            before.
    """

    def __init__(self, loop: Loop, disk: Disk, sources: Mapping[str, Source]) -> None:
        self._loop, self._disk, self._sources = loop, disk, sources
        self.latest: Offsets | None = None

    def as_query(self) -> QueryOffsets:
        """Return the object as the client's reader of evidence takes it."""
        return cast(QueryOffsets, self)

    def as_brokers(self) -> Brokers:
        """Return the object as the client's reader of evidence takes it."""
        return cast(Brokers, self)

    def read(self, is_idle: bool = False) -> list[SourceOffsets]:
        """Return the offsets of the source: those of the latest batch, the finished ones, and the latest ones."""
        planned = max(self._disk.offsets, default=None)
        finished = max(self._disk.finished, default=None)
        end, committed = (None if each is None else self._disk.offsets[each].ends for each in (planned, finished))
        return [SourceOffsets(_json(end), _json(self.latest), _json(committed))]

    def ends(self, partitions: object) -> dict[tuple[str, int], int]:
        """Return the offsets after the last rows, committed or not."""
        return {_partition(name): source.length_at(self._loop.now_ms) for name, source in self._sources.items()}

    def firsts(self, partitions: object) -> dict[tuple[str, int], int]:
        """Return the first offsets: nothing is deleted."""
        return {_partition(name): 0 for name in self._sources}


def _partition(name: str) -> tuple[str, int]:
    topic, _, number = name.partition("/")
    return topic, int(number)


def _json(offsets: Offsets | None) -> str | None:
    if offsets is None:
        return None
    found: dict[str, Any] = {}
    for name, offset in offsets.items():
        topic, number = _partition(name)
        found.setdefault(topic, {})[str(number)] = offset
    return json.dumps(found)
