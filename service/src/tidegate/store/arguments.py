"""Arguments of the functions in Redis: columns of members and their values."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import chain, repeat
from operator import attrgetter
from typing import Any

from tidegate.domain.ledger import sum_by_hour
from tidegate.domain.rows import BatchAccounting, RowCounts, RowsByDelay, RowsOfHour

Values = Mapping[str, int]
ROW_CLASSES = [field.name for field in fields(RowCounts)]


def members(query: str, names: Iterable[str]) -> list[str]:
    """Return the members of substreams: ``<query>/<substream>``."""
    prefix = f"{query}/"
    return [prefix + name for name in names]


def report_columns(query: str, names: Iterable[str], **columns: Values) -> dict[str, list[Any]]:
    """Return the list ``members``, and each column in the order of ``members``.

    A missing value is False, because a table in Lua ends at the first nil. A column without values is empty.
    """
    names = list(names)
    by_name = {column: [*map(values.get, names, repeat(False))] if values else [] for column, values in columns.items()}
    return {"members": members(query, names), **by_name}


def join_columns(parts: Sequence[Mapping[str, list[Any]]]) -> dict[str, list[Any]]:
    """Return the columns of several reports as the columns of one report. Each part has the list ``members``."""
    return {name: _join(name, parts) for name in parts[0]}


def _join(name: str, parts: Sequence[Mapping[str, list[Any]]]) -> list[Any]:
    if not any(part[name] for part in parts):
        return []
    return [*chain.from_iterable(part[name] or repeat(False, len(part["members"])) for part in parts)]


def delay_columns(query: str, delays: Mapping[str, RowsByDelay]) -> dict[str, list[Any]]:
    """Return ``delayed``, the members with delays, and ``delays``, alternating buckets and rows for each member."""
    flat = [[number for pair in rows for number in pair] for rows in delays.values()]
    return {"delayed": members(query, delays), "delays": flat}


def accounting_columns(query: str, accounting: BatchAccounting | None) -> dict[str, Any]:
    """Return the rows of a batch: ``counts`` by class, and rows by hour for the job and its substreams."""
    accounting = accounting or BatchAccounting("", (), ())
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
        "disposition": accounting.late_disposition,
        "hours_of_job": of_job,
        "hours": {
            "places": places,
            "hours": hours,
            "rows": rows,
            "updated": updated if any(updated) else (),
            "late": late if any(late) else (),
        },
    }


def _distinct(hours: Sequence[RowsOfHour]) -> Iterable[Sequence[int]]:
    """Return the hours with rows, each once."""
    if len(hours) > 1:
        return [(hour, *counts) for hour, counts in sum_by_hour(hours).items() if counts[0]]
    return [of_hour for of_hour in hours if of_hour[1]]
