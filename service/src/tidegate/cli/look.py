"""What operators ask: which jobs there are, how one stands, who holds it, what happened, and when it will be there."""

import json
import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from tidegate.cli.coordinator import HERE, NOT_REACHED, AsJson, Coordinator, Url
from tidegate.cli.output import print_json, table_of, tell
from tidegate.cli.times import duration_s, moment
from tidegate.domain.journal import Kind
from tidegate.times import for_how_long, shown
from tidegate.wording import REASONS, Piece, details, holding, plain, sentence

Job = Annotated[str, typer.Argument(help="The job.")]
Kinds = Annotated[list[Kind] | None, typer.Option("--kind", help="Show only records of this kind; repeatable.")]
PAGE = 1000
LONGEST_POLL_S = 60.0
BACK_S = 1.0


def jobs(url: Url = HERE, as_json: AsJson = False) -> None:
    """All jobs, and where they stand."""
    coordinator = Coordinator(url)
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = coordinator.call("GET", "/v1/jobs", params={"limit": PAGE, "after": after})
        found += page["jobs"]
        after = page["next"]
    if as_json:
        print_json(found)
        return
    table = table_of("job", "stands", "watermark", "lag", "held by", "active", "idle", "done", "late")
    for job in found:
        counts = job["substreams"]
        table.add_row(
            job["job"],
            job["health"].replace("_", " "),
            shown(job["watermark"]),
            _lag(job),
            _held_by(job),
            str(counts["active"]),
            str(counts["idle"]),
            str(counts["done"]),
            str(job["rows"]["late"]),
        )
    tell(table)


def status(
    job: Job,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="So many substreams, the furthest behind first.")] = 20,
    url: Url = HERE,
    as_json: AsJson = False,
) -> None:
    """One job: its watermark, its queries, its substreams."""
    coordinator = Coordinator(url)
    record = coordinator.job("GET", job)
    queries = coordinator.job("GET", job, "/queries")["queries"]
    parameters = {"sort": "watermark", "limit": limit}
    substreams = coordinator.job("GET", job, "/substreams", params=parameters)["substreams"]
    if as_json:
        print_json({"job": record, "queries": queries, "substreams": substreams})
        return
    now_ms = record["now_ms"]
    tell(told_of(record))
    facts = table_of("", "")
    rows = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in record["rows"].items())
    for name, value in (
        ("watermark", shown(record["watermark"])),
        ("coalesced watermark", shown(record["coalesced_watermark"])),
        ("max event time", shown(record["max_event_time"])),
        ("now", shown(now_ms)),
        ("rows", rows),
    ):
        facts.add_row(name, value)
    tell(facts)
    if queries:
        table = table_of("query", "batch", "open", "last word")
        for query in queries:
            is_open = for_how_long(now_ms - query["begun_ms"]) if query["batch_open"] else "no"
            ended = " (retired)" if query["retired"] else ""
            table.add_row(
                query["query"] + ended, _text(query["batch_id"]), is_open, _ago(now_ms, query["last_contact_ms"])
            )
        tell(table)
    table = table_of(
        "substream", "query", "state", "since", "watermark", "max event time", "skew", "last report", "late"
    )
    for row in substreams:
        table.add_row(
            row["substream"],
            row["query"],
            row["state"],
            _ago(now_ms, row["since_ms"]),
            shown(row["watermark"]),
            shown(row["max_event_time"]),
            "-" if row["skew"] is None else for_how_long(row["skew"]),
            _ago(now_ms, row["last_event_ms"]),
            str(row["rows"]["late"]),
        )
    tell(table)


def explain(
    job: Job,
    limit: Annotated[int, typer.Option(min=1, max=10, help="So many holders.")] = 3,
    url: Url = HERE,
    as_json: AsJson = False,
) -> None:
    """Who holds the watermark, until when at most, and where it would be without them."""
    told = Coordinator(url).job("GET", job, ":explain", params={"limit": limit})
    if as_json:
        print_json(told)
        return
    tell(told_of(told))
    table = table_of("held by", "because", "until at most", "without it, and those above")
    for held in told["holders"]:
        limits = [
            f"{one['limit']} in {for_how_long(one['at_ms'] - told['now_ms'])}"
            + (" (if its query says so)" if one["needs_query_report"] else "")
            for one in held["until"]
        ]
        table.add_row(
            _plain(holding(held), told),
            REASONS[held["reason"]],
            ", ".join(limits) or "for ever",
            shown(held["watermark_without"]),
        )
    if told["holders"]:
        tell(table)
    if told["next_step"] is not None:
        tell(f"The throttle lets it move when the data has come to {shown(told['next_step'])}.")


