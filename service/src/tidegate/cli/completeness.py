"""The command that shows the completeness curve and chooses a lag."""

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tidegate.cli.coordinator import NOT_REACHED, Coordinator
from tidegate.cli.options import LOCAL_URL, AsJson, Job, QueryOfSubstream, Substream, Url, duration_ms
from tidegate.cli.output import show_json, show_table
from tidegate.domain.policies import HIGHEST_TARGET, LOWEST_TARGET
from tidegate.times import format_duration
from tidegate.views.sentences import percent

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999, 0.99999)
"""Levels of completeness. The table shows the shortest lag for each level."""
BAR_WIDTH = 20
NOT_MEASURED = (
    "No delays are measured, because no report contains delays or all substreams report watermarks; in Spark, call "
    "Stream.measure_delays."
)

Choice = tuple[int | None, str]
"""The chosen lag, or None, and a sentence about the choice."""


def _milliseconds(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text) else duration_ms(text)


def _duration_option(help_text: str) -> Any:
    return typer.Option(parser=_milliseconds, metavar="DURATION", help=help_text)


def completeness(
    job: Job,
    max_latency: Annotated[int | None, _duration_option("Choose a lag with at most this latency, such as 30m.")] = None,
    min_completeness: Annotated[
        float | None,
        typer.Option(
            min=LOWEST_TARGET, max=HIGHEST_TARGET, help="Choose a lag with at least this completeness, such as 0.99."
        ),
    ] = None,
    substream: Substream = None,
    query: QueryOfSubstream = None,
    window: Annotated[
        int | None,
        _duration_option("Size of the windows by which rows are classified, such as 1h. Not allowed with a frame."),
    ] = None,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Show completeness and latency by lag, as measured on the rows of a job.

    With --max-latency, --min-completeness or both, choose a lag that meets these bounds. Exit with status 3 if no
    lag meets them.
    """
    coordinator = Coordinator(url)
    if query is None and substream is not None:
        query = coordinator.query_of(job, [substream])
    parameters = {"query": query, "substream": substream, "window_ms": window, "target": min_completeness}
    curve = _Curve(coordinator, job, parameters)
    lag_ms, sentence = curve.choose(max_latency, min_completeness)
    if as_json:
        show_json(curve.measured | {"chosen_lag_ms": lag_ms})
    else:
        curve.show()
    if sentence:
        typer.echo(sentence, err=True)
    if lag_ms is None and (max_latency, min_completeness) != (None, None):
        raise typer.Exit(NOT_REACHED)


@dataclass
class _Curve:
    """The completeness curve of a job."""

    coordinator: Coordinator
    job: str
    parameters: dict[str, Any]

    def __post_init__(self) -> None:
        self.measured = self._read()

    def _read(self, **parameters: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.coordinator.job(
            "GET", self.job, "/completeness", params=self.parameters | parameters
        )
        return answer

    def _at(self, lag_ms: int) -> dict[str, Any]:
        point: dict[str, Any] = self._read(lag_ms=[lag_ms])["points"][0]
        return point

    def choose(self, max_latency_ms: int | None, min_completeness: float | None) -> Choice:
        """Return a lag that meets the given bounds, and a sentence about the choice."""
        if not self.measured["rows"]:
            return None, NOT_MEASURED
        wait_ms, lag_ms = self.measured["wait_ms"], self.measured["recommended_lag_ms"]
        if max_latency_ms is not None and wait_ms is None:
            return None, "The watermark has not moved yet, so the latency is unknown."
        if min_completeness is None:
            return (None, "") if max_latency_ms is None else self._longest_lag(wait_ms, max_latency_ms)
        if max_latency_ms is None or wait_ms + lag_ms <= max_latency_ms:
            return lag_ms, f"The shortest lag with this completeness is {_duration(lag_ms)}{self._point(lag_ms)}."
        needed = f"{_share(min_completeness)} needs a latency of {_duration(wait_ms + lag_ms)}"
        if wait_ms > max_latency_ms:
            return None, f"No lag meets both bounds: {needed}; even without lag, the latency is {_duration(wait_ms)}."
        given = _share(self._at(max_latency_ms - wait_ms)["completeness"])
        return None, f"No lag meets both bounds: {needed}; {_duration(max_latency_ms)} gives {given}."

    def _longest_lag(self, wait_ms: int, max_latency_ms: int) -> Choice:
        if wait_ms > max_latency_ms:
            return None, f"No lag has this latency: even without lag, the latency is {_duration(wait_ms)}."
        lag_ms = max_latency_ms - wait_ms
        return lag_ms, f"The longest lag with this latency is {_duration(lag_ms)}{self._point(lag_ms)}."

    def _point(self, lag_ms: int) -> str:
        point = self._at(lag_ms)
        latency = "" if point["latency_ms"] is None else f", latency {_duration(point['latency_ms'])}"
        return f": completeness {_share(point['completeness'])}{latency}"

    def show(self) -> None:
        """Print the measured values, and the curve."""
        measured = self.measured
        facts = (
            ("rows", f"{measured['rows']:,}"),
            ("lag in force", _duration(measured["lag_ms"])),
            ("target", _share(measured["target"])),
            ("lag for the target", _duration(measured["recommended_lag_ms"])),
            ("achieved", _share(measured["achieved"])),
        )
        show_table(("", ""), facts)
        points = measured["points"]
        if not points:
            return
        shortest_lags = [
            next((point["lag_ms"] for point in points if point["completeness"] >= level), None)
            for level in (0.0, *LEVELS)
        ]
        marks = {measured["recommended_lag_ms"]: "for the target", measured["lag_ms"]: "in force"}
        lags = sorted({lag for lag in (*shortest_lags, *marks, points[-1]["lag_ms"]) if lag is not None})
        rows = [
            (
                _duration(point["lag_ms"]),
                _share(point["completeness"]),
                ("█" * math.floor(point["completeness"] * BAR_WIDTH)).ljust(BAR_WIDTH, "·"),
                _duration(point["latency_ms"]),
                marks.get(point["lag_ms"], ""),
            )
            for point in self._read(lag_ms=lags)["points"]
        ]
        show_table(("lag", "completeness", "", "latency", ""), rows)


def _duration(ms: int | None) -> str:
    if ms is None:
        return "-"
    return "0" if ms == 0 else format_duration(ms) if ms > 0 else f"-{format_duration(-ms)}"


def _share(share: float | None) -> str:
    return "-" if share is None else percent(share)
