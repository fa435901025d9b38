"""Arguments of the scripts: text, with nothing for None, and columns that begin with their length."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidegate.domain.journal import Why
from tidegate.domain.query import DelayedRows
from tidegate.domain.records import Accounting

Values = Mapping[str, int]


def text(value: int | None) -> str:
    return "" if value is None else str(value)


def of_why(why: Why) -> tuple[str, str]:
    return why.actor, why.reason


def members(query: str, names: Sequence[str] | Mapping[str, Any]) -> list[str]:
    return [f"{query}/{name}" for name in names]


def column(values: Iterable[str]) -> list[str]:
    listed = list(values)
    return [str(len(listed)), *listed]


def delays_of(query: str, delays: Mapping[str, DelayedRows]) -> list[str]:
    """The columns of delays: members, and of each its buckets and their rows in one text."""
    texts = (",".join(str(number) for pair in rows for number in pair) for rows in delays.values())
    return [*column(members(query, delays)), *column(texts)]


def by_hour_of(accounting: Accounting | None) -> list[str]:
    """Whether late rows were diverted; and the columns of rows by hour: which substream (from 1), hour, rows, ..."""
    late_went = "dropped" if accounting is None else accounting.late_went
    found = [
        (str(place), *map(str, rows))
        for place, of_each in enumerate(accounting.hours if accounting else (), start=1)
        for rows in of_each
    ]
    columns = zip(*found, strict=True) if found else ((),) * 5
    return ["1" if late_went == "diverted" else "0", *(argument for values in columns for argument in column(values))]


def entries(
    query: str, tops: Values, watermarks: Values, bottoms: Values, names: Mapping[str, Any] | None = None
) -> list[str]:
    """The columns of a report: members, highest event times, lowest ones, ready-made watermarks."""
    named = dict.fromkeys([*tops, *watermarks]) if names is None else names
    return [
        *column(members(query, named)),
        *column(text(tops.get(name)) for name in named),
        *column([text(bottoms.get(name)) for name in named] if bottoms else []),
        *column([text(watermarks.get(name)) for name in named] if watermarks else []),
    ]
