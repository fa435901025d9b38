"""What a lag gives and what it costs, as measured on the rows of a job; and which lag to choose."""

import math
import re
from typing import Annotated, Any

import typer

from tidegate.cli.coordinator import HERE, NOT_REACHED, AsJson, Coordinator, Url
from tidegate.cli.output import print_json, table_of, tell
from tidegate.cli.times import duration_s
from tidegate.domain.policy.target_completeness import HIGHEST_TARGET, LOWEST_TARGET
from tidegate.times import MS, for_how_long

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999, 0.99999)
"""The table has the least lag for each of these."""
BAR = 20


def completeness(
    job: Annotated[str, typer.Argument(help="The job.")],
    most_latency: Annotated[
        str | None,
        typer.Option("--max-latency", help="Choose a lag that costs this at most: 90s, 30m, 250 (ms)."),
    ] = None,
    least_completeness: Annotated[
        float | None,
        typer.Option("--min-completeness", min=LOWEST_TARGET, max=HIGHEST_TARGET, help="Choose one that gives this."),
    ] = None,
    substream: Annotated[str | None, typer.Option(help="Of this substream, not of the job.")] = None,
    query: Annotated[str, typer.Option(help="The query whose substream it is.")] = "",
    window: Annotated[
        str | None,
        typer.Option(help="By windows of this size, where the job has no frame; else by row."),
    ] = None,
    url: Url = HERE,
    as_json: AsJson = False,
) -> None:
    """What a lag gives, and what it costs: completeness against latency, as measured on the rows.

    With --max-latency, --min-completeness, or both: the lag that meets them; exit status 3 where none does.
    """
    asked: dict[str, Any] = {"query": query}
    if substream is not None:
        asked["substream"] = substream
    if window is not None:
        asked["window_ms"] = _milliseconds(window)
    if least_completeness is not None:
        asked["target"] = least_completeness
    limit = None if most_latency is None else _milliseconds(most_latency)
    coordinator = Coordinator(url)

    def ask(**more: Any) -> dict[str, Any]:
        told: dict[str, Any] = coordinator.job("GET", job, "/completeness", params=asked | more)
        return told

    told = ask()
    chosen = None
    if not told["rows"]:
        why = (
            "Nothing is known of delays: none were reported with the rows (in Spark: Stream.measure_delays), or only "
            "of "
            "substreams that report their watermarks themselves."
        )
    else:
        chosen, why = _choose(told, ask, limit, least_completeness)
    if as_json:
        print_json(told | {"chosen_lag_ms": chosen})
    else:
        _show(told, ask)
    if why:
        typer.echo(why, err=True)
    if chosen is None and (most_latency, least_completeness) != (None, None):
        raise typer.Exit(NOT_REACHED)


def _milliseconds(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text) else round(duration_s(text) * MS)


def _choose(
    told: dict[str, Any], ask: Any, most_latency: int | None, least_completeness: float | None
) -> tuple[int | None, str]:
    """The lag that meets both, and a sentence on it, or on why there is none."""
    wait = told["wait_ms"]
    if most_latency is not None and wait is None:
        return None, "The watermark has not moved yet, so nothing is known of latency."
    if least_completeness is not None:
        lag = told["recommended_lag_ms"]
        if most_latency is None or wait + lag <= most_latency:
            return lag, f"The least lag that is complete enough is {_shown(lag)}{_at(ask, lag)}."
        least = f"{_share(least_completeness)} takes a latency of {_shown(wait + lag)}"
        if wait > most_latency:
            return None, f"None is both: {least}; even without any lag it is {_shown(wait)}."
        return None, f"None is both: {least}; {_shown(most_latency)} gives {_share(_given(ask, most_latency - wait))}."
    if most_latency is not None:
        if wait > most_latency:
            return None, f"None is quick enough: even without any lag the latency is {_shown(wait)}."
        lag = most_latency - wait
        return lag, f"The longest lag that is quick enough is {_shown(lag)}{_at(ask, lag)}."
    return None, ""


def _given(ask: Any, lag: int) -> float:
    """The completeness under a lag."""
    return float(ask(lag_ms=[lag])["points"][0]["completeness"])


def _at(ask: Any, lag: int) -> str:
    point = ask(lag_ms=[lag])["points"][0]
    latency = "" if point["latency_ms"] is None else f", at a latency of {_shown(point['latency_ms'])}"
    return f": {_share(point['completeness'])} complete{latency}"


def _show(told: dict[str, Any], ask: Any) -> None:
    facts = table_of("", "")
    for name, value in (
        ("rows", f"{told['rows']:,}"),
        ("lag in force", _shown(told["lag_ms"])),
        ("target", _share(told["target"])),
        ("lag for the target", _shown(told["recommended_lag_ms"])),
        ("achieved", _share(told["achieved"])),
    ):
        facts.add_row(name, value)
    tell(facts)
    if not told["points"]:
        return
    reaching = {
        level: next((point["lag_ms"] for point in told["points"] if point["completeness"] >= level), None)
        for level in (0.0, *LEVELS)
    }
    marks = {told["recommended_lag_ms"]: "for the target", told["lag_ms"]: "in force"}
    lags = sorted({lag for lag in (*reaching.values(), *marks, told["points"][-1]["lag_ms"]) if lag is not None})
    table = table_of("lag", "completeness", "", "latency", "")
    for point in ask(lag_ms=lags)["points"]:
        full = math.floor(point["completeness"] * BAR)
        table.add_row(
            _shown(point["lag_ms"]),
            _share(point["completeness"]),
            "█" * full + "·" * (BAR - full),
            _shown(point["latency_ms"]),
            marks.get(point["lag_ms"], ""),
        )
    tell(table)


def _shown(ms: int | None) -> str:
    return "-" if ms is None else "0" if ms == 0 else for_how_long(ms) if ms > 0 else f"-{for_how_long(-ms)}"


def _share(share: float | None) -> str:
    """Rounded down: what is not all is not shown as all."""
    if share is None:
        return "-"
    return f"{math.floor(share * 1_000_000) / 10_000:.2f} %" if share < 0.999 or share == 1 else f"{100 * share:.4f} %"
