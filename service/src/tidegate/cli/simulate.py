"""``tidegate simulate``: what a lag, or a policy, would have made of rows that are in a file."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from tidegate.cli import columns
from tidegate.cli.output import print_json, table_of, tell

if TYPE_CHECKING:
    from tidegate.domain.config import JobConfig
    from tidegate.domain.simulate import Outcome

SLOW = 50_000
"""So many rows are shown to be worked on."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """One line: a ``lag``, or the ``policy`` of a file, and what came of it; ``scale`` numbers make one unit."""

    lag: Decimal | None
    policy: str | None
    outcome: "Outcome"
    scale: int

    @property
    def latency(self) -> float | None:
        average = self.outcome.average_latency
        return None if average is None else average / self.scale

    def record(self) -> dict[str, Any]:
        named = {} if self.policy is None else {"policy": self.policy}
        return named | {
            "lag": None if self.lag is None else _plain(self.lag),
            "completeness": self.outcome.completeness,
            "dropped": self.outcome.dropped,
            "updated": self.outcome.updated,
            "windows": self.outcome.windows,
            "avg_emit_latency": self.latency,
        }


def simulate(
    file: Annotated[Path, typer.Argument(help="CSV with a header, or Parquet: rows as they arrived.")],
    event_time: Annotated[str, typer.Option(help="The column of the event times: numbers in any unit, or ISO 8601.")],
    window: Annotated[str, typer.Option(help="How long the tumbling windows are, in that unit; or 1h, 1d.")],
    lags: Annotated[str, typer.Option(help="The lags to try, in that unit: 0,2,5,10; or 30m,1h.")] = "",
    substream: Annotated[str | None, typer.Option(help="The column of the substreams; without it, one.")] = None,
    arrival: Annotated[
        str | None, typer.Option(help="The column of the times of arrival, for policies that follow the clock.")
    ] = None,
    grace: Annotated[str, typer.Option(help="For how long a window that has ended takes late rows.")] = "0",
    policy: Annotated[
        list[Path] | None, typer.Option(help="A file with a job's rules, as in PUT /v1/jobs; may be said repeatedly.")
    ] = None,
    declare: Annotated[bool, typer.Option("--declare", help="All substreams are known from the start.")] = False,
    max_latency: Annotated[str | None, typer.Option(help="Name the one no later than this on average ...")] = None,
    min_completeness: Annotated[float | None, typer.Option(help="... and this complete: 0.9.", min=0, max=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """What a lag costs and what it loses, on rows that have been."""
    from tidegate.domain import simulate as domain

    size, late, budget = _amount("--window", window), _amount("--grace", grace), None
    if size <= 0 or late < 0:
        raise typer.BadParameter("--window must be more than 0, and --grace not less")
    if max_latency is not None:
        budget = _amount("--max-latency", max_latency)
    tried = [_amount("--lags", part.strip()) for part in lags.split(",") if part.strip()]
    if not tried and not policy:
        raise typer.BadParameter("say which lags to try (--lags 0,2,5,10), or a --policy")
    cells, left_out = _cells(file, event_time, substream, arrival)
    exponent = max((-_exponent(number) for number in [*_numbers(cells), *tried, size, late]), default=0)
    scale = 10 ** max(exponent, 0)
    rows = [domain.Row(_whole(at, scale), name, 0 if then is None else _whole(then, scale)) for at, name, then in cells]
    declared = sorted({row.substream for row in rows}) if declare else []
    merged = domain.merged_event_times(rows, declared)
    found = []
    for lag in _progress(tried, len(rows)):
        moments = domain.under_lag(rows, merged, _whole(lag, scale))
        found.append(Simulated(lag, None, domain.classify(moments, _whole(size, scale), _whole(late, scale)), scale))
    for path in _progress(policy or [], len(rows)):
        config = _config(path, scale, arrival is not None)
        moments = domain.through_machine(rows, config, declared)
        outcome = domain.classify(moments, _whole(size, scale), _whole(late, scale))
        found.append(Simulated(None, path.name, outcome, scale))
    if left_out:
        typer.echo(f"{left_out} rows without an event time are left out.", err=True)
    _tell(found, as_json)
    if budget is not None or min_completeness is not None:
        _choose(found, None if budget is None else float(budget), min_completeness)


def _amount(name: str, text: str) -> Decimal:
    try:
        return columns.amount(text)
    except ValueError as error:
        raise typer.BadParameter(f"{name}: {error}, or a number") from None


def _cells(
    file: Path, event_time: str, substream: str | None, arrival: str | None
) -> tuple[list[tuple[Decimal, str, Decimal | None]], int]:
    """Event time, substream and arrival of each row; and how many rows there were without an event time."""
    names = [event_time, *(name for name in (substream, arrival) if name is not None)]
    found: list[tuple[Decimal, str, Decimal | None]] = []
    left_out = 0
    for number, row in enumerate(columns.read(file, names), start=1):
        cells = list(row)
        try:
            at = columns.instant(cells.pop(0))
            name = "" if substream is None else str(cells.pop(0))
            then = None if arrival is None else columns.instant(cells.pop(0))
        except ValueError as error:
            raise typer.BadParameter(f"{file}, row {number}: {error}") from None
        if arrival is not None and then is None:
            raise typer.BadParameter(f"{file}, row {number}: it has no {arrival}")
        if at is None:
            left_out += 1
        else:
            found.append((at, name, then))
    return found, left_out


def _numbers(cells: Iterable[tuple[Decimal, str, Decimal | None]]) -> Iterable[Decimal]:
    for at, _, then in cells:
        yield at
        if then is not None:
            yield then


def _exponent(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int), "it is finite"
    return exponent


def _whole(number: Decimal, scale: int) -> int:
    """Exactly: ``scale`` has a place for every decimal that there is."""
    numerator, denominator = number.as_integer_ratio()
    return numerator * scale // denominator


def _config(path: Path, scale: int, timed: bool) -> "JobConfig":
    """Rules as the API takes them, their times in the unit of the file's."""
    from dataclasses import replace

    from pydantic import ValidationError

    from tidegate.api.schemas.config import JobDocument
    from tidegate.domain.config import DELAY_HALF_LIFE_MS
    from tidegate.domain.policy import Reported

    try:
        document = json.loads(path.read_text(), parse_float=Decimal)
        if isinstance(document, dict):
            document.setdefault("delay_half_life_ms", DELAY_HALF_LIFE_MS)
        config = JobDocument.model_validate(_scaled(document, scale)).config()
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path} ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise typer.BadParameter(f"{path} are no rules of a job: {place}: {first['msg']}") from None
    except ValueError as error:
        raise typer.BadParameter(f"{path} is no JSON ({error})") from None
    policies = [config.policy, *(override.policy for override in config.overrides)]
    if any(isinstance(policy, Reported) for policy in policies):
        raise typer.BadParameter(f"{path}: under the policy `reported` clients send watermarks; rows have none")
    if timed:
        return config
    limits = (config.idle_timeout_ms, config.max_retention_ms)
    if any(limits) or any(policy.follows_clock for policy in policies):
        raise typer.BadParameter(f"{path}: these rules follow the clock; say when rows arrived (--arrival COLUMN)")
    return replace(config, max_future_skew_ms=None)


