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
"""Columns of words and names, which can take several lines."""
FOLDED_WIDTH = 12


class _Plain(Table):
    """A table whose cells are plain text. Names can contain what rich would interpret as markup."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(escape(visible(cell)) for cell in cells), **options)


def table_of(*columns: str) -> Table:
    """Return a table that shows every cell in full: names are folded, numbers and times stay on one line."""
    table = _Plain(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        if column in FOLDED:
            table.add_column(column, overflow="fold", min_width=FOLDED_WIDTH)
        else:
            table.add_column(column, no_wrap=True)
    return table


def show(what: Table | str) -> None:
    """Print a text or a table. A table that does not fit is wider than the terminal, and not cut off."""
    # Files and pipes have no width.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    if isinstance(what, Table):
        for column in what.columns:
            if column.no_wrap:
                column.min_width = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
        unbounded = console.options.update(max_width=WIDEST)
        console.width = max(console.width, Measurement.get(console, unbounded, what).minimum)
    console.print(escape(visible(what)) if isinstance(what, str) else what, soft_wrap=isinstance(what, str))


def show_json(what: Iterable[Any]) -> None:
    """Print JSON."""
    typer.echo(json.dumps(what, indent=2))
