"""The table of a job's substreams, in sorted pages."""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import nullcontext
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal, Self, TypeVar

from pydantic import Field

from tidegate.domain.config import JobConfig
from tidegate.domain.names import SubstreamKey
from tidegate.domain.pattern import matches
from tidegate.domain.results import SubstreamRow, SubstreamState
from tidegate.reads.config import JobDocument
from tidegate.reads.reader import Reader
from tidegate.reads.status import RowCounts
from tidegate.reads.types import Record
from tidegate.reads.watermark import WatermarkState
from tidegate.store.replies import substream_key

Item = TypeVar("Item")
Column = Literal["name", "since", "watermark", "max_event_time", "last_event", "late"]

CURSOR = r"^((-?[0-9]{1,16})?:[A-Za-z0-9._~-]{0,128}/.*)?$"
"""Pattern of a cursor: the value of the sort column, if the row has one, then the query and the substream."""

PAGES_KEPT = 4
LARGE_JOB = 1000
"""Jobs with more substreams are read one at a time."""


class SubstreamStatus(Record):
    """One substream of one query."""

    query: str = Field(description="Query; empty for reports without batches.", examples=["departures"])
    substream: str = Field(description="Name of the substream.", examples=["HNL"])
    state: SubstreamState = Field(
        description="`active`: counts towards the minimum. `blocked`: active, and silent for longer than the idle "
        "timeout, but its query has not confirmed that it has no data. `idle`: excluded. `done`: ended.",
        examples=["active"],
    )
    since_ms: int = Field(
        description="Processing time since which the substream has this state.", examples=[1357527600000]
    )
    watermark: int | None = Field(description="Watermark of the substream.", examples=[1357552800000])
    max_event_time: int | None = Field(description="Highest event time of the substream.", examples=[1357554600000])
    skew: int | None = Field(
        description="Distance behind the highest substream watermark that ever counted, in milliseconds.",
        examples=[1800000],
    )
    last_event_ms: int = Field(
        description="Processing time at which its last report took effect.", examples=[1357554612000]
    )
    lag: int | None = Field(
        description="Lag of its policy in milliseconds. Null: the policy has no lag.", examples=[1800000]
    )
    policy: str | None = Field(
        description="Pattern of the override that applies. Null: the policy of the job.", examples=["HNL*"]
    )
    reported: int = Field(description="Rows that executors reported in committed batches.", examples=[1843])
    future_rows: int = Field(description="Rows and reports ignored as too far in the future.", examples=[0])
    rows: RowCounts = Field(description="Committed rows by row class.")

    @classmethod
    def of(cls, row: SubstreamRow, max_watermark: int | None, config: JobConfig) -> Self:
        """Return the record of a row of the store's table."""
        return cls(
            query=row.query,
            substream=row.substream,
            state=row.state,
            since_ms=row.since_ms,
            watermark=row.watermark,
            max_event_time=row.max_event_time,
            skew=None if row.watermark is None or max_watermark is None else max_watermark - row.watermark,
            last_event_ms=row.last_event_ms,
            lag=row.lag,
            policy=config.override_of(row.substream),
            reported=row.reported_rows,
            future_rows=row.future_rows,
            rows=RowCounts.model_validate(row.counts),
        )


class SubstreamTable(WatermarkState):
    """A page of the table of substreams."""

    substreams: list[SubstreamStatus] = Field(description="Substreams in the requested order.")
    next: str | None = Field(
        description="Value of `after` for the next page. Null: this is the last.",
        examples=["1357552800000:departures/HNL"],
    )


@dataclass(frozen=True, slots=True)
class Selection:
    """Which substreams of a job, in which order, and which page of them.

    Attributes:
        name: Pattern of names.
        query: Query of the substreams; None for all queries.
        states: States of the substreams; None for all states.
        sort: Column to sort by. Rows with equal values are sorted by query and name.
        descending: Whether the highest value comes first.
        after: Cursor: the ``next`` of the previous page.
        limit: Rows of a page.
    """

    name: str = "*"
    query: str | None = None
    states: Collection[SubstreamState] | None = None
    sort: Column = "name"
    descending: bool = False
    after: str = ""
    limit: int = 1000