def _scaled(document: Any, scale: int, name: str = "") -> Any:
    if isinstance(document, dict):
        return {key: _scaled(value, scale, key) for key, value in document.items()}
    if isinstance(document, list):
        return [_scaled(value, scale) for value in document]
    if name.endswith("_ms") and isinstance(document, int | Decimal) and not isinstance(document, bool):
        return _whole(Decimal(document), scale)
    return float(document) if isinstance(document, Decimal) else document


def _progress(steps: Iterable[Any], rows: int) -> Iterable[Any]:
    """A bar on standard error, where there is enough to wait for."""
    console = Console(stderr=True)
    return track(list(steps), "simulating", console=console, disable=rows < SLOW or not console.is_terminal)


def _tell(found: list[Simulated], as_json: bool) -> None:
    if as_json:
        print_json([one.record() for one in found])
        return
    table = table_of("lag", "completeness", "dropped", "updated", "windows", "latency")
    for one in found:
        outcome = one.outcome
        latency = "-" if one.latency is None else f"{one.latency:.2f}"
        table.add_row(
            one.policy or str(_plain(one.lag)),
            f"{100 * outcome.completeness:.2f} %",
            str(outcome.dropped),
            str(outcome.updated),
            str(outcome.windows),
            latency,
        )
    tell(table)


def _choose(found: list[Simulated], most_latency: float | None, least_completeness: float | None) -> None:
    """Names the quickest that is complete enough, and quick enough; 3: there is none."""
    fit = [
        one
        for one in found
        if (least_completeness is None or one.outcome.completeness >= least_completeness)
        and (most_latency is None or (one.latency is not None and one.latency <= most_latency))
    ]
    if not fit:
        typer.echo("None of these is both: allow more latency, or settle for less completeness.", err=True)
        raise typer.Exit(3)
    chosen = min(fit, key=lambda one: (one.latency or 0, -one.outcome.completeness))
    what = chosen.policy or f"a lag of {_plain(chosen.lag)}"
    typer.echo(f"Of these, {what} is complete enough and the quickest.", err=True)


def _plain(number: Decimal | None) -> int | float | None:
    """As JSON has it: whole numbers without a point."""
    if number is None:
        return None
    return int(number) if number == number.to_integral_value() else float(number)
