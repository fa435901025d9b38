"""Pieces: the columns of a large command, cut so that no function call works for long (``lua/parts/steps.lua``).

Redis serves no other client while a function runs. The coordinator therefore stores the columns of a large command in
pieces, and the command visits one piece in each of its calls. The coordinator also joins the staged reports of a large
batch, because a function cannot join them in pieces.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from tidegate.domain.staging import Staged, raise_each, set_each
from tidegate.store.library import CONSTANTS

Columns = Mapping[str, Any]
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
        joined: The joined reports of the batch that the command commits: their version, the number of their row counts,
            and the ranges of their pieces. None: the command joins them.
    """

    each: list[Columns] = field(default_factory=list)
    ranges: dict[str, dict[str, int]] = field(default_factory=dict)
    size: int = 0
    joined: Mapping[str, Any] | None = None

    @property
    def inline(self) -> Columns | None:
        """The columns, if they are arguments of the command; None if they must be stored."""
        if len(self.each) > 1 or self.joined is not None:
            return None
        return self.each[0] if self.each else {}

    @property
    def stored(self) -> dict[str, Any]:
        """The arguments of the command, if the pieces are stored."""
        return {**self.ranges, "size": self.size, "joined": self.joined}

    def joined_with(self, version: str, count: int, kinds: Mapping[str, Sequence[Columns]]) -> "Pieces":
        """Return these pieces and those of joined reports; see :attr:`joined`."""
        both = replace(self, each=[*self.each])
        both.joined = {**both.add(**kinds), "version": version, "count": count}
        return both

    def add(self, **kinds: Sequence[Columns]) -> dict[str, dict[str, int]]:
        """Add pieces of several kinds, and return their ranges. A piece can have columns of each kind."""
        first = len(self.each)
        count = max(map(len, kinds.values()))
        for number in range(count):
            of_kinds = (pieces[number] for pieces in kinds.values() if number < len(pieces))
            self.each.append({name: column for piece in of_kinds for name, column in piece.items()})
        return {kind: {"first": first, "count": len(pieces)} for kind, pieces in kinds.items()}


def piece() -> int:
    """Return the number of entries of a piece."""
    return int(CONSTANTS["PIECE"])


def cut(columns: Mapping[str, list[Any]], weights: Iterable[int] | None = None) -> list[Columns]:
    """Return columns of equal length, or without entries, in pieces of at most :func:`piece` entries.

    ``weights`` are the numbers of entries for which each entry counts; None: 1. There is at least one piece.
    """
    length = max(map(len, columns.values()))
    if weights is None:
        starts = [*range(0, length, piece())] or [0]
    else:
        starts, before = [0], 0
        for place, total in enumerate(accumulate(weights)):
            if total - before > piece() and place > starts[-1]:
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


def report_pieces(columns: Mapping[str, list[Any]], delayed: Columns) -> Pieces:
    """Return a report in pieces. Each piece has all columns."""
    of_delays = cut_delays(delayed["delayed"], delayed["delays"]) if delayed else []
    pieces = Pieces(size=len(columns["members"]))
    pieces.ranges = pieces.add(members=cut(columns), delayed=of_delays)
    nothing: Columns = dict.fromkeys((*columns, "delayed", "delays"), ())
    pieces.each = [{**nothing, **columns} for columns in pieces.each]
    return pieces


def member_pieces(columns: Mapping[str, list[Any]]) -> Pieces:
    """Return columns of members in pieces."""
    pieces = Pieces(size=len(columns["members"]))
    pieces.ranges = pieces.add(members=cut(columns))
    return pieces


def accounting_pieces(accounting: Columns) -> Pieces:
    """Return the accounting of a batch (:func:`tidegate.store.arguments.accounting_columns`) in pieces."""
    members, counts, hours = accounting["members"], accounting["counts"], accounting["hours"]
    none: Columns = {"members": [], "counts": {}, "hours_of_job": [], "hours": dict.fromkeys(hours, ())}
    of_members = [
        {"members": of["members"], "counts": {name: column for name, column in of.items() if name != "members"}}
        for of in cut({"members": members, **counts})
    ]
    of_job = cut({"hours_of_job": accounting["hours_of_job"]})
    of_hours = [_with_members(members, of) for of in _cut_hours(hours)]
    pieces = Pieces(size=len(members))
    is_small = len(of_members) == len(of_job) == len(of_hours) == 1
    parts = [accounting] if is_small else [{**none, **part} for part in (*of_members, *of_job, *of_hours)]
    pieces.ranges = pieces.add(members=parts)
    return pieces


def _cut_hours(hours: Mapping[str, Sequence[int]]) -> list[Columns]:
    size = HOURS_EACH * piece()
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


def join_reports(reports: Iterable[Columns]) -> tuple[int, dict[str, list[Columns]]]:
    """Join the staged reports of a batch, as ``join`` in ``lua/parts/staging.lua``.

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
    listed = dict.fromkeys(member for report in reports for member in report["members"])
    names = [member for member in listed if member in staged.event_times or member in staged.watermarks]
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
                left = piece()
            members, counts = pieces[-1][name].setdefault(partition, ([], []))
            members.append(member)
            counts.append(count)
            left -= 1
    return [{name: [*of_partition.values()] for name, of_partition in each.items()} for each in pieces]
