"""Offsets: how far a query has read the partitions of its source, as its batches tell.

They tell how much input is unread, which input was never read, and which partitions were created again or are gone.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest

from tidegate.domain.history import NAMES_KEPT, History, Kind
from tidegate.domain.values import described

MOST_BEHIND = 10
"""Maximum number of partitions that a table of queries lists for each query."""


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """The offsets of one batch, in columns with an entry for each partition of the source, also those without a row.

    Attributes:
        partitions: Names of the partitions, such as ``landings/2``.
        starts: First offset that the batch can have read; None if unknown.
        ends: Offset after the last one that the batch has read.
        latest: Offset after the last record that the partition had when the batch was planned; None if unknown.
        behind_ms: Time since the partition had no record after the end, when the batch was planned; None if unknown.
        open_transactions: Partitions whose records after the end belong to an open transaction.
        batch_id: The batch; None: the batch whose commit tells the offsets. A client may learn them one batch later.
        substream_columns: Columns of the source of which the names of the substreams consist: ``topic``, ``partition``
            or both. Empty: the substreams are not partitions.
    """

    partitions: Sequence[str]
    starts: Sequence[int | None]
    ends: Sequence[int]
    latest: Sequence[int | None]
    behind_ms: Sequence[int | None]
    open_transactions: Sequence[str] = ()
    batch_id: int | None = None
    substream_columns: Sequence[str] = ()

    def substreams(self, partitions: Iterable[str]) -> dict[str, None]:
        """Return the names of the substreams with these partitions, without duplicates."""
        if not self.substream_columns:
            return {}
        parts = (dict(zip(("topic", "partition"), _split(name), strict=True)) for name in partitions)
        return dict.fromkeys("/".join(of[column] for column in self.substream_columns) for of in parts)

    @property
    def unread(self) -> list[int | None]:
        """A column with the number of unread offsets when the batch was planned; None if unknown."""
        columns = zip(self.latest, self.ends, strict=True)
        return [None if latest is None else max(0, latest - end) for latest, end in columns]


@dataclass(frozen=True, slots=True)
class CommittedOffsets:
    """The offsets of the latest committed batch that told them.

    Attributes:
        at_ms: Processing time of the commit.
        query_id: Id of the query's checkpoint.
        batch_id: The batch.
        offsets: The offsets of the batch.
        skipped: Number of offsets that batches of the query have skipped.
    """

    at_ms: int
    query_id: str
    batch_id: int
    offsets: BatchOffsets
    skipped: int = 0

    @property
    def unread(self) -> int | None:
        """The number of unread offsets when the batch was planned; None if unknown."""
        known = [unread for unread in self.offsets.unread if unread is not None]
        return sum(known) if known else None


LostOffsets = tuple[Kind, dict[str, int]]
"""The kind of the record about lost offsets, and their numbers by partition."""


def advance(
    before: CommittedOffsets | None, after: CommittedOffsets, query: str, history: History
) -> tuple[CommittedOffsets, list[LostOffsets]]:
    """Return the offsets after a commit, and record and return the offsets that its batch has skipped.

    A batch skips offsets if it starts above the end of the batch before: Kafka has deleted their records. If a batch
    ends below its start, the topic was deleted and created again, and Spark skips the records that the new topic
    already had.

    Args:
        before: The offsets of an earlier batch of the checkpoint; None if no earlier batch told its offsets.
        after: The offsets of the batch, without the earlier skipped offsets.
        query: The query.
        history: The history of the job.
    """
    if before is not None and after.batch_id <= before.batch_id:
        return before, []
    ends: dict[str, int] = {}
    if before is not None and after.batch_id == before.batch_id + 1:
        ends = dict(zip(before.offsets.partitions, before.offsets.ends, strict=True))
    batch = after.offsets
    skipped: dict[str, int] = {}
    restarted: dict[str, int] = {}
    for partition, start, end in zip(batch.partitions, batch.starts, batch.ends, strict=True):
        if start is not None and end < start:
            restarted[partition] = end
        elif start is not None and start > ends.get(partition, start):
            skipped[partition] = start - ends[partition]
    lost = [
        (kind, found) for kind, found in ((Kind.OFFSETS_SKIPPED, skipped), (Kind.OFFSETS_RESTARTED, restarted)) if found
    ]
    for kind, found in lost:
        details = {"count": sum(found.values()), "partitions": list(found)[:NAMES_KEPT]}
        history.write(after.at_ms, kind, query=query, batch_id=after.batch_id, **details)
    earlier = 0 if before is None else before.skipped
    return replace(after, skipped=earlier + sum(skipped.values()) + sum(restarted.values())), lost


def _split(partition: str) -> tuple[str, str]:
    """Return the topic and the number of a partition."""
    topic, _, number = partition.rpartition("/")
    return topic, number


@dataclass(frozen=True, slots=True)
class SubstreamChanges:
    """What happens to the substreams of a query because of the partitions of a batch.

    Attributes:
        restarted: Those whose topic was deleted and created again.
        new: Those whose partitions are new in the source. If they are done, they start again, too.
        gone: Those whose partitions the source no longer has.
        present: Those of all partitions of the batch.
    """

    restarted: Collection[str]
    new: Collection[str]
    gone: Collection[str]
    present: Collection[str]


def substream_changes(before: CommittedOffsets | None, batch: BatchOffsets) -> SubstreamChanges:
    """Compare the partitions of a batch with those of the latest batch of the checkpoint that told its offsets.

    A topic was created again if a batch ends below its start, or starts below the end of an earlier batch: the batches
    between may not have told their offsets.
    """
    known: dict[str, int] = {}
    if before is not None:
        known = dict(zip(before.offsets.partitions, before.offsets.ends, strict=True))
    recreated = {
        _split(partition)[0]
        for partition, start, end in zip(batch.partitions, batch.starts, batch.ends, strict=True)
        if start is not None and (end < start or start < known.get(partition, start))
    }
    is_again = {partition: _split(partition)[0] in recreated for partition in batch.partitions}
    kept = batch.substreams(each for each, again in is_again.items() if each in known and not again)
    restarted = batch.substreams(each for each, again in is_again.items() if again)
    new = batch.substreams(each for each in batch.partitions if known and each not in known)
    gone = batch.substreams(each for each in known if each not in is_again)
    present = batch.substreams(batch.partitions)
    return SubstreamChanges(
        list(restarted),
        [name for name in new if name not in kept and name not in restarted],
        [name for name in gone if name not in present],
        list(present),
    )


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition of the source of a query."""

    partition: str = described("Name of the partition: its topic and its number.", example="landings/2")
    committed: int = described(
        "Offset after the last one in the committed batches. Records with lower offsets were read, or skipped.",
        example=48210,
    )
    latest: int | None = described(
        "Offset after the last record that the partition had when Spark planned the batch. Null if unknown.",
        example=59610,
    )
    unread: int | None = described("Number of unread offsets: `latest` minus `committed`.", example=11400)
    behind_ms: int | None = described(
        "Age of the oldest unread record when Spark planned the batch, rounded up. Null if unknown.", example=180000
    )
    open_transaction: bool = described("Whether unread records belong to an open transaction.", example=False)


