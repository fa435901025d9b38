"""``tidegate simulate``: the effect of lags and policies on the rows of a file, which are read as exact numbers."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import track

from tidegate import times
from tidegate.cli.coordinator import NOT_REACHED
from tidegate.cli.options import Force, show_json, show_table

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
        typer.BadParameter: If the configuration is not valid, uses the policy ``reported`` or ``arrival_target``, or
            needs arrival times that the rows do not have.
    """
    from tidegate.domain.policies import Reported

    config = _read_config(path, scale)
    policies = config.policies()
    if any(isinstance(policy, Reported) for policy in policies):
        raise typer.BadParameter(
            f"{path}: the rows have no watermarks, which the policy `reported` needs; use another policy"
        )
    if config.arrival_target is not None:
        raise typer.BadParameter(
            f"{path}: arrival_target acts in batches, which these rows do not have; remove it, or use tidegate-audit"
        )
    if timed:
        return config
    limits = (config.idle_timeout_ms, config.max_retention_ms)
    if any(limits) or any(policy.follows_clock for policy in policies):
        raise typer.BadParameter(f"{path}: this configuration needs arrival times; add --arrival COLUMN")
    return replace(config, max_future_skew_ms=None)


def _read_config(path: Path, scale: int) -> "JobConfig":
    from tidegate.domain.calendar import DAY_MS
    from tidegate.domain.errors import InvalidConfig
    from tidegate.views.config import parsed_config

    try:
        document = json.loads(path.read_text(), parse_float=Decimal)
        if isinstance(document, dict):
            document.setdefault("delay_half_life_ms", DAY_MS)
        return parsed_config(_scaled_times(document, scale))
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path} ({error.strerror})") from None
    except InvalidConfig as error:
        raise typer.BadParameter(f"{path} is not a job configuration: {error.details['field']}: {error}") from None
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


if TYPE_CHECKING:
    from tidegate.domain.simulate import Outcome

SLOW = 50_000
"""Number of rows from which the command shows a progress bar."""


@dataclass(frozen=True, slots=True)
class Result:
    """The simulated result of one lag, or of the policy in one file.

    Attributes:
        scale: Number of units of the outcome in one unit of the file.
    """

    lag: Decimal | None
    policy: str | None
    outcome: "Outcome"
    scale: int

    @property
    def latency(self) -> float | None:
        """Average latency in the unit of the file."""
        average = self.outcome.average_latency
        return None if average is None else average / self.scale

    def record(self) -> dict[str, Any]:
        """Return the result for JSON."""
        name = {} if self.policy is None else {"policy": self.policy}
        return name | {
            "lag": None if self.lag is None else plain_number(self.lag),
            "completeness": self.outcome.completeness,
            "dropped": self.outcome.dropped,
            "updated": self.outcome.updated,
            "windows": self.outcome.windows,
            "avg_emit_latency": self.latency,
        }

    def cells(self) -> list[str]:
        """Return the result for the table."""
        outcome, latency = self.outcome, self.latency
        return [
            self.policy or str(plain_number(self.lag)),
            f"{100 * outcome.completeness:.2f} %",
            str(outcome.dropped),
            str(outcome.updated),
            str(outcome.windows),
            "-" if latency is None else f"{latency:.2f}",
        ]