_VALUES: dict[Column, Callable[[SubstreamRow], int | None]] = {
    "name": lambda row: None,
    "since": lambda row: row.since_ms,
    "watermark": lambda row: row.watermark,
    "max_event_time": lambda row: row.max_event_time,
    "last_event": lambda row: row.last_event_ms,
    "late": lambda row: row.counts.late,
}


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Position of a row in a sorted table: rows without a value first, then by value, query and name."""

    has_value: bool
    value: int
    query: str
    substream: str

    @classmethod
    def of(cls, row: SubstreamRow, column: Column) -> Self:
        """Return the position of a row in the table sorted by ``column``."""
        value = _VALUES[column](row)
        return cls(value is not None, value or 0, row.query, row.substream)

    @classmethod
    def parse(cls, cursor: str) -> Self | None:
        """Return the position that a cursor encodes, or None for an empty one."""
        if not cursor:
            return None
        value, _, member = cursor.partition(":")
        return cls(bool(value), int(value or 0), *substream_key(member))

    @property
    def cursor(self) -> str:
        """The position as text, see :data:`CURSOR`."""
        return f"{self.value if self.has_value else ''}:{self.query}/{self.substream}"


async def read_substreams(reader: Reader, job: str, selection: Selection) -> SubstreamTable:
    """Return a page of the table of substreams.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If it was deleted.
    """
    store = reader.store
    large = await store.reads.count_substreams(job) > LARGE_JOB
    async with reader.bulk_reads if large else nullcontext():
        if selection.sort == "name" and selection.states is None:  # only the rows of the page are read
            keys = await _page(selection, _keys_by_name(reader, job, selection))
            table = await store.reads.substreams(job, [key for _, key in keys])
            known = {(row.query, row.substream): row for row in table.rows}
            rows = [(position, known[key]) for position, key in keys if key in known]
        else:
            rows = await _page(selection, _rows_by_value(reader, job, selection))
            table = await store.reads.substreams(job, [])
    config = JobDocument.model_validate(await store.reads.config(job)).config()
    limit = selection.limit
    return SubstreamTable(
        **reader.members(job, table.state),
        substreams=[SubstreamStatus.of(row, table.max_watermark, config) for _, row in rows[:limit]],
        next=rows[limit - 1][0].cursor if len(rows) > limit else None,
    )


async def _keys_by_name(
    reader: Reader, job: str, selection: Selection
) -> AsyncIterator[list[tuple[Position, SubstreamKey]]]:
    async for keys in _selected_keys(reader, job, selection):
        yield [(Position(False, 0, *key), key) for key in keys]


async def _rows_by_value(
    reader: Reader, job: str, selection: Selection
) -> AsyncIterator[list[tuple[Position, SubstreamRow]]]:
    states = selection.states
    async for keys in _selected_keys(reader, job, selection):
        rows = (await reader.store.reads.substreams(job, keys)).rows
        yield [(Position.of(row, selection.sort), row) for row in rows if states is None or row.state in states]


async def _selected_keys(reader: Reader, job: str, selection: Selection) -> AsyncIterator[list[SubstreamKey]]:
    async for keys in reader.store.reads.substream_keys(job):
        yield [key for key in keys if selection.query in (None, key[0]) and matches(selection.name, key[1])]


async def _page(selection: Selection, parts: AsyncIterator[list[tuple[Position, Item]]]) -> list[tuple[Position, Item]]:
    """Return the first ``limit + 1`` items after the cursor, sorted, and keep at most a few pages in memory."""
    last, descending, limit = Position.parse(selection.after), selection.descending, selection.limit
    items: list[tuple[Position, Item]] = []
    async for part in parts:
        items += [item for item in part if last is None or (item[0] < last if descending else item[0] > last)]
        if len(items) > PAGES_KEPT * limit:
            items.sort(key=itemgetter(0), reverse=descending)
            del items[limit + 1 :]
    items.sort(key=itemgetter(0), reverse=descending)
    return items[: limit + 1]
