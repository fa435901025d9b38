"""The page of the command line, from Typer."""

import re

import typer
from typer.cli import get_docs_for_click

from tidegate.__main__ import cli

HEAD = """\
Install the package `tidegate` to get this command. `TIDEGATE_URL` is the address of the coordinator, and
`TIDEGATE_TOKEN` is the key. `tidegate --install-completion` installs completion for your shell.
[Exit statuses](errors.md#exit-statuses) are the same for all commands.
"""


def page() -> str:
    """Return the page."""
    command = typer.main.get_command(cli)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="tidegate", title="Command line")
    title, _, rest = text.partition("\n\n")
    return f"{title}\n\n{HEAD}\n{re.sub(r'^Coordinate.*?(?=^[*][*]Usage)', '', rest, flags=re.DOTALL | re.MULTILINE)}"
