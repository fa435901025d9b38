"""Arguments of the scripts: text, with nothing for None, and columns that begin with their length."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tidegate.domain.journal import Why
from tidegate.domain.ledger import added_up
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
    """Whether late rows were diverted; and columns of rows by hour: of substreams (their places from 1, hours, rows,
    updated, late), and of the job (hours, rows, updated, late, and those that no substream has).
    """
    if accounting is None:
        return ["0", *["0"] * 10]
    of_each = [(place, *rows) for place, hours in enumerate(accounting.hours, start=1) for rows in hours if rows[1]]
    told = added_up(rows for _, *rows in of_each)
    of_all = added_up(accounting.all_hours) or told
    of_job = [
        (hour, *counts, max(0, counts[0] - told.get(hour, (0,))[0])) for hour, counts in of_all.items() if counts[0]
    ]
    diverted = "1" if accounting.late_disposition == "diverted" else "0"
    return [diverted, *_columns(of_each, 5), *_columns(of_job, 5)]


def _columns(rows: Sequence[Sequence[int]], width: int) -> Iterator[str]:
    for values in zip(*rows, strict=True) if rows else [()] * width:
        yield from column(map(str, values))


def entries(
    query: str,
    max_event_times: Values,
    watermarks: Values,
    min_event_times: Values,
    names: Mapping[str, Any] | None = None,
) -> list[str]:
    """The columns of a report: members, highest event times, lowest ones, ready-made watermarks."""
    named = dict.fromkeys([*max_event_times, *watermarks]) if names is None else names
    return [
        *column(members(query, named)),
        *column(text(max_event_times.get(name)) for name in named),
        *column([text(min_event_times.get(name)) for name in named] if min_event_times else []),
        *column([text(watermarks.get(name)) for name in named] if watermarks else []),
    ]
