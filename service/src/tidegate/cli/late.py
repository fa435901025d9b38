"""The command that shows late rows."""

from typing import Annotated, Any

import typer

from tidegate.cli.coordinator import Coordinator
from tidegate.cli.options import LOCAL_URL, AsJson, Job, QueryOfSubstream, Substream, Url
from tidegate.cli.output import show_json, show_table
from tidegate.times import format_time
from tidegate.views.sentences import share_text

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