def simulate(
    file: Annotated[
        Path, typer.Argument(help="CSV file with a header, or Parquet file. The rows must be sorted by arrival.")
    ],
    event_time: Annotated[str, typer.Option(help="Column of event times, as numbers in any unit or ISO 8601.")],
    window: Annotated[str, typer.Option(help="Size of tumbling windows, as a number in the same unit or as 1h.")],
    lags: Annotated[str, typer.Option(help="Lags to simulate, as 0,2,5,10 in the same unit or as 30m,1h.")] = "",
    substream: Annotated[
        str | None, typer.Option(help="Column of substreams. Without it, all rows belong to one substream.")
    ] = None,
    arrival: Annotated[
        str | None, typer.Option(help="Column of arrival times, for policies that follow the clock.")
    ] = None,
    grace: Annotated[str, typer.Option(help="Time for which an ended window accepts late rows.")] = "0",
    policy: Annotated[list[Path] | None, typer.Option(help="JSON file with a job configuration. Repeatable.")] = None,
    declare: Annotated[bool, typer.Option("--declare", help="Declare all substreams at the start.")] = False,
    max_latency: Annotated[str | None, typer.Option(help="Choose a result with at most this average latency.")] = None,
    min_completeness: Annotated[
        float | None, typer.Option(help="Choose a result with at least this completeness, such as 0.9.", min=0, max=1)
    ] = None,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the completeness and latency of lags and policies for the rows of a file."""
    given = [("--window", window), ("--grace", grace), *(("--lags", lag) for lag in lags.split(",") if lag.strip())]
    if max_latency is not None:
        given.append(("--max-latency", max_latency))
    amounts = [(option, _amount(option, text.strip())) for option, text in given]
    size, grace_time = (amount.number for _, amount in amounts[:2])
    if size <= 0 or grace_time < 0:
        raise typer.BadParameter("--window must be greater than 0, and --grace at least 0")
    longest = None if max_latency is None else float(amounts[-1][1].number)
    lag_list = [amount.number for option, amount in amounts if option == "--lags"]
    if not lag_list and not policy:
        raise typer.BadParameter("give lags to simulate (--lags 0,2,5,10), or a --policy")
    rows = read_rows(file, event_time, substream, arrival, [*lag_list, size, grace_time])
    if rows.first is not None and not force:
        _check_units(file, rows.first, amounts)
    results = _simulated(rows, lag_list, policy or [], size, grace_time, declare, arrival is not None)
    if rows.left_out:
        typer.echo(f"Left out {rows.left_out} rows without an event time.", err=True)
    _show(results, as_json)
    if longest is not None or min_completeness is not None:
        _choose(results, longest, min_completeness)


def _simulated(
    rows: Rows, lags: list[Decimal], policies: list[Path], size: Decimal, grace: Decimal, declare: bool, timed: bool
) -> list[Result]:
    from tidegate.domain.simulate import classify, merged_event_times, through_machine, under_lag

    scale, window, allowed = rows.scale, rows.scaled(size), rows.scaled(grace)
    declared = sorted({row.substream for row in rows.rows}) if declare else []
    merged = merged_event_times(rows.rows, declared)
    results = []
    for lag in _progress(lags, len(rows.rows)):
        moments = under_lag(rows.rows, merged, rows.scaled(lag))
        results.append(Result(lag, None, classify(moments, window, allowed), scale))
    for path in _progress(policies, len(rows.rows)):
        moments = through_machine(rows.rows, read_policy(path, scale, timed=timed), declared)
        results.append(Result(None, path.name, classify(moments, window, allowed), scale))
    return results


def _check_units(file: Path, first: Amount, durations: Iterable[tuple[str, Amount]]) -> None:
    """Raise BadParameter if the durations are unlikely to have the unit of the times of a file.

    Args:
        file: The file.
        first: Its first event time.
        durations: The durations with their options.
    """
    for option, duration in durations:
        if first.has_unit and not duration.has_unit and duration.number:
            number = plain_number(duration.number)
            raise typer.BadParameter(
                f"{option} {number} needs a unit, because {file} has ISO 8601 times; write {number}s"
            )
        if not first.has_unit and duration.has_unit and first.number == int(first.number):
            doubt = times.doubt_about(int(first.number))
            if doubt is not None:
                raise typer.BadParameter(
                    f"{option} has a unit, so the times of {file} must be milliseconds, but {doubt}. Or give all "
                    "durations as numbers in the unit of the file. To use the times as they are, insist with --force."
                )


def _amount(option: str, text: str) -> Amount:
    try:
        return parse_amount(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}, or a number") from None


def _progress(steps: Iterable[Any], rows: int) -> Iterable[Any]:
    console = Console(stderr=True)
    return track(list(steps), "simulating", console=console, disable=rows < SLOW or not console.is_terminal)


def _show(results: list[Result], as_json: bool) -> None:
    if as_json:
        show_json([result.record() for result in results])
        return
    columns = ("lag", "completeness", "dropped", "updated", "windows", "latency")
    show_table(columns, [result.cells() for result in results])


def _choose(results: list[Result], max_latency: float | None, min_completeness: float | None) -> None:
    """Print the result with the lowest latency within the bounds. Exit if no result is within the bounds."""
    fitting = [
        result
        for result in results
        if (min_completeness is None or result.outcome.completeness >= min_completeness)
        and (max_latency is None or (result.latency is not None and result.latency <= max_latency))
    ]
    if not fitting:
        typer.echo("No result is within the bounds; allow more latency, or accept less completeness.", err=True)
        raise typer.Exit(NOT_REACHED)
    best = min(fitting, key=lambda result: (result.latency or 0, -result.outcome.completeness))
    name = best.policy or f"a lag of {plain_number(best.lag)}"
    typer.echo(f"The result with the lowest latency within the bounds is {name}.", err=True)
