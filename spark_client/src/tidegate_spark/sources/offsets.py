"""The offsets of the sources of a query, and what they prove.

A batch ends at an *end* offset of each source. Most sources also tell the *latest* offset that they had when Spark
planned the batch. If both are the same, the batch and earlier batches contain all input that the source had then.
Kafka's offsets prove this for each partition. Rows prove nothing: the rows of a silent substream may be behind a limit
on the size of batches, and aborted records of Kafka have offsets but no rows.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidegate_spark.protocol.checkpoint import NO_OFFSET, is_marker
from tidegate_spark.protocol.evidence import BatchInput, BatchOffsets, Evidence
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


MAX_PARTITIONS, MAX_NAME_BYTES = 5000, 200
"""The coordinator's limits on the partitions of a batch."""


class LatestOffsets:
    """The latest offsets of partitions at earlier times, from which follows how old their unread records are.

    The latest samples are close together, and earlier ones far apart, so that a few cover a long time.
    """

    KEPT = 64

    def __init__(self) -> None:
        self._samples: list[tuple[float, Mapping[Partition, int]]] = []

    def add(self, at_s: float, latest: Mapping[Partition, int]) -> None:
        """Add the latest offsets at a time in seconds."""
        self._samples.append((at_s, latest))
        if len(self) > self.KEPT:
            # Remove the sample whose neighbours are closest together, relative to their ages.
            ages = [max(0.001, at_s - then_s) for then_s, _ in self._samples]
            del self._samples[min(range(1, len(ages) - 2), key=lambda each: ages[each - 1] / ages[each + 1])]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._samples)

    def behind_ms(self, partition: Partition, end: int) -> int | None:
        """Return for how long a partition has had records from an offset on, in milliseconds; None if unknown."""
        now_s, latest = self._samples[-1]
        if latest.get(partition, end) <= end:
            return 0
        for at_s, then in reversed(self._samples):
            if then.get(partition, 0) <= end:
                return max(0, int(1000 * (now_s - at_s)))  # the clock may go back
        return None


def batch_offsets(
    sources: Sequence[SourceOffsets],
    past: LatestOffsets,
    at_s: float,
    firsts: Mapping[Partition, int],
    in_transaction: Collection[Partition] = (),
    substreams: PartitionNames | None = None,
) -> BatchOffsets | None:
    """Return the offsets of a batch in the partitions of Kafka; None if it has none, or too many for a call.

    Args:
        sources: The offsets of all sources.
        past: The latest offsets of earlier batches; those of this batch are added.
        at_s: Time at which the offsets were read.
        firsts: First offset that Kafka still had in a partition, before the batch was read. Partitions may be missing.
        in_transaction: Partitions whose unread records belong to an open transaction.
        substreams: The names of the substreams that are partitions of Kafka; None if they are not.
    """
    rows: dict[Partition, tuple[int | None, int, int | None]] = {}
    known: dict[Partition, int] = {}
    for source in sources:
        latest = partitions_of(source.latest) or {}
        starts = partitions_of(source.committed)
        known.update(latest)
        for partition, end in (partitions_of(source.end) or {}).items():
            # A partition that the source did not have before is new, or its topic was created again.
            start = None if starts is None else starts.get(partition, 0)
            if start is not None:
                start = max(start, min(firsts.get(partition, start), end))
            row = start, end, latest.get(partition)
            if partition in rows:  # two sources read the topic
                row = None, min(end, rows[partition][1]), row[2]
            rows[partition] = row
    names = tuple(f"{topic}/{number}" for topic, number in rows)
    if not rows or len(names) > MAX_PARTITIONS or any(len(name.encode()) > MAX_NAME_BYTES for name in names):
        return None
    past.add(at_s, known)
    behind = tuple(
        None if last is None else past.behind_ms(partition, end) for partition, (_, end, last) in rows.items()
    )
    open_ones = tuple(name for name, partition in zip(names, rows, strict=True) if partition in in_transaction)
    first, end_, lasts = (tuple(column) for column in zip(*rows.values(), strict=True))
    told = BatchOffsets(names, first, end_, lasts, behind, open_ones)
    if substreams is None:
        return told
    told = replace(told, substream_columns=substreams.columns)
    # The coordinator makes the names of the substreams as this method does.
    are_same = substreams.all_of(ReadPartitions(False, frozenset(rows))) == {told.substream(name) for name in names}
    return told if are_same else replace(told, substream_columns=())
