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

from tidegate_spark.substreams import name_of

NO_OFFSET = "-"
"""The entry in Spark's log for a source that has no offset yet."""

Partition = tuple[str, int]
"""A topic of Kafka, and the number of a partition."""


@dataclass(frozen=True, slots=True)
class SourceOffsets:
    """The offsets of a source, as the JSON texts of Spark.

    Attributes:
        end: End of the latest batch.
        latest: Latest offset that the source had when Spark last asked for it; None if the source does not tell.
        committed: End of the last finished batch; None if it was not read, or no batch has finished.
    """

    end: str | None
    latest: str | None
    committed: str | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the offsets of a batch prove.

    Attributes:
        all_read: Whether the batch and earlier batches contain all input that the sources had; None if a source does
            not tell, and no other source has unread input.
        read: The partitions of Kafka that were read to their latest offsets.
        unread: The partitions of Kafka that were not.
    """

    all_read: bool | None
    read: frozenset[Partition] = frozenset()
    unread: frozenset[Partition] = frozenset()


def evidence_of(sources: Sequence[SourceOffsets], *, committed: bool = False) -> Evidence:
    """Return what the offsets of all sources of a query prove, except those of watermark sources of this package.

    Args:
        sources: The offsets.
        committed: Whether to prove that finished batches contain the input, and not an unfinished one.
    """
    results: list[bool | None] = []
    read: set[Partition] = set()
    unread: set[Partition] = set()
    for source in sources:
        if source.end is not None and is_marker(source.end):
            continue
        if source.latest is None:
            # Kafka tells its latest offsets once Spark has asked for them: not for a batch that an earlier run planned.
            results.append(None if _partitions(_parsed(source.end)) is None else False)
            continue
        latest, end = _parsed(source.latest), _parsed(source.end)
        ends = [end, _parsed(source.committed)] if committed else [end]
        results.append(all(each == latest for each in ends))
        of_each = [_partitions(each) for each in ends]
        for partition, offset in (_partitions(latest) or {}).items():
            is_read = all(found is not None and found.get(partition) == offset for found in of_each)
            (read if is_read else unread).add(partition)
    all_read = False if False in results else None if None in results or not results else True
    return Evidence(all_read, frozenset(read), frozenset(unread))


def is_marker(offset: str) -> bool:
    """Return whether an offset belongs to a source of watermarks of this package: ``{"watermark": 1, ...}``."""
    parsed = _parsed(offset)
    # Kafka's offsets are keyed by topic, and a topic may be named "watermark".
    return isinstance(parsed, dict) and "watermark" in parsed and not isinstance(parsed["watermark"], dict)


def _parsed(offset: str | None) -> Any:
    """Return an offset as a JSON value. Texts differ in blanks and in the order of members."""
    if offset is None or offset == NO_OFFSET:
        return None
    try:
        return json.loads(offset)
    except ValueError:
        return offset


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

    def caught_up(self, evidence: Evidence) -> frozenset[str]:
        """Return the substreams all of whose partitions were read to their latest offsets."""
        return self._named(evidence.read) - self._named(evidence.unread)

    def _named(self, partitions: Iterable[Partition]) -> frozenset[str]:
        return frozenset(self._name(topic, number) for topic, number in partitions)

    def _name(self, topic: str, number: int) -> str:
        values = tuple(topic if column == "topic" else number for column in self.columns)
        return name_of(values if len(values) > 1 else values[0])


@dataclass(frozen=True, slots=True)
class InputRead:
    """The input that a batch and earlier batches contain, as of the time at which Spark planned the batch.

    Attributes:
        substreams: The substreams whose input they contain; None: all substreams of the query.
    """

    substreams: frozenset[str] | None = None

    @classmethod
    def of(cls, evidence: Evidence, names: PartitionNames | None) -> "InputRead | None":
        """Return what the evidence means for the substreams; None if the sources do not tell."""
        match evidence.all_read:
            case None:
                return None
            case True:
                return cls()
            case _:
                return cls(frozenset() if names is None else names.caught_up(evidence))
