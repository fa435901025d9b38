"""The columns of commands: lists with an entry per substream, cut into pieces.

Redis serves no other client while a function runs. The coordinator therefore stores the columns of a large command in
pieces, and the command visits one piece in each of its calls (``lua/steps.lua``). The coordinator also combines the
staged reports of a large batch, because a function cannot combine them in pieces.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, chain, compress, repeat
from operator import attrgetter
from typing import Any

import msgspec

from tidegate.domain.completeness import BatchAccounting, RowCounts, RowsOfHour, sum_by_hour
from tidegate.domain.job import Staged, raise_each, set_each
from tidegate.store.library import CONSTANTS

Columns = Mapping[str, Any]
Column = Sequence[int | None] | None
"""Values of substreams in the order of their names; None: a substream has no value, or no substream has a value."""
Delays = Sequence[Sequence[tuple[int, int]] | None] | None
"""Pairs of a delay bucket and its number of rows, for each substream."""

ROW_CLASSES = [field.name for field in fields(RowCounts)]
BUCKETS_EACH = 10
"""Number of delay buckets that take a function as long as one member."""
HOURS_EACH = 4
"""Number of entries of the ledger that take a function as long as one member."""


@dataclass(slots=True)
class Pieces:
    """The columns of a command, in pieces.

    Attributes:
        each: The pieces. A command with one piece has its columns in its arguments.
        ranges: For each kind of columns, its first piece and its number of pieces.
        size: Number of members of the command.
        others: Small arguments of the command.
        combined: The combined reports of the batch that the command commits: their version, the number of their row
            counts, and the ranges of their pieces. None: the command combines them.
    """

    each: list[Any] = field(default_factory=list)
    ranges: dict[str, dict[str, int]] = field(default_factory=dict)
    size: int = 0
    others: Columns = field(default_factory=dict)
    combined: Mapping[str, Any] | None = None

    @property
    def inline(self) -> Columns | None:
        """The columns as arguments of the command; None if they must be stored."""
        if len(self.each) > 1 or self.combined is not None:
            return None
        return {**self.each[0], **self.others} if self.each else self.others

    @property
    def stored(self) -> dict[str, Any]:
        """The arguments of the command, if the pieces are stored."""
        return {**self.ranges, **self.others, "size": self.size, "joined": self.combined}

    def encoded(self) -> "Pieces":
        """Return the pieces as MessagePack, unless they are arguments of the command."""
        if self.inline is not None:
            return self
        return replace(self, each=[msgspec.Raw(msgspec.msgpack.encode(piece)) for piece in self.each])

    def combined_with(self, version: str, count: int, kinds: Mapping[str, Sequence[Columns]]) -> "Pieces":
        """Return these pieces and those of combined reports; see :attr:`combined`."""
        both = replace(self, each=[*self.each])
        both.combined = {**both.add(**kinds), "version": version, "count": count}
        return both

    def add(self, **kinds: Sequence[Columns]) -> dict[str, dict[str, int]]:
        """Add pieces of several kinds, and return their ranges. A piece can have columns of each kind."""
        first = len(self.each)
        count = max(map(len, kinds.values()))
        for number in range(count):
            of_kinds = (pieces[number] for pieces in kinds.values() if number < len(pieces))
            self.each.append({name: column for piece in of_kinds for name, column in piece.items()})
        return {kind: {"first": first, "count": len(pieces)} for kind, pieces in kinds.items()}


def _piece(entries: int) -> int:
    """Return the maximum number of entries of a piece of columns."""
    return int(CONSTANTS["ENTRIES" if entries <= CONSTANTS["ENTRIES"] else "PIECE"])


def cut(columns: Mapping[str, list[Any]], weights: Iterable[int] | None = None) -> list[Columns]:
    """Return columns of equal length, or without entries, in pieces of a bounded number of entries.

    ``weights`` are the numbers of entries for which each entry counts; None: 1. There is at least one piece.
    """
    length = max(map(len, columns.values()))
    if weights is None:
        starts = [*range(0, length, _piece(length))] or [0]
    else:
        totals = [*accumulate(weights)]
        size, starts, before = _piece(totals[-1] if totals else 0), [0], 0
        for place, total in enumerate(totals):
            if total - before > size and place > starts[-1]:
                starts.append(place)
                before = total
    ends = [*starts[1:], length]
    return [
        {name: column[start:end] for name, column in columns.items()} for start, end in zip(starts, ends, strict=True)
    ]


def cut_delays(delayed: list[str], delays: list[list[int]]) -> list[Columns]:
    """Return the delays of members in pieces: ``delayed``, and ``delays``, alternating buckets and rows."""
    weights = (1 + len(flat) // (2 * BUCKETS_EACH) for flat in delays)
    return cut({"delayed": delayed, "delays": delays}, weights)


def members(query: str, names: Iterable[str]) -> list[str]:
    """Return the members of substreams: ``<query>/<substream>``."""
    prefix = f"{query}/"
    return [prefix + name for name in names]


def aligned(query: str, names: Sequence[str], **columns: Column) -> dict[str, list[Any]]:
    """Return ``members`` and columns of equal length.

    A missing value is False, because a table in Lua ends at the first nil. A column without values is empty.
    """
    return {"members": members(query, names), **{name: _values_of(column) for name, column in columns.items()}}


def _values_of(column: Column) -> list[Any]:
    if column is None:
        return []
    return [False if value is None else value for value in column] if None in column else [*column]


def report_pieces(
    query: str, names: Sequence[str], delays: Delays = None, *, needed: Sequence[str], **columns: Column
) -> Pieces:
    """Return a report in pieces, each with all columns.

    Substreams without a value in one of the ``needed`` columns are left out, because they have no effect.
    """
    delayed = members(query, compress(names, delays or ()))
    given = [column for name in needed if (column := columns[name]) is not None]
    if all(None in column for column in given):
        has_value = [any(value is not None for value in row) for row in zip(*given, strict=True)]
        names = [*compress(names, has_value)]
        columns = {name: column and [*compress(column, has_value)] for name, column in columns.items()}
    of_members = aligned(query, names, **columns)
    flat = [[number for pair in rows for number in pair] for rows in delays or () if rows]
    pieces = Pieces(size=len(names))
    pieces.ranges = pieces.add(members=cut(of_members), delayed=cut_delays(delayed, flat) if delayed else [])
    nothing: Columns = dict.fromkeys((*of_members, "delayed", "delays"), ())
    pieces.each = [{**nothing, **of_piece} for of_piece in pieces.each]
    return pieces


def direct_pieces(names: Sequence[str], delays: Delays = None, **columns: Column) -> Pieces:
    """Return a report without a batch: ``max_event_times``, ``min_event_times``, ``watermarks`` and delays."""
    return report_pieces("", names, delays, needed=("max_event_times", "watermarks"), **columns)


def partition_pieces(query: str, names: Sequence[str], delays: Delays = None, **columns: Column) -> Pieces:
    """Return a report of a partition: ``max_event_times``, ``watermarks``, ``rows``, ``future_rows`` and delays."""
    pieces = report_pieces(query, names, delays, needed=[*columns], **columns)
    # Each piece is staged as it is. There may be more pieces with delays than with members.
    pieces.ranges = {"members": {"first": 0, "count": len(pieces.each)}}
    return pieces


def join_columns(parts: Sequence[Columns]) -> dict[str, list[Any]]:
    """Return the columns of several reports as the columns of one report. Each part has the list ``members``."""
    return {name: _join(name, parts) for name in parts[0]}


def _join(name: str, parts: Sequence[Columns]) -> list[Any]:
    if not any(part[name] for part in parts):
        return []
    return [*chain.from_iterable(part[name] or repeat(False, len(part["members"])) for part in parts)]


def member_pieces(query: str, names: Sequence[str], **columns: Column) -> Pieces:
    """Return columns of substreams in pieces."""
    pieces = Pieces(size=len(names))
    pieces.ranges = pieces.add(members=cut(aligned(query, names, **columns)))
    return pieces


def accounting_pieces(query: str, given: BatchAccounting | None) -> Pieces:
    """Return the accounting of a batch in pieces."""
    accounting = _accounting(query, given)
    members, counts, hours = accounting["members"], accounting["counts"], accounting["hours"]
    uncounted = given is None or (given.frames is None and bool(given.substreams))
    others = {"disposition": given.late_disposition if given else "", "uncounted": uncounted}
    pieces = Pieces(size=len(members), others=others)
    of_members = [
        {"members": of["members"], "counts": {name: column for name, column in of.items() if name != "members"}}
        for of in cut({"members": members, **counts})
    ]
    of_job = cut({"hours_of_job": accounting["hours_of_job"]})
    of_hours = [_with_members(members, of) for of in _cut_hours(hours)]
    of_frames = cut({"frames": accounting["frames"]})
    if len(of_members) == len(of_job) == len(of_hours) == len(of_frames) == 1:
        pieces.ranges = pieces.add(members=[accounting])
        return pieces
    none: Columns = {"members": [], "counts": {}, "hours_of_job": [], "hours": dict.fromkeys(hours, ()), "frames": []}
    parts = (*of_members, *of_job, *of_hours, *of_frames)
    pieces.ranges = pieces.add(members=[{**none, **part} for part in parts])
    return pieces


def _accounting(query: str, accounting: BatchAccounting | None) -> dict[str, Any]:
    """Return the rows of a batch: ``counts`` by class, and rows by hour for the job and its substreams."""
    accounting = accounting or BatchAccounting((), ())
    counts = {name: [*map(attrgetter(name), accounting.counts)] for name in ROW_CLASSES}
    of_each = [
        (place, *of_hour) for place, hours in enumerate(accounting.hours, start=1) for of_hour in _distinct(hours)
    ]
    attributed = sum_by_hour(of_hour for _, *of_hour in of_each)
    of_all = sum_by_hour(accounting.all_hours) or attributed
    of_each = [row for row in of_each if of_all.get(row[1], (0,))[0]]
    places, hours, rows, updated, late = zip(*of_each, strict=True) if of_each else ((),) * 5
    of_job = [
        {
            "hour": hour,
            # Sums may exceed the exact range of a double.
            "rows": str(of_rows),
            "updated": str(of_updated),
            "late": str(of_late),
            "unattributed": str(max(0, of_rows - attributed.get(hour, (0,))[0])),
        }
        for hour, (of_rows, of_updated, of_late) in of_all.items()
        if of_rows
    ]
    return {
        "members": members(query, accounting.substreams),
        "counts": {name: column for name, column in counts.items() if any(column)},
        "hours_of_job": of_job,
        "hours": {
            "places": places,
            "hours": hours,
            "rows": rows,
            "updated": updated if any(updated) else (),
            "late": late if any(late) else (),
        },
        "frames": [
            {"time": time, "rows": str(of_rows), "updated": str(of_updated), "late": str(of_late)}
            for time, (of_rows, of_updated, of_late) in sum_by_hour(accounting.frames or ()).items()
            if of_rows
        ],
    }


def _distinct(hours: Sequence[RowsOfHour]) -> Iterable[Sequence[int]]:
    """Return the hours with rows, each once."""
    if len(hours) > 1:
        return [(hour, *counts) for hour, counts in sum_by_hour(hours).items() if counts[0]]
    return [of_hour for of_hour in hours if of_hour[1]]


def _cut_hours(hours: Mapping[str, Sequence[int]]) -> list[Columns]:
    size = HOURS_EACH * _piece(len(hours["places"]) // HOURS_EACH)
    starts = [*range(0, len(hours["places"]), size)] or [0]
    return [{name: column[start : start + size] for name, column in hours.items()} for start in starts]


def _with_members(members: Sequence[str], hours: Mapping[str, Sequence[int]]) -> Columns:
    """Return entries of the ledger with their own members."""
    places = dict.fromkeys(hours["places"])
    of_piece = {place: number for number, place in enumerate(places, start=1)}
    return {
        "members": [members[place - 1] for place in places],
        "hours": {**hours, "places": [of_piece[place] for place in hours["places"]]},
    }


def combine_reports(reports: Iterable[Columns]) -> tuple[int, dict[str, list[Columns]]]:
    """Combine the staged reports of a batch, as ``combine`` in ``lua/batches.lua``.

    Returns:
        The number of row counts, one per partition and member, and the pieces of each kind of columns.
    """
    staged, flat_delays, delays = Staged(), dict[tuple[int, str], list[int]](), dict[str, Counter[int]]()
    reports = sorted(reports, key=lambda report: report["order"])
    for report in reports:
        raise_each(staged.event_times, _values(report, "members", "event_times"))
        raise_each(staged.watermarks, _values(report, "members", "watermarks"))
        partition = report["partition"]
        set_each(staged.rows, partition, _values(report, "counted", "rows"))
        set_each(staged.future_rows, partition, _values(report, "counted", "future_rows"))
        set_each(flat_delays, partition, _values(report, "delayed", "delays"))
    for (_, member), flat in flat_delays.items():
        of_member = delays.setdefault(member, Counter())
        for bucket, rows in zip(flat[::2], flat[1::2], strict=True):
            of_member[bucket] += rows
    names = [*dict.fromkeys(member for report in reports for member in report["counted"])]
    columns = {
        "members": names,
        "max_event_times": [staged.event_times.get(name, False) for name in names],
        "watermarks": [staged.watermarks.get(name, False) for name in names] if staged.watermarks else [],
    }
    summed = [[number for pair in rows.items() for number in pair] for rows in delays.values()]
    return len(staged.rows), {
        "members": cut(columns),
        "delayed": cut_delays([*delays], summed) if delays else [],
        "rows": _cut_rows(staged),
    }


def _values(report: Columns, members: str, column: str) -> dict[str, Any]:
    """Return the values of a column by member."""
    of_members = zip(report[members], report[column], strict=False)  # a column without values is empty
    return {member: value for member, value in of_members if value is not None}


def _cut_rows(staged: Staged) -> list[Columns]:
    """Return the numbers of rows in pieces. In a piece, each partition has a list of members and a list of numbers."""
    pieces: list[Columns] = []
    left = 0
    for name, by_partition in (("rows", staged.rows), ("future_rows", staged.future_rows)):
        for (partition, member), count in by_partition.items():
            if not left:
                pieces.append({"rows": {}, "future_rows": {}})
                left = CONSTANTS["PIECE"]
            members, counts = pieces[-1][name].setdefault(partition, ([], []))
            members.append(member)
            counts.append(count)
            left -= 1
    return [{name: [*of_partition.values()] for name, of_partition in each.items()} for each in pieces]
