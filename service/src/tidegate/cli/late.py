"""The command for late rows."""

from typing import Annotated, Any

import typer

from tidegate.cli.coordinator import Coordinator
from tidegate.cli.options import LOCAL_URL, AsJson, Job, Substream, SubstreamQuery, Url
from tidegate.cli.output import show, show_json, table_of
from tidegate.reads.sentences import share_text
from tidegate.times import format_time

CLASSES = ("dropped", "diverted", "updated")


def late(
    job: Job,
    substream: Substream = None,
    query: SubstreamQuery = "",
    hours: Annotated[bool, typer.Option("--hours", help="Show each hour too.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of spans to list.")] = 20,
    url: Url = LOCAL_URL,
    as_json: AsJson = False,
) -> None:
    """Show updated, dropped and diverted rows, by substream and hour of event time."""
    parameters: dict[str, Any] = {"query": query, "limit": limit}
    if substream is not None:
        parameters["substream"] = substream
    answer: dict[str, Any] = Coordinator(url).job("GET", job, "/late", params=parameters)
    if as_json:
        show_json(answer)
        return
    rows = answer["rows"]
    classified = rows["on_time"] + rows["updated"] + rows["late"]
    totals = table_of("rows", *CLASSES)
    totals.add_row(*_cells({**answer, "rows": classified, "updated": rows["updated"]}))
    show(totals)
    if answer["spans"]:
        table = table_of("query", "substream", "from", "to", "rows", *CLASSES)
        for span in answer["spans"]:
            place = span["query"] or "-", span["substream"]
            table.add_row(*place, format_time(span["start"]), format_time(span["end"]), *_cells(span))
        show(table)
    if hours and answer["hours"]:
        table = table_of("hour", "rows", *CLASSES)
        for hour in answer["hours"]:
            table.add_row(format_time(hour["start"]), *_cells(hour))
        show(table)


def _cells(counts: dict[str, Any]) -> list[str]:
    rows = counts["rows"]
    return ["-" if rows is None else f"{rows:,}", *(_count(counts[row_class], rows) for row_class in CLASSES)]


def _count(count: int, rows: int | None) -> str:
    share = f" ({share_text(count / rows)})" if rows else ""
    return f"{count:,}{share}" if count else "-"
