"""The tables of a job's substreams, in sorted pages, and of its queries."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Generic, Literal, Self, TypeVar

from pydantic import Field

from tidegate.domain.errors import QueryNotFound
from tidegate.domain.job import SubstreamState
from tidegate.domain.offsets import PartitionStatus, partition_statuses
from tidegate.domain.values import ID_CHARACTERS, SubstreamKey, matches
from tidegate.domain.views import QueryStatus, SubstreamStatus
from tidegate.store import replies
from tidegate.store.replies import substream_key
from tidegate.views.reader import Reader
from tidegate.views.watermark import WatermarkState

Item = TypeVar("Item")
Column = Literal["name", "since", "watermark", "max_event_time", "last_event", "late"]

CURSOR = rf"^((-?[0-9]{{1,16}})?:[{ID_CHARACTERS}]{{0,128}}/.*)?$"
"""Pattern of a cursor, which contains the value of the sort column (empty if missing), query and substream."""

PAGES_KEPT = 4
LARGE_JOB = 1000
"""Number of substreams above which a replica reads only one job at a time."""


class SubstreamTable(WatermarkState):
    """A page of the table of substreams."""

    substreams: list[SubstreamStatus] = Field(description="Substreams, sorted as requested.")
    next: str | None = Field(
        description="Value of `after` for the next page. Null on the last page.",
        examples=["1357552800000:departures/HNL"],
    )


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of a job's substreams, their order, and the page to return.

    Attributes:
        name: Pattern of names.
        query: Query of the substreams; None for all queries.
        states: States of the substreams; None for all states.
        sort: Column to sort by. Rows with equal values are sorted by query and name.
        descending: Whether the highest value comes first.
        after: Cursor: the ``next`` of the previous page; empty for the first page.
        limit: Number of rows per page.
    """

    name: str = "*"
    query: str | None = None
    states: Collection[SubstreamState] | None = None
    sort: Column = "name"
    descending: bool = False
    after: str = ""
    limit: int = 1000

    def has_key(self, query: str, name: str) -> bool:
        """Return whether the selection matches this query and name, regardless of the state."""
        return self.query in (None, query) and matches(self.name, name)

    def has(self, row: SubstreamStatus) -> bool:
        """Return whether the selection contains a substream."""
        return self.has_key(row.query, row.substream) and (self.states is None or row.state in self.states)


