"""Arguments of the functions in Redis: columns of members and their values."""

from collections.abc import Iterable, Mapping
from dataclasses import astuple, fields
from typing import Any

from tidegate.domain.ledger import sum_by_hour
from tidegate.domain.rows import BatchAccounting, RowCounts
from tidegate.domain.state import RowsByDelay

Values = Mapping[str, int]


def members(query: str, names: Iterable[str]) -> list[str]:
    """Return the members of substreams: ``<query>/<substream>``."""
    return [f"{query}/{name}" for name in names]


def report_columns(query: str, names: Iterable[str], **columns: Values) -> dict[str, list[Any]]:
    """Return ``members`` and the columns, each in the order of the members; a missing value is None."""
    names = list(names)
    by_name = {
        column: [*map(values.get, names)] if values else [None] * len(names) for column, values in columns.items()
    }
    return {"members": members(query, names), **by_name}


def compact(column: list[Any]) -> list[Any]:
    """Return a column; an empty one if all its values are missing."""
    return [] if column.count(None) == len(column) else column


def delay_columns(query: str, delays: Mapping[str, RowsByDelay]) -> dict[str, list[Any]]:
    """Return ``delayed``, the members with delays, and ``delays``, alternating buckets and rows for each member."""
    flat = [[number for pair in rows for number in pair] for rows in delays.values()]
    return {"delayed": members(query, delays), "delays": flat}


def accounting_columns(query: str, accounting: BatchAccounting | None) -> dict[str, Any]:
    """Return the rows of a batch: ``counts`` by class, and rows by hour for the job and its substreams."""
    accounting = accounting or BatchAccounting("", (), ())
    classes = [field.name for field in fields(RowCounts)]
    columns = zip(*map(astuple, accounting.counts), strict=True) if accounting.counts else ([] for _ in classes)
    of_each = [
        {"place": place, **_hour(hour, rows, updated, late)}
        for place, hours in enumerate(accounting.hours, start=1)
        for hour, rows, updated, late in hours
        if rows
    ]
    attributed = sum_by_hour(of_hour for hours in accounting.hours for of_hour in hours if of_hour[1])
    of_job = [
        {**_hour(hour, rows, updated, late), "unattributed": str(max(0, rows - attributed.get(hour, (0,))[0]))}
        for hour, (rows, updated, late) in (sum_by_hour(accounting.all_hours) or attributed).items()
        if rows
    ]
    return {
        "members": members(query, accounting.substreams),
        "counts": dict(zip(classes, map(list, columns), strict=True)),
        "disposition": accounting.late_disposition,
        "hours_of_job": of_job,
        "hours_of_substreams": of_each,
    }


def _hour(hour: int, *counts: int) -> dict[str, Any]:
    """Return the rows of an hour as text, because sums may exceed the exact range of a double."""
    return {"hour": hour, **dict(zip(("rows", "updated", "late"), map(str, counts), strict=True))}
