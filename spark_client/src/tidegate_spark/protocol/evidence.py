"""What offsets tell about the input of a batch: what was caught up and when, and how far partitions were read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class ProcessingTime:
    """A processing time (Unix time), and the seconds that the run had waited for the coordinator until then."""

    at_s: float
    waited_s: float

    def age_ms(self, now: "ProcessingTime") -> int:
        """Return the age at ``now`` in milliseconds, without the time that the run has waited since."""
        return max(0, int(1000 * (now.at_s - self.at_s - (now.waited_s - self.waited_s))))


@dataclass(frozen=True, slots=True)
class Evidence:
    """Proof that a batch and earlier batches contain all input of some substreams up to a processing time.

    Attributes:
        substreams: The substreams; None: all substreams of the query.
        at: The processing time; None: the time at which Spark planned the batch.
    """

    substreams: frozenset[str] | None = None
    at: ProcessingTime | None = None


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """The offsets of a batch in the partitions of Kafka, in columns of equal length, as the coordinator takes them.

    Attributes:
        partitions: The partitions, such as ``landings/2``.
        starts: First offset that the batch can have read; None if unknown.
        ends: Offset after the last one that the batch has read.
        latest: Offset after the last record that Spark knew when it planned the batch; None if unknown.
        behind_ms: About how old the oldest unread record then was, in milliseconds; None if unknown.
        open_transactions: Partitions whose unread records belong to an open transaction.
        batch_id: The batch, if it is an earlier one than the batch whose commit tells the offsets.
        substream_columns: Columns of Kafka of which the names of the substreams consist: ``topic``, ``partition`` or
            both. Empty: the substreams are not partitions.
    """

    partitions: tuple[str, ...]
    starts: tuple[int | None, ...]
    ends: tuple[int, ...]
    latest: tuple[int | None, ...]
    behind_ms: tuple[int | None, ...]
    open_transactions: tuple[str, ...] = ()
    batch_id: int | None = None
    substream_columns: tuple[str, ...] = ()

    def continuing(self) -> frozenset[str] | None:
        """Return the substreams that continue in the batch: not those of topics that were created again.

        The result is None if the substreams are not partitions, or the offsets are those of an earlier batch: later
        batches may have other partitions.
        """
        if not self.substream_columns or self.batch_id is not None:
            return None
        topics = [partition.rpartition("/")[0] for partition in self.partitions]
        columns = zip(topics, self.starts, self.ends, strict=True)
        recreated = {topic for topic, start, end in columns if start is not None and end < start}
        named = [
            (self.substream(partition), topic in recreated)
            for partition, topic in zip(self.partitions, topics, strict=True)
        ]
        again = {name for name, is_again in named if is_again}
        return frozenset(name for name, _ in named if name not in again)

    def substream(self, partition: str) -> str:
        """Return the name of the substream of a partition."""
        topic, _, number = partition.rpartition("/")
        parts = {"topic": topic, "partition": number}
        return "/".join(parts[column] for column in self.substream_columns)

    @property
    def counts(self) -> list[int] | None:
        """For each partition the number of offsets in the batch; None if a start is unknown."""
        columns = [*zip(self.starts, self.ends, strict=True)]
        counts = [max(0, end - start) for start, end in columns if start is not None]
        return counts if len(counts) == len(columns) else None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "BatchOffsets":
        """Return the offsets in a document, as ``asdict`` has made it."""
        columns: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in document.items()
        }
        return cls(**columns)


@dataclass(frozen=True, slots=True)
class BatchInput:
    """What the offsets tell about the input of a batch.

    Attributes:
        evidence: The evidence; None without evidence.
        partitions: The substreams that are partitions of the source, also those without a row.
        offsets: The offsets in the partitions of Kafka; None if they are not known.
    """

    evidence: Evidence | None = None
    partitions: frozenset[str] = frozenset()
    offsets: BatchOffsets | None = None


NOTHING_KNOWN = BatchInput()
ALL_CAUGHT_UP = Evidence()
