"""What several commands share: arguments, options, and the output of text, tables and JSON."""

import json
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from typing import Annotated, Any, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from tidegate import times
from tidegate.cli.coordinator import Coordinator
from tidegate.escapes import visible

Value = TypeVar("Value")

LOCAL_URL = "http://127.0.0.1:8000"
COMPLETION_S = 1.0


def _jobs_with_prefix(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of jobs for shell completion. Return none if the coordinator does not answer within a second."""
    coordinator = Coordinator(context.params.get("url") or os.environ.get("TIDEGATE_URL") or LOCAL_URL)
    # A page begins after its cursor, so the cursor is shorter than the name to complete.
    parameters = {"after": incomplete[:-1], "limit": 1000}
    with redirect_stderr(StringIO()):  # an error message would disturb the prompt
        try:
            page = coordinator.call("GET", "/v1/jobs", read_s=COMPLETION_S, params=parameters)
        except typer.Exit:
            return []
    return [job["job"] for job in page["jobs"] if job["job"].startswith(incomplete)]


Job = Annotated[str, typer.Argument(help="Name of the job.", autocompletion=_jobs_with_prefix)]
Url = Annotated[str, typer.Option(envvar="TIDEGATE_URL", help="URL of the coordinator.", rich_help_panel="Connection")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Substream = Annotated[str | None, typer.Option(help="Name of a substream. Omit it for the whole job.")]
QueryOfSubstream = Annotated[
    str | None,
    typer.Option(
        "--query",
        help="Query of the substream. Required only if several queries have a substream with this name. Empty for "
        "reports without batches.",
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Accept a time that looks like seconds, microseconds or a date in place of milliseconds."
    ),
]


def time(text: str, round_up: bool = False) -> int:
    """Return Unix milliseconds from a text on the command line.

    Args:
        text: See :func:`tidegate.times.parse_time`.
        round_up: Whether a part of a millisecond is rounded up instead of down.

    Raises:
        typer.BadParameter: If the text is not a time.
    """
    return _parsed(partial(times.parse_time, round_up=round_up), text)


def duration_s(text: str) -> float:
    """Return seconds from a text on the command line.

    Raises:
        typer.BadParameter: If the text is not a duration.
    """
    return _parsed(times.parse_duration_s, text)


def duration_ms(text: str) -> int:
    """Return milliseconds from a text on the command line.

    Raises:
        typer.BadParameter: If the text is not a duration.
    """
    return round(duration_s(text) * times.MS)


def _parsed(parse: Callable[[str], Value], text: str) -> Value:
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def time_option(help_text: str, round_up: bool = False) -> Any:
    """Return a command-line option that converts a time to Unix milliseconds; ``round_up`` is as in :func:`time`."""
    return typer.Option(parser=partial(time, round_up=round_up), metavar="TIME", help=help_text)


def duration_option(help_text: str) -> Any:
    """Return the option for a duration, whose value is milliseconds."""
    return typer.Option(parser=duration_ms, metavar="DURATION", help=help_text)


WIDE = WIDEST = 10_000
FOLDED = ("", "job", "query", "substream", "held by", "reason", "limits", "event", "quotas", "name", "jobs")
"""Columns whose cells wrap, because they contain words or names."""
FOLDED_WIDTH = 12


def show_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Print a table without cutting off cells. Names wrap. Numbers and times stay on one line."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        if name in FOLDED:
            table.add_column(name, overflow="fold", min_width=FOLDED_WIDTH)
        else:
            table.add_column(name, no_wrap=True)
    for row in rows:  # escaped, because names can contain the markup of rich
        table.add_row(*(escape(visible(cell)) for cell in row))
    for column in table.columns:
        if column.no_wrap:
            column.min_width = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
    # A table that does not fit becomes wider than the terminal, so that no cell is cut off.
    console = _console()
    unbounded = console.options.update(max_width=WIDEST)
    console.width = max(console.width, Measurement.get(console, unbounded, table).minimum)
    console.print(table)


def show(text: str) -> None:
    """Print a text."""
    _console().print(escape(visible(text)), soft_wrap=True)


def _console() -> Console:
    # Lines in a file or a pipe do not wrap.
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)


def show_json(what: Iterable[Any]) -> None:
    """Print JSON."""
    typer.echo(json.dumps(what, indent=2))
