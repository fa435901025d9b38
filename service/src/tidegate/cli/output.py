"""Output of commands: text, tables, JSON."""

import json
import sys
from collections.abc import Iterable
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from tidegate.escapes import visible

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