def history(
    job: Job,
    as_of: Annotated[str | None, typer.Option(help="What was in force at that moment of processing time.")] = None,
    kind: Kinds = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="So many records, the latest first.")] = 20,
    url: Url = HERE,
    as_json: AsJson = False,
) -> None:
    """What happened to a job, and who did it."""
    parameters: dict[str, Any] = {"limit": limit, "kind": kind or []}
    if as_of is not None:
        parameters["as_of"] = moment(as_of)
    told = Coordinator(url).job("GET", job, "/history", params=parameters)
    if as_json:
        print_json(told)
        return
    if as_of is not None:
        force = told["as_of"]
        tell(
            f"At {shown(moment(as_of))} there was no watermark, or it is no longer kept."
            if force is None
            else f"At {shown(moment(as_of))} the watermark was {shown(force.get('watermark'))}, held by "
            f"{_plain(holding(force | {'reason': force['held_by']}), told) if force.get('held_by') else 'nobody'}."
        )
    table = table_of("at", "what", "")
    for record in told["records"]:
        table.add_row(shown(record["at_ms"]), record.get("action", record["kind"]), _plain(details(record), told))
    tell(table)


def watch(
    job: Job,
    kind: Kinds = None,
    url: Url = HERE,
    as_json: AsJson = False,
) -> None:
    """What happens to a job, as it happens, until Ctrl-C; over broken connections without a gap."""
    import httpx

    coordinator = Coordinator(url)
    coordinator.job("GET", job)
    last_id: str | None = None
    while True:
        try:
            for event_id, name, data in coordinator.events(job, last_id, kind=kind or []):
                last_id = event_id
                if as_json:
                    typer.echo(json.dumps({"event": name, **data}))
                elif name in ("state", "reset"):
                    tell(f"{shown(data['now_ms'])}  {name:<12} {told_of(data)}")
                elif name == "deleted":
                    tell("The job was deleted.")
                    return
                else:
                    at_ms = data["at_ms"]
                    tell(f"{shown(at_ms)}  {data.get('action', name):<12} {plain(details(data), at_ms)}")
        except httpx.TransportError as error:
            typer.echo(f"tidegate: {error or type(error).__name__}; connecting again.", err=True)
        except KeyboardInterrupt:
            return
        time.sleep(BACK_S)


def wait(
    job: Job,
    at_least: Annotated[str, typer.Option(help="The watermark to wait for: 2013-01-14T00:00Z, or milliseconds.")],
    timeout: Annotated[str, typer.Option(help="For how long: 90s, 30m, 2h, 1d.")] = "1h",
    url: Url = HERE,
    as_json: AsJson = False,
) -> None:
    """Wait until the watermark is there: exit status 0 when it is, 3 when it isn't in time.

    tidegate wait flights --at-least 2013-01-14T00:00Z --timeout 2h && run-batch
    """
    coordinator, goal = Coordinator(url), moment(at_least)
    deadline = time.monotonic() + duration_s(timeout)
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        poll_s = min(left_s, LONGEST_POLL_S)
        parameters = {"at_least": goal, "timeout_s": poll_s}
        told = coordinator.job("GET", job, "/watermark", read_s=poll_s + 30, params=parameters)
        if told["reached"] or left_s == 0:
            break
    if as_json:
        print_json(told)
    else:
        tell(told_of(told))
    if not told["reached"]:
        raise typer.Exit(NOT_REACHED)


def told_of(job: Mapping[str, Any]) -> str:
    """Where a job is, in a sentence."""
    return f"{job['job']}: {_plain(sentence(job), job)}"


def _held_by(job: Mapping[str, Any]) -> str:
    if job["held_by"] is None:
        return "complete" if job["complete"] else "nobody"
    return _plain(holding(job["held_by"]), job)


def _plain(pieces: Iterable[Piece], told: Mapping[str, Any]) -> str:
    return plain(pieces, told["now_ms"])


def _lag(job: Mapping[str, Any]) -> str:
    return "-" if job["watermark"] is None else for_how_long(job["now_ms"] - job["watermark"])


def _ago(now_ms: int, at_ms: int) -> str:
    return f"{for_how_long(now_ms - at_ms)} ago"


def _text(value: object) -> str:
    return "-" if value is None else str(value)
