"""Commands that show jobs: list, status, explanation."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from tidegate.cli.coordinator import Coordinator
from tidegate.cli.options import LOCAL_URL, AsJson, Job, Url
from tidegate.cli.output import show, show_json, table_of
from tidegate.reads.sentences import HOLDER_REASONS, Piece, holder, plain_text, status_sentence
from tidegate.times import format_duration, format_time

PAGE = 1000


def jobs(url: Url = LOCAL_URL, as_json: AsJson = False) -> None:
    """List all jobs with their status."""
    coordinator = Coordinator(url)
    listed: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = coordinator.call("GET", "/v1/jobs", params={"limit": PAGE, "after": after})
        listed += page["jobs"]
        after = page["next"]
    if as_json:
        show_json(listed)
        return
    table = table_of("job", "health", "watermark", "lag", "held by", "active", "idle", "done", "late")
    for job in listed:
        counts = job["substreams"]
        table.add_row(
            job["job"],
            job["health"].replace("_", " "),
            format_time(job["watermark"]),
            _lag(job),
            _held_by(job),
            str(counts["active"]),
            str(counts["idle"]),
            str(counts["done"]),
            str(job["rows"]["late"]),
        )
    show(table)


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
    _show_facts(record)
    if queries:
        _show_queries(queries, record["now_ms"])
    _show_substreams(substreams, record["now_ms"])


def _show_facts(record: Mapping[str, Any]) -> None:
    facts = table_of("", "")
    for name, value in (
        ("watermark", format_time(record["watermark"])),
        ("coalesced watermark", format_time(record["coalesced_watermark"])),
        ("max event time", format_time(record["max_event_time"])),
        ("now", format_time(record["now_ms"])),
        ("rows", ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in record["rows"].items())),
    ):
        facts.add_row(name, value)
    show(facts)


def _show_queries(queries: Iterable[Mapping[str, Any]], now_ms: int) -> None:
    table = table_of("query", "batch", "open", "last contact")
    for query in queries:
        table.add_row(
            query["query"] + (" (retired)" if query["retired"] else ""),
            "-" if query["batch_id"] is None else str(query["batch_id"]),
            format_duration(now_ms - query["begun_ms"]) if query["batch_open"] else "no",
            _ago(now_ms, query["last_contact_ms"]),
        )
    show(table)


def _show_substreams(substreams: Iterable[Mapping[str, Any]], now_ms: int) -> None:
    columns = ("substream", "query", "state", "since", "watermark", "max event time", "skew", "last report", "late")
    table = table_of(*columns)
    for row in substreams:
        table.add_row(
            row["substream"],
            row["query"],
            row["state"],
            _ago(now_ms, row["since_ms"]),
            format_time(row["watermark"]),
            format_time(row["max_event_time"]),
            "-" if row["skew"] is None else format_duration(row["skew"]),
            _ago(now_ms, row["last_event_ms"]),
            str(row["rows"]["late"]),
        )
    show(table)


def explain(
    job: Job,
    limit: Annotated[int, typer.Option(min=1, max=10, help="Number of holders to list.")] = 3,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Show what holds the watermark, until when, and the watermark without it."""
    explanation = Coordinator(url).job("GET", job, ":explain", params={"limit": limit})
    if as_json:
        show_json(explanation)
        return
    show(job_sentence(explanation))
    now_ms = explanation["now_ms"]
    table = table_of("held by", "reason", "limits", "watermark without it and those above")
    for held_by in explanation["holders"]:
        limits = [
            f"{deadline['limit']} in {format_duration(deadline['at_ms'] - now_ms)}"
            + (" (if its query confirms)" if deadline["needs_query_report"] else "")
            for deadline in held_by["until"]
        ]
        table.add_row(
            plain_text(holder(held_by), now_ms),
            HOLDER_REASONS[held_by["reason"]],
            ", ".join(limits) or "none",
            format_time(held_by["watermark_without"]),
        )
    if explanation["holders"]:
        show(table)
    if explanation["next_step"] is not None:
        show(f"The throttle emits next when the data reaches {format_time(explanation['next_step'])}.")


def job_sentence(job: Mapping[str, Any]) -> str:
    """Return the name of a job, where its watermark is, and what holds it."""
    return f"{job['job']}: {_plain(status_sentence(job), job)}"


def _held_by(job: Mapping[str, Any]) -> str:
    if job["held_by"] is None:
        return "complete" if job["complete"] else "-"
    return _plain(holder(job["held_by"]), job)


def _plain(pieces: Iterable[Piece], job: Mapping[str, Any]) -> str:
    return plain_text(pieces, job["now_ms"])


def _lag(job: Mapping[str, Any]) -> str:
    return "-" if job["watermark"] is None else format_duration(job["now_ms"] - job["watermark"])


def _ago(now_ms: int, at_ms: int) -> str:
    return f"{format_duration(now_ms - at_ms)} ago"
