"""What became of rows that came too late: of which substreams, and of which hours of event time they were."""

from typing import Annotated, Any

import typer

from tidegate.cli.coordinator import HERE, AsJson, Coordinator, Url
from tidegate.cli.output import print_json, table_of, tell
from tidegate.times import shown
from tidegate.wording import lost

WENT = ("dropped", "diverted", "updated")


def late(
    job: Annotated[str, typer.Argument(help="The job.")],
    substream: Annotated[str | None, typer.Option(help="Of this substream, not of the job.")] = None,
    query: Annotated[str, typer.Option(help="The query whose substream it is.")] = "",
    hours: Annotated[bool, typer.Option("--hours", help="Each hour, too.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="So many losses at the most.")] = 20,
    url: Url = HERE,
    as_json: AsJson = False,
) -> None:
    """What became of late rows: how many were dropped, diverted, or changed a result; where, and when."""
    asked: dict[str, Any] = {"query": query, "limit": limit}
    if substream is not None:
        asked["substream"] = substream
    told: dict[str, Any] = Coordinator(url).job("GET", job, "/late", params=asked)
    if as_json:
        print_json(told)
        return
    rows = told["rows"]
    judged = rows["on_time"] + rows["updated"] + rows["late"]
    totals = table_of("rows", *WENT)
    counts = (told["dropped"], told["diverted"], rows["updated"])
    totals.add_row(f"{judged:,}", *(_of(count, judged) for count in counts))
    tell(totals)
    if told["spans"]:
        table = table_of("query", "substream", "from", "to", "rows", *WENT)
        for span in told["spans"]:
            table.add_row(
                span["query"] or "-", span["substream"], shown(span["start"]), shown(span["end"]), *_counted(span)
            )
        tell(table)
    if hours and told["hours"]:
        table = table_of("hour", "rows", *WENT)
        for hour in told["hours"]:
            table.add_row(shown(hour["start"]), *_counted(hour))
        tell(table)


def _counted(counts: dict[str, Any]) -> list[str]:
    rows = counts["rows"]
    return ["-" if rows is None else f"{rows:,}", *(_of(counts[what], rows) for what in WENT)]


def _of(count: int, rows: int | None) -> str:
    share = f" ({lost(count / rows)})" if rows else ""
    return f"{count:,}{share}" if count else "-"