@dataclass(frozen=True, slots=True)
class OffsetsStatus:
    """How far a query has read its source, by its latest committed batch."""

    at_ms: int = described("Processing time of the commit.", example=1357554655000)
    batch_id: int = described("Number of the batch.", example=41)
    partitions: int = described("Number of partitions of the source.", example=12)
    unread: int | None = described(
        "Number of unread offsets when Spark planned the batch. Null if unknown.", example=11400
    )
    skipped: int = described(
        "Number of offsets that this checkpoint never read, because their records were deleted before. The history has "
        "a record of each case.",
        example=0,
    )
    most_behind: list[PartitionStatus] = described(
        f"The partitions with the most unread offsets, at most {MOST_BEHIND}. Partitions without unread offsets are "
        "not listed."
    )

    @classmethod
    def of(cls, found: CommittedOffsets | None) -> "OffsetsStatus | None":
        """Return the status of offsets; None if no batch told its offsets."""
        if found is None:
            return None
        rows = partition_statuses(found)
        behind = nlargest(MOST_BEHIND, (row for row in rows if row.unread), key=lambda row: row.unread or 0)
        return cls(found.at_ms, found.batch_id, len(rows), found.unread, found.skipped, behind)


def partition_statuses(found: CommittedOffsets) -> list[PartitionStatus]:
    """Return the status of each partition, in the order of the columns."""
    of = found.offsets
    in_transaction = frozenset(of.open_transactions)
    columns = zip(of.partitions, of.ends, of.latest, of.unread, of.behind_ms, strict=True)
    return [
        PartitionStatus(name, end, latest, unread, behind_ms, name in in_transaction)
        for name, end, latest, unread, behind_ms in columns
    ]
