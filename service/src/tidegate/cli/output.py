"""What commands print: text and tables for people, JSON for programs."""

import json
import sys
from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidegate.escapes import visible

WIDE = 10_000


class _Plain(Table):
    """A table whose cells are text: names may hold what rich would take for markup."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(escape(visible(cell)) for cell in cells), **options)


def table_of(*columns: str) -> Table:
    return _Plain(*columns, box=None, header_style="bold", pad_edge=False)


def tell(what: Table | str) -> None:
    # What goes to a file or another program is not cut to the width of a terminal that isn't there.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    console.print(escape(visible(what)) if isinstance(what, str) else what, soft_wrap=isinstance(what, str))


def print_json(what: Iterable[Any]) -> None:
    typer.echo(json.dumps(what, indent=2))
