"""Rows and policies of a simulation, read from files and scaled to integers."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tidegate.cli.columns import Amount, parse_instant, read_columns

if TYPE_CHECKING:
    from tidegate.domain.config import JobConfig
    from tidegate.domain.simulate import Row

Cells = tuple[Decimal, str, Decimal | None]
"""Event time, substream and arrival time of a row."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a file.

    Attributes:
        rows: Rows with integer times.
        left_out: Number of rows without an event time.
        scale: Number of integer units in one unit of the file.
        first: The event time of the first row, as in the file; None if there are no rows.
    """

    rows: list["Row"]
    left_out: int
    scale: int
    first: Amount | None

    def scaled(self, number: Decimal) -> int:
        """Return a number in the unit of the file as an integer."""
        return _scaled(number, self.scale)


def read_rows(
    file: Path, event_time: str, substream: str | None, arrival: str | None, numbers: Iterable[Decimal]
) -> Rows:
    """Return the rows of a file, with a scale at which their times and ``numbers`` are integers.

    Raises:
        typer.BadParameter: If a value is not valid.
    """
    from tidegate.domain.simulate import Row

    cells, left_out, has_unit = _read_cells(file, event_time, substream, arrival)
    times = [number for at, _, arrived in cells for number in (at, arrived) if number is not None]
    decimals = max((-_exponent(number) for number in [*times, *numbers]), default=0)
    scale: int = 10 ** max(decimals, 0)
    rows = [
        Row(_scaled(at, scale), name, 0 if arrived is None else _scaled(arrived, scale)) for at, name, arrived in cells
    ]
    return Rows(rows, left_out, scale, Amount(cells[0][0], has_unit) if cells else None)


def _read_cells(
    file: Path, event_time: str, substream: str | None, arrival: str | None
) -> tuple[list[Cells], int, bool]:
    """Return the cells of the rows, the number of rows without an event time, and whether the times have a unit."""
    names = [event_time, *(name for name in (substream, arrival) if name is not None)]
    read: list[Cells] = []
    left_out, has_unit = 0, None
    for number, row in enumerate(read_columns(file, names), start=1):
        values = list(row)
        try:
            at = parse_instant(values.pop(0))
            name = "" if substream is None else str(values.pop(0))
            arrived = None if arrival is None else parse_instant(values.pop(0))
            for instant in filter(None, (at, arrived)):
                if instant.has_unit != (instant.has_unit if has_unit is None else has_unit):
                    raise ValueError("this file has both numbers and ISO 8601 times; write all times in one form")
                has_unit = instant.has_unit
        except ValueError as error:
            raise typer.BadParameter(f"{file}, row {number}: {error}") from None
        if arrival is not None and arrived is None:
            raise typer.BadParameter(f"{file}, row {number}: {arrival} has no value; every row needs an arrival time")
        if at is None:
            left_out += 1
        else:
            read.append((at.number, name, None if arrived is None else arrived.number))
    return read, left_out, bool(has_unit)


def read_policy(path: Path, scale: int, *, timed: bool) -> "JobConfig":
    """Return the configuration in a file, with its times scaled.

    Args:
        path: A file with a job configuration.
        scale: Number of integer units in one unit of the file of rows.
        timed: Whether the rows have arrival times.

    Raises:
        typer.BadParameter: If the configuration is not valid, uses the policy ``reported``, or needs arrival times that
            the rows do not have.
    """
    from tidegate.domain.policies import Reported

    config = _read_config(path, scale)
    policies = config.policies()
    if any(isinstance(policy, Reported) for policy in policies):
        raise typer.BadParameter(
            f"{path}: the rows have no watermarks, which the policy `reported` needs; use another policy"
        )
    if timed:
        return config
    limits = (config.idle_timeout_ms, config.max_retention_ms)
    if any(limits) or any(policy.follows_clock for policy in policies):
        raise typer.BadParameter(f"{path}: this configuration needs arrival times; add --arrival COLUMN")
    return replace(config, max_future_skew_ms=None)


def _read_config(path: Path, scale: int) -> "JobConfig":
    from pydantic import ValidationError

    from tidegate.domain.config import DAY_MS
    from tidegate.views.config import parsed_config

    try:
        document = json.loads(path.read_text(), parse_float=Decimal)
        if isinstance(document, dict):
            document.setdefault("delay_half_life_ms", DAY_MS)
        return parsed_config(_scaled_times(document, scale))
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path} ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise typer.BadParameter(f"{path} is not a job configuration: {place}: {first['msg']}") from None
    except ValueError as error:
        raise typer.BadParameter(f"{path} is not JSON ({error})") from None


def _scaled_times(document: Any, scale: int, name: str = "") -> Any:
    if isinstance(document, dict):
        return {key: _scaled_times(value, scale, key) for key, value in document.items()}
    if isinstance(document, list):
        return [_scaled_times(value, scale) for value in document]
    if name.endswith("_ms") and isinstance(document, int | Decimal) and not isinstance(document, bool):
        return _scaled(Decimal(document), scale)
    return float(document) if isinstance(document, Decimal) else document


def plain_number(number: Decimal | None) -> int | float | None:
    """Return a number for JSON, as an integer if it is whole."""
    if number is None:
        return None
    return int(number) if number == number.to_integral_value() else float(number)


def _exponent(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int), "the number is finite"
    return exponent


def _scaled(number: Decimal, scale: int) -> int:
    numerator, denominator = number.as_integer_ratio()
    return numerator * scale // denominator
