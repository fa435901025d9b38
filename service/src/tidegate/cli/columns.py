"""Columns of a file of rows, CSV or Parquet, as exact numbers."""

import csv
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import typer

from tidegate import times

Cell = Decimal | str | None
MS_PER_UNIT = {"s": Decimal(1000), "ms": Decimal(1), "us": Decimal("0.001"), "ns": Decimal("0.000001")}


def amount(text: str) -> Decimal:
    """A length of time: a number, in the unit of the file's times; or 90s, 30m, 2h, 1d, which are milliseconds then.

    :raises ValueError: for anything else.
    """
    try:
        return _finite(Decimal(text))
    except InvalidOperation:
        return Decimal(str(times.duration_s(text))) * times.MS


def instant(value: Any) -> Decimal | None:
    """A number as it is written, or a moment in ISO 8601 or of Parquet, in epoch milliseconds; None for nothing.

    :raises ValueError: for anything else.
    """
    if value is None or value == "":
        return None
    if isinstance(value, datetime):
        return Decimal(times.moment(value.isoformat() if value.tzinfo else f"{value.isoformat()}Z"))
    if isinstance(value, date):
        return Decimal(times.moment(value.isoformat()))
    try:
        # A float is taken for the shortest number that reads as it: 0.1 is 0.1.
        return _finite(Decimal(repr(value) if isinstance(value, float) else str(value)))
    except InvalidOperation:
        return Decimal(times.moment(str(value)))


def read(path: Path, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The values of these columns, row by row, in the order of the file.

    :raises typer.BadParameter: for a file that cannot be read, or has no such column.
    """
    try:
        yield from (_parquet if path.suffix == ".parquet" else _csv)(path, names)
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path} ({error.strerror or error})") from None


def _csv(path: Path, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        header = next(rows, [])
        _check(path, names, header)
        places = [header.index(name) for name in names]
        for row in rows:
            if row:
                yield tuple(row[place] if place < len(row) else None for place in places)


def _parquet(path: Path, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    try:
        from pyarrow import types
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise typer.BadParameter("Parquet needs pyarrow: pip install 'tidegate[parquet]', or write CSV") from None
    with ParquetFile(path) as file:
        schema = file.schema_arrow
        _check(path, names, schema.names)
        units = [schema.field(name).type for name in names]
        scales = [MS_PER_UNIT[kind.unit] if types.is_timestamp(kind) else None for kind in units]
        for batch in file.iter_batches(columns=list(dict.fromkeys(names))):
            columns = [
                batch.column(name) if scale is None else batch.column(name).cast("int64")
                for name, scale in zip(names, scales, strict=True)
            ]
            for cells in zip(*(column.to_pylist() for column in columns), strict=True):
                yield tuple(
                    cell if scale is None or cell is None else cell * scale
                    for cell, scale in zip(cells, scales, strict=True)
                )


def _check(path: Path, names: Sequence[str], there: Sequence[str]) -> None:
    for name in names:
        if name not in there:
            raise typer.BadParameter(f"{path} has no column {name!r}; it has {', '.join(there) or 'none'}")


def _finite(number: Decimal) -> Decimal:
    if not number.is_finite():
        raise ValueError(f"{number} is no time")
    return number
