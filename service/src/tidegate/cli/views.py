"""Commands that show jobs: ``jobs``, ``status``, ``explain``, ``late`` and ``completeness``."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tidegate.cli.coordinator import NOT_REACHED, Coordinator
from tidegate.cli.options import (
    LOCAL_URL,
    AsJson,
    Job,
    QueryOfSubstream,
    Substream,
    Url,
    duration_ms,
    show,
    show_json,
    show_table,
)
from tidegate.domain.history import HolderRange
from tidegate.domain.job import COUNTED_STATES
from tidegate.domain.policies import HIGHEST_TARGET, LOWEST_TARGET
from tidegate.domain.values import EXACT_DOUBLE
from tidegate.escapes import visible
from tidegate.times import format_difference, format_duration, format_time
from tidegate.views.sentences import (
    HOLDER_REASONS,
    arrivals_text,
    holder,
    holder_over_time,
    passed_sentence,
    percent,
    plain_text,
    share_text,
    status_sentence,
    unit_hint,
    waiting_frame_sentence,
    what_if_arrivals_text,
    what_if_skew_sentence,
    written_sentence,
)

PAGE = 1000


def jobs(url: Url = LOCAL_URL, as_json: AsJson = False) -> None:
    """List all jobs with their status."""
    coordinator = Coordinator(url)
    listed: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = coordinator.call("GET", "/v1/jobs", params={"limit": PAGE, "after": after})
        listed += page["jobs"]
        for job in page.get("unreadable", ()):  # a coordinator of an older version has no such member
            typer.echo(f"tidegate: The coordinator cannot read the state of the job {visible(job)}.", err=True)
        after = page["next"]
    if as_json:
        show_json(listed)
        return
    rows = [
        (
            job["job"],
            job["health"].replace("_", " "),
            format_time(job["watermark"]),
            "-" if job["watermark"] is None else format_duration(job["now_ms"] - job["watermark"]),
            _held_by(job),
            # An earlier coordinator has fewer states.
            *(str(job["substreams"].get(state, 0)) for state in COUNTED_STATES),
            str(job["rows"]["late"]),
        )
        for job in listed
    ]
    show_table(("job", "health", "watermark", "lag", "held by", *COUNTED_STATES, "late"), rows)


def status(
    job: Job,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Number of substreams, lowest watermark first.")] = 20,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Show a job with its queries and substreams."""
    coordinator = Coordinator(url)
    found = coordinator.job("GET", job)
    queries = coordinator.job("GET", job, "/queries")["queries"]
    parameters = {"sort": "watermark", "limit": limit}
    substreams = coordinator.job("GET", job, "/substreams", params=parameters)["substreams"]
    if as_json:
        show_json({"job": found, "queries": queries, "substreams": substreams})
        return
    show(job_sentence(found))
    if hint := unit_hint(found):
        show(hint)
    _show_facts(found)
    if queries:
        _show_queries(queries, found["now_ms"])
    _show_substreams(substreams, found["now_ms"])


def _show_facts(found: Mapping[str, Any]) -> None:
    facts = [
        ("watermark", format_time(found["watermark"])),
        ("coalesced watermark", format_time(found["coalesced_watermark"])),
        ("written watermark", format_time(found["written_watermark"])),
        ("max event time", format_time(found["max_event_time"])),
        ("now", format_time(found["now_ms"])),
        ("rows", ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in found["rows"].items())),
    ]
    if found.get("arrivals"):  # an earlier coordinator knows no arrival_target
        facts.append(("rows arrive", arrivals_text(found["arrivals"])))
    if found["future_rows"]:
        named = f"`tidegate history {found['job']} --kind future` names them"
        facts.append(("too far in the future", f"{found['future_rows']} rows and reports; {named}"))
    show_table(("", ""), facts)


def _show_queries(queries: Sequence[Mapping[str, Any]], now_ms: int) -> None:
    rows = [
        (
            query["query"] + (" (retired)" if query["retired"] else ""),
            "-" if query["batch_id"] is None else str(query["batch_id"]),
            format_duration(now_ms - query["begun_ms"]) if query["batch_open"] else "no",
            format_time(query["output_watermark"]) if query["tells_output"] else "with each batch",
            _unread(query.get("offsets")),
            _ago(now_ms, query["last_contact_ms"]),
        )
        for query in queries
    ]
    show_table(("query", "batch", "open", "written", "unread offsets", "last contact"), rows)
    _show_partitions({query["query"]: query["offsets"] for query in queries if query.get("offsets")})


