"""Columns of a CSV or Parquet file, read as exact numbers."""

import csv
from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, NamedTuple

import typer

from tidegate import times

UNITS_PER_S = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


class Amount(NamedTuple):
    """A time or a duration.

    Attributes:
        number: A number in the unit of the file; milliseconds if ``has_unit``.
        has_unit: Whether the text says the unit, as ISO 8601 or ``90s`` does.
    """

    number: Decimal
    has_unit: bool


def parse_amount(text: str) -> Amount:
    """Return a duration: a number in the unit of the file, or milliseconds from 90s, 30m, 2h, 1d.

    Raises:
        ValueError: If the text is not a duration.
    """
    try:
        return Amount(_finite(Decimal(text)), False)
    except InvalidOperation:
        return Amount(Decimal(str(times.parse_duration_s(text))) * times.MS, True)


def parse_instant(value: Any) -> Amount | None:
    """Return a time: a number unchanged, or Unix milliseconds from ISO 8601, a date or a timestamp.

    Return None for an empty value.

    Raises:
        ValueError: If the value is not a time.
    """
    match value:
        case None | "":
            return None
        case Amount():
            return value
        case date():
            return Amount(Decimal(times.parse_time(value.isoformat())), True)
    try:
        # repr() gives the shortest decimal that parses to the same float: 0.1 stays 0.1.
        return Amount(_finite(Decimal(repr(value) if isinstance(value, float) else str(value))), False)
    except InvalidOperation:
        return Amount(Decimal(times.parse_time(str(value))), True)


def read_columns(path: Path, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the values of these columns, row by row.

    Raises:
        typer.BadParameter: If the file cannot be read, or lacks a column.
    """
    try:
        yield from (_read_parquet if path.suffix == ".parquet" else _read_csv)(path, names)
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path} ({error.strerror or error})") from None


def _read_csv(path: Path, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        header = next(rows, [])
        _check_columns(path, names, header)
        places = [header.index(name) for name in names]
        for row in rows:
            if row:
                yield tuple(row[place] if place < len(row) else None for place in places)


def _read_parquet(path: Path, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    try:
        from pyarrow import types
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise typer.BadParameter(
            "Parquet needs pyarrow; install it with pip install 'tidegate[parquet]', or use CSV"
        ) from None
    with ParquetFile(path) as file:
        schema = file.schema_arrow
        _check_columns(path, names, schema.names)
        column_types = [schema.field(name).type for name in names]
        units = [UNITS_PER_S[kind.unit] if types.is_timestamp(kind) else None for kind in column_types]
        for batch in file.iter_batches(columns=list(dict.fromkeys(names))):
            columns = [
                batch.column(name) if unit is None else batch.column(name).cast("int64")
                for name, unit in zip(names, units, strict=True)
            ]
            for cells in zip(*(column.to_pylist() for column in columns), strict=True):
                # Timestamps become whole milliseconds, rounded down: the Spark client classifies rows by these.
                yield tuple(
                    cell if unit is None or cell is None else Amount(Decimal(cell * times.MS // unit), True)
                    for cell, unit in zip(cells, units, strict=True)
                )


def _check_columns(path: Path, names: Sequence[str], existing: Sequence[str]) -> None:
    for name in names:
        if name not in existing:
            raise typer.BadParameter(f"{path} has no column {name!r}; its columns: {', '.join(existing) or 'none'}")


def _finite(number: Decimal) -> Decimal:
    if not number.is_finite():
        raise ValueError(f"{number} is not a time")
    return number