_VALUES: dict[Column, Callable[[SubstreamStatus], int | None]] = {
    "name": lambda row: None,
    "since": lambda row: row.since_ms,
    "watermark": lambda row: row.watermark,
    "max_event_time": lambda row: row.max_event_time,
    "last_event": lambda row: row.last_event_ms,
    "late": lambda row: row.rows.late,
}


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Position of a row in a table sorted by value, query and name. Rows without a value come first."""

    has_value: bool
    value: int
    query: str
    substream: str

    @classmethod
    def of(cls, row: SubstreamStatus, column: Column) -> Self:
        """Return the position of a row in the table sorted by ``column``."""
        value = _VALUES[column](row)
        return cls(value is not None, value or 0, row.query, row.substream)

    @classmethod
    def parse(cls, cursor: str) -> Self | None:
        """Return the position that a cursor encodes; None if the cursor is empty."""
        if not cursor:
            return None
        value, _, member = cursor.partition(":")
        return cls(bool(value), int(value or 0), *substream_key(member))

    @property
    def cursor(self) -> str:
        """The position as text in the form of :data:`CURSOR`."""
        return f"{self.value if self.has_value else ''}:{self.query}/{self.substream}"


class _Page(Generic[Item]):
    """The first ``limit + 1`` items after the cursor of a selection. The object keeps only a few pages in memory.

    ``matching`` is the number of all items, also those before the cursor.
    """

    def __init__(self, selection: Selection) -> None:
        self._selection, self._last = selection, Position.parse(selection.after)
        self._items: list[tuple[Position, Item]] = []
        self.matching = 0

    def add(self, items: Iterable[tuple[Position, Item]]) -> None:
        last, descending = self._last, self._selection.descending
        for one in items:
            self.matching += 1
            if last is None or (one[0] < last if descending else one[0] > last):
                self._items.append(one)
        if len(self._items) > PAGES_KEPT * self._selection.limit:
            self._items = self.sorted()

    def sorted(self) -> list[tuple[Position, Item]]:
        items = sorted(self._items, key=itemgetter(0), reverse=self._selection.descending)
        return items[: self._selection.limit + 1]


@dataclass(frozen=True, slots=True)
class FoundSubstreams:
    """A page of the table of substreams, and the number of substreams on all pages."""

    table: SubstreamTable
    matching: int


async def read_substreams(reader: Reader, job: str, selection: Selection) -> FoundSubstreams:
    """Return a page of the table of substreams.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If the job was deleted.
    """
    reads = reader.store.reads
    large = await reads.count_substreams(job) > LARGE_JOB
    async with reader.bulk_reads if large else nullcontext():
        if selection.sort == "name" and selection.states is None:  # read only the rows of the page
            keys = _Page[SubstreamKey](selection)
            async for part in reads.substream_keys(job):
                keys.add((Position(False, 0, *key), key) for key in part if selection.has_key(*key))
            table = await reads.substreams(job, [key for _, key in keys.sorted()])
            return replace(substream_table(reader, job, table, selection), matching=keys.matching)
        rows = _Page[SubstreamStatus](selection)
        async for part in reads.substream_keys(job):
            table = await reads.substreams(job, [key for key in part if selection.has_key(*key)])
            rows.add(_positions(table.rows, selection))
    return FoundSubstreams(_table(reader, job, table, rows.sorted(), selection.limit), rows.matching)


def substream_table(reader: Reader, job: str, table: replies.SubstreamsReply, selection: Selection) -> FoundSubstreams:
    """Return the page that a selection describes, from the rows in ``table``."""
    rows = _Page[SubstreamStatus](selection)
    rows.add(_positions(table.rows, selection))
    return FoundSubstreams(_table(reader, job, table, rows.sorted(), selection.limit), rows.matching)


def slowest_substreams(
    reader: Reader, job: str, table: replies.SubstreamsReply, selection: Selection
) -> SubstreamTable:
    """Return the page of the slowest substreams of a large job, which ``table`` contains in order."""
    rows = [(Position.of(row, "watermark"), row) for row in table.slowest if selection.has(row)]
    return _table(reader, job, table, rows, selection.limit)


def _positions(rows: Iterable[SubstreamStatus], selection: Selection) -> Iterator[tuple[Position, SubstreamStatus]]:
    return ((Position.of(row, selection.sort), row) for row in rows if selection.has(row))


def _table(
    reader: Reader, job: str, table: replies.SubstreamsReply, rows: list[tuple[Position, SubstreamStatus]], most: int
) -> SubstreamTable:
    return SubstreamTable(
        **reader.members(job, table.state),
        substreams=[row for _, row in rows[:most]],
        next=rows[most - 1][0].cursor if len(rows) > most else None,
    )


QUERY_ID = Field(description="Id of the query's checkpoint.", examples=["7d1f5c5e-9a0b-4a7e-8f63-0c3f3a1d2b4c"])


class QueryTable(WatermarkState):
    """The queries of a job."""

    queries: list[QueryStatus] = Field(description="Queries, sorted by name.")


class BatchStatus(WatermarkState):
    """A batch of a query."""

    query: str = Field(description="Name of the query.", examples=["departures"])
    query_id: str = QUERY_ID
    batch_id: int = Field(description="Number of the batch.", examples=[41])
    pinned_watermark: int | None = Field(
        description="Watermark by which the rows of the batch are classified, in every replay. If null, no row is "
        "late.",
        examples=[1357552800000],
    )
    open: bool = Field(description="Whether the batch is open.", examples=[True])
    released: bool = Field(
        description="Whether the batch is open, but a limit let the watermark pass it.",
        examples=[False],
    )
    begun_ms: int | None = Field(
        description="Processing time at which the batch began. Null for all batches but the latest.",
        examples=[1357554640000],
    )


class OffsetsTable(WatermarkState):
    """How far a query has read each partition of its source."""

    query: str = Field(description="Name of the query.", examples=["departures"])
    batch_id: int | None = Field(
        description="Latest committed batch that told its offsets. Null if no batch told them.", examples=[41]
    )
    at_ms: int | None = Field(description="Processing time of its commit.", examples=[1357554655000])
    skipped: int = Field(description="Number of offsets that were never read.", examples=[0])
    partitions: list[PartitionStatus] = Field(description="Partitions of the source.")


async def read_queries(reader: Reader, job: str) -> QueryTable:
    """Return the queries of a job.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If the job was deleted.
    """
    return query_table(reader, job, await reader.store.reads.queries(job))


def query_table(reader: Reader, job: str, table: replies.QueriesReply) -> QueryTable:
    """Return the table of a job's queries as an answer."""
    return QueryTable(**reader.members(job, table.state), queries=table.rows)


async def read_offsets(reader: Reader, job: str, query: str) -> OffsetsTable:
    """Return the offsets of a query. A query that has not begun has none yet, so that a client can wait for it.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If the job was deleted.
    """
    table = await reader.store.reads.queries(job)
    members, found = reader.members(job, table.state), table.offsets.get(query)
    if found is None:
        return OffsetsTable(**members, query=query, batch_id=None, at_ms=None, skipped=0, partitions=[])
    partitions = partition_statuses(found)
    told = {"batch_id": found.batch_id, "at_ms": found.at_ms, "skipped": found.skipped}
    return OffsetsTable(**members, query=query, partitions=partitions, **told)


async def read_batch(reader: Reader, job: str, query: str, batch_id: int) -> BatchStatus | None:
    """Return a batch, or None if it never began or the store no longer keeps its pinned watermark.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If the job was deleted.
        QueryNotFound: If the job has no such query.
    """
    table = await reader.store.reads.queries(job)
    row = next((row for row in table.rows if row.query == query), None)
    if row is None:
        raise QueryNotFound(query)
    pinned_watermark = await reader.store.reads.pinned_watermark(job, query, batch_id)
    if pinned_watermark is None:
        return None
    latest = row.batch_id == batch_id
    return BatchStatus(
        **reader.members(job, table.state),
        query=query,
        query_id=row.query_id,
        batch_id=batch_id,
        pinned_watermark=pinned_watermark.value,
        open=latest and row.batch_open,
        released=latest and row.batch_released,
        begun_ms=row.begun_ms if latest else None,
    )
