"""The offsets of the sources of a query, and what they prove.

A batch ends at an *end* offset of each source. Most sources also tell the *latest* offset that they had when Spark
planned the batch. If both are the same, the batch and earlier batches contain all input that the source had then.
Kafka's offsets prove this for each partition. Rows prove nothing: the rows of a silent substream may be behind a limit
on the size of batches, and aborted records of Kafka have offsets but no rows.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate_spark.protocol.checkpoint import NO_OFFSET, is_marker
from tidegate_spark.protocol.evidence import BatchInput, Evidence
from tidegate_spark.substreams import name_of

Partition = tuple[str, int]
"""A topic of Kafka, and the number of a partition."""


@dataclass(frozen=True, slots=True)
class SourceOffsets:
    """The offsets of a source, as the JSON texts of Spark.

    Attributes:
        end: End of the latest batch.
        latest: Latest offset that the source had when Spark last asked for it; None if the source does not tell.
        committed: End of the last finished batch; None if it was not read, or no batch has finished.
        is_complete: Whether each batch contains all input that the source had, because the source has no limit on the
            size of batches. It counts if the source does not tell its latest offset.
    """

    end: str | None
    latest: str | None
    committed: str | None = None
    is_complete: bool = False


@dataclass(frozen=True, slots=True)
class ReadPartitions:
    """What the offsets of a batch prove.

    Attributes:
        all_caught_up: Whether the batch and earlier batches contain all input that the sources had.
        caught_up: The partitions of Kafka that were read to their latest offsets.
        behind: The partitions of Kafka that were not.
    """

    all_caught_up: bool
    caught_up: frozenset[Partition] = frozenset()
    behind: frozenset[Partition] = frozenset()


def partitions_read(sources: Sequence[SourceOffsets], *, is_idle: bool = False) -> ReadPartitions:
    """Return what the offsets of all sources of a query prove, except those of watermark sources of this package.

    Args:
        sources: The offsets.
        is_idle: Whether a trigger found too little input for a batch. The evidence is then about the finished batches,
            not about an unfinished one. A source that does not tell its latest offset had no input.
    """
    results: list[bool] = []
    caught_up: set[Partition] = set()
    behind: set[Partition] = set()
    for source in sources:
        if source.end is not None and is_marker(source.end):
            continue
        end = _parsed(source.end)
        if source.latest is None:
            # Kafka tells its latest offsets once Spark has asked for them: not for a batch that an earlier run planned.
            results.append(_partitions(end) is None and (source.is_complete or is_idle))
            continue
        latest = _parsed(source.latest)
        ends = [end, _parsed(source.committed)] if is_idle else [end]
        results.append(all(each == latest for each in ends))
        of_each = [_partitions(each) for each in ends]
        for partition, offset in (_partitions(latest) or {}).items():
            is_read = all(found is not None and found.get(partition) == offset for found in of_each)
            (caught_up if is_read else behind).add(partition)
    return ReadPartitions(bool(results) and all(results), frozenset(caught_up), frozenset(behind))


def _parsed(offset: str | None) -> Any:
    """Return an offset as a JSON value. Texts differ in blanks and in the order of members."""
    if offset is None or offset == NO_OFFSET:
        return None
    try:
        return json.loads(offset)
    except ValueError:
        return offset


def partitions_of(offset: str | None) -> Mapping[Partition, int] | None:
    """Return Kafka's offsets by partition; None if the offset is not one of Kafka."""
    return _partitions(_parsed(offset))


def _partitions(offset: Any) -> Mapping[Partition, int] | None:
    """Return Kafka's offsets by partition; None if the offset is not one of Kafka: ``{"topic": {"0": 120}}``."""
    if not isinstance(offset, dict):
        return None
    found: dict[Partition, int] = {}
    for topic, of_topic in offset.items():
        if not isinstance(of_topic, dict):
            return None
        for number, at in of_topic.items():
            if not number.isdecimal() or type(at) is not int:
                return None
            found[topic, int(number)] = at
    return found


@dataclass(frozen=True, slots=True)
class PartitionNames:
    """The names of the substreams that are partitions or topics of Kafka.

    Attributes:
        columns: What each substream column contains: ``topic`` or ``partition``.
    """

    columns: tuple[str, ...]

    def of(self, read: ReadPartitions) -> frozenset[str]:
        """Return the substreams all of whose partitions were read to their latest offsets."""
        return self._named(read.caught_up) - self._named(read.behind)

    def all_of(self, read: ReadPartitions) -> frozenset[str]:
        """Return the substreams of all partitions that the source has."""
        return self._named(read.caught_up | read.behind)

    def _named(self, partitions: Iterable[Partition]) -> frozenset[str]:
        return frozenset(self._name(topic, number) for topic, number in partitions)

    def _name(self, topic: str, number: int) -> str:
        values = tuple(topic if column == "topic" else number for column in self.columns)
        return name_of(values if len(values) > 1 else values[0])


def input_of(read: ReadPartitions, names: PartitionNames | None) -> BatchInput:
    """Return what the offsets prove about the substreams.

    ``names`` has the names of the substreams that are partitions of Kafka; None if they are not. Another substream may
    have rows in any partition.
    """
    partitions = frozenset[str]() if names is None else names.all_of(read)
    if read.all_caught_up:
        return BatchInput(Evidence(), partitions)
    return BatchInput(None if names is None else Evidence(names.of(read)), partitions)