def _unread(offsets: Mapping[str, Any] | None) -> str:
    return "-" if offsets is None or offsets["unread"] is None else f"{offsets['unread']:,}"


def _show_partitions(by_query: Mapping[str, Mapping[str, Any]]) -> None:
    """Show the partitions with the most unread offsets."""
    rows = [
        (
            partition["partition"],
            query,
            f"{partition['unread']:,}",
            "-" if partition["behind_ms"] is None else format_duration(partition["behind_ms"]),
            "open" if partition["open_transaction"] else "-",
        )
        for query, offsets in by_query.items()
        for partition in offsets["most_behind"]
    ]
    if rows:
        show_table(("partition", "query", "unread offsets", "oldest unread", "transaction"), rows)


def _show_substreams(substreams: Iterable[Mapping[str, Any]], now_ms: int) -> None:
    columns = ("substream", "query", "state", "since", "watermark", "max event time", "skew", "last report", "late")
    rows = [
        (
            row["substream"],
            row["query"],
            row["state"],
            "-" if row["since_ms"] is None else _ago(now_ms, row["since_ms"]),
            format_time(row["watermark"]),
            format_time(row["max_event_time"]),
            "-" if row["skew"] is None else format_difference(row["skew"]),
            _ago(now_ms, row["last_event_ms"]),
            str(row["rows"]["late"]),
        )
        for row in substreams
    ]
    show_table(columns, rows)


def explain(
    job: Job,
    limit: Annotated[int, typer.Option(min=1, max=10, help="Number of holders to list.")] = 3,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            help="Also show what max_skew=6h would do now, or what arrival_target=0.998 would have done in the "
            "recorded past. Repeatable.",
            metavar="LIMIT=VALUE",
        ),
    ] = None,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Show the holders of the watermark, their deadlines, and the watermark without them."""
    coordinator = Coordinator(url)
    asked = _what_ifs(what_if or ())
    explanation = coordinator.job("GET", job, ":explain", params={"limit": limit} | asked)
    if as_json:
        show_json(explanation)
        return
    status = coordinator.job("GET", job)
    show(job_sentence(status | explanation))
    for passed in explanation.get("passed", ()):  # an earlier coordinator has no such limits
        show(plain_text(passed_sentence(passed), explanation["now_ms"]))
    show_written(explanation)
    if explanation["frame"] is not None:
        show(plain_text(waiting_frame_sentence(explanation), explanation["now_ms"]))
    now_ms = explanation["now_ms"]
    rows = [
        (
            plain_text(holder(held_by), now_ms),
            HOLDER_REASONS[held_by["reason"]],
            ", ".join(_limit(deadline, now_ms) for deadline in held_by["until"]) or "none",
            format_time(held_by["watermark_without"]),
        )
        for held_by in explanation["holders"]
    ]
    if rows:
        show_table(("held by", "reason", "limits", "watermark without it and those above"), rows)
    _show_partitions(explanation.get("offsets") or {})
    if explanation["next_step"] is not None:
        show(f"Next throttle step: {format_time(explanation['next_step'])}")
    if "what_if_max_skew_ms" in asked:
        sentence = what_if_skew_sentence(explanation["what_if_max_skew"], explanation["coalesced_watermark"])
        show(plain_text(sentence, now_ms))
    if "what_if_arrival_target" in asked:
        highest_ms = status["config"]["max_arrival_delay_ms"]
        show(what_if_arrivals_text(explanation["what_if_arrival_target"], highest_ms))


def _what_ifs(options: Iterable[str]) -> dict[str, str]:
    """Return the parameters of a request for limits and their values.

    Raises:
        typer.BadParameter: If a limit or its value is unknown, or a limit is given twice.
    """
    asked: dict[str, str] = {}
    for option in options:
        name, _, value = option.partition("=")
        wrong = typer.BadParameter(
            f"{option!r}: write max_skew=DURATION, such as max_skew=6h, or arrival_target=SHARE, a share of the rows "
            f"from {LOWEST_TARGET} to {HIGHEST_TARGET}; each once.",
            param_hint="--what-if",
        )
        try:
            number = duration_ms(value) if name == "max_skew" else float(value)
        except (ValueError, typer.BadParameter):
            raise wrong from None
        bounds = {"max_skew": (1, EXACT_DOUBLE.highest), "arrival_target": (LOWEST_TARGET, HIGHEST_TARGET)}
        lowest, highest = bounds.get(name, (1, 0))
        parameter = f"what_if_{name}_ms" if name == "max_skew" else f"what_if_{name}"
        if not lowest <= number <= highest or parameter in asked:
            raise wrong
        asked[parameter] = str(number)
    return asked


def holders(
    job: Job,
    within: Annotated[HolderRange, typer.Option("--range", help="Range of processing time before now.")] = "1h",
    hours: Annotated[bool, typer.Option("--hours", help="Also show each hour.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Number of holders to list.")] = 10,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Show for how long each substream, query and hold has held the watermark."""
    answer = Coordinator(url).job("GET", job, "/holders", params={"range": within, "limit": limit})
    if as_json:
        show_json(answer)
        return
    measured = f"{format_time(answer['start_ms'])} to {format_time(answer['now_ms'])}"
    if not answer["holders"]:
        show(f"{job}: nothing held the watermark from {measured}.")
        return
    show(f"From {measured}:")
    show_table(("held by", "time", "share"), [_held_time(each) for each in answer["holders"]])
    if hours:
        rows = [
            (format_time(hour["start_ms"]), *_held_time(each)) for hour in answer["hours"] for each in hour["holders"]
        ]
        show_table(("hour", "held by", "time", "share"), rows)


