"""Commands that show jobs: ``jobs``, ``status`` and ``explain``."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from tidegate.cli.coordinator import Coordinator
from tidegate.cli.options import LOCAL_URL, AsJson, Job, Url
from tidegate.cli.output import show, show_json, show_table
from tidegate.escapes import visible
from tidegate.times import format_duration, format_time
from tidegate.views.sentences import HOLDER_REASONS, holder, plain_text, status_sentence, unit_hint

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
    states = ("active", "idle", "done")
    rows = [
        (
            job["job"],
            job["health"].replace("_", " "),
            format_time(job["watermark"]),
            "-" if job["watermark"] is None else format_duration(job["now_ms"] - job["watermark"]),
            _held_by(job),
            *(str(job["substreams"][state]) for state in states),
            str(job["rows"]["late"]),
        )
        for job in listed
    ]
    show_table(("job", "health", "watermark", "lag", "held by", *states, "late"), rows)


def status(
    job: Job,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Number of substreams, lowest watermark first.")] = 20,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Show a job with its queries and substreams."""
    coordinator = Coordinator(url)
    record = coordinator.job("GET", job)
    queries = coordinator.job("GET", job, "/queries")["queries"]
    parameters = {"sort": "watermark", "limit": limit}
    substreams = coordinator.job("GET", job, "/substreams", params=parameters)["substreams"]
    if as_json:
        show_json({"job": record, "queries": queries, "substreams": substreams})
        return
    show(job_sentence(record))
    if hint := unit_hint(record):
        show(hint)
    _show_facts(record)
    if queries:
        _show_queries(queries, record["now_ms"])
    _show_substreams(substreams, record["now_ms"])


def _show_facts(record: Mapping[str, Any]) -> None:
    facts = [
        ("watermark", format_time(record["watermark"])),
        ("coalesced watermark", format_time(record["coalesced_watermark"])),
        ("max event time", format_time(record["max_event_time"])),
        ("now", format_time(record["now_ms"])),
        ("rows", ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in record["rows"].items())),
    ]
    if record["future_rows"]:
        named = f"`tidegate history {record['job']} --kind future` names them"
        facts.append(("too far in the future", f"{record['future_rows']} rows and reports; {named}"))
    show_table(("", ""), facts)


def _show_queries(queries: Iterable[Mapping[str, Any]], now_ms: int) -> None:
    rows = [
        (
            query["query"] + (" (retired)" if query["retired"] else ""),
            "-" if query["batch_id"] is None else str(query["batch_id"]),
            format_duration(now_ms - query["begun_ms"]) if query["batch_open"] else "no",
            _ago(now_ms, query["last_contact_ms"]),
        )
        for query in queries
    ]
    show_table(("query", "batch", "open", "last contact"), rows)


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
            "-" if row["skew"] is None else format_duration(row["skew"]),
            _ago(now_ms, row["last_event_ms"]),
            str(row["rows"]["late"]),
        )
        for row in substreams
    ]
    show_table(columns, rows)


def explain(
    job: Job,
    limit: Annotated[int, typer.Option(min=1, max=10, help="Number of holders to list.")] = 3,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Show the holders of the watermark, their deadlines, and the watermark without them."""
    coordinator = Coordinator(url)
    explanation = coordinator.job("GET", job, ":explain", params={"limit": limit})
    if as_json:
        show_json(explanation)
        return
    show(job_sentence(coordinator.job("GET", job) | explanation))
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
    if explanation["next_step"] is not None:
        show(f"Next throttle step: {format_time(explanation['next_step'])}")


def _limit(deadline: Mapping[str, Any], now_ms: int) -> str:
    condition = " (if its query confirms)" if deadline["needs_query_report"] else ""
    return f"{deadline['limit']} in {format_duration(deadline['at_ms'] - now_ms)}{condition}"


def job_sentence(job: Mapping[str, Any]) -> str:
    """Return a sentence with the name, the watermark and the holder of a job."""
    return f"{job['job']}: {plain_text(status_sentence(job), job['now_ms'])}"


def _held_by(job: Mapping[str, Any]) -> str:
    if job["held_by"] is None:
        return "complete" if job["complete"] else "-"
    return plain_text(holder(job["held_by"]), job["now_ms"])


def _ago(now_ms: int, at_ms: int) -> str:
    return f"{format_duration(now_ms - at_ms)} ago"
