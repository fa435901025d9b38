"""``tidegate simulate``: the effect of lags and policies on the rows of a file."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from tidegate import times
from tidegate.cli.columns import Amount, parse_amount
from tidegate.cli.coordinator import NOT_REACHED
from tidegate.cli.options import Force
from tidegate.cli.output import show_json, show_table
from tidegate.cli.rows import Rows, plain_number, read_policy, read_rows

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