def _held_time(held: Mapping[str, Any]) -> tuple[str, str, str]:
    name = plain_text(holder_over_time({**held, "reason": held["kind"]}), 0)
    return name, format_duration(held["held_ms"]), share_text(held["share"])


def _limit(deadline: Mapping[str, Any], now_ms: int) -> str:
    condition = " (if its query confirms)" if deadline["needs_query_report"] else ""
    return f"{deadline['limit']} in {format_duration(deadline['at_ms'] - now_ms)}{condition}"


def job_sentence(job: Mapping[str, Any]) -> str:
    """Return a sentence with the name, the watermark and the holder of a job."""
    return f"{job['job']}: {plain_text(status_sentence(job), job['now_ms'])}"


def show_written(job: Mapping[str, Any]) -> None:
    """Show which query has not written its results up to the watermark, if any."""
    if job["written_held_by"] is not None:
        show(plain_text(written_sentence(job), job["now_ms"]))


def _held_by(job: Mapping[str, Any]) -> str:
    if job["held_by"] is None:
        return "complete" if job["complete"] else "-"
    return plain_text(holder(job["held_by"]), job["now_ms"])


def _ago(now_ms: int, at_ms: int) -> str:
    return f"{format_duration(now_ms - at_ms)} ago"


CLASSES = ("dropped", "diverted", "updated")
COUNTS = ("rows", *CLASSES)


def late(
    job: Job,
    substream: Substream = None,
    query: QueryOfSubstream = None,
    hours: Annotated[bool, typer.Option("--hours", help="Also show each hour.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of spans to list.")] = 20,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Show updated, dropped and diverted rows, by substream and hour of event time."""
    coordinator = Coordinator(url)
    if query is None and substream is not None:
        query = coordinator.query_of(job, [substream])
    parameters = {"substream": substream, "query": query, "limit": limit}
    answer: dict[str, Any] = coordinator.job("GET", job, "/late", params=parameters)
    if as_json:
        show_json(answer)
        return
    rows = answer["rows"]
    classified = rows["on_time"] + rows["updated"] + rows["late"]
    show_table(COUNTS, [_cells({**answer, "rows": classified, "updated": rows["updated"]})])
    if answer["spans"]:
        spans = [
            (
                span["query"] or "-",
                span["substream"],
                format_time(span["start"]),
                format_time(span["end"]),
                *_cells(span),
            )
            for span in answer["spans"]
        ]
        show_table(("query", "substream", "from", "to", *COUNTS), spans)
    if hours and answer["hours"]:
        show_table(("hour", *COUNTS), [(format_time(hour["start"]), *_cells(hour)) for hour in answer["hours"]])


def _cells(counts: dict[str, Any]) -> list[str]:
    rows = counts["rows"]
    return ["-" if rows is None else f"{rows:,}", *(_count(counts[row_class], rows) for row_class in CLASSES)]


def _count(count: int, rows: int | None) -> str:
    share = f" ({share_text(count / rows)})" if rows else ""
    return f"{count:,}{share}" if count else "-"


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
    return "0" if ms == 0 else format_difference(ms)


def _share(share: float | None) -> str:
    return "-" if share is None else percent(share)
