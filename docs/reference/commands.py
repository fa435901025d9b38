"""The commands and options of ``tidegate``."""

from collections.abc import Iterator
from typing import Any

import typer

from docs.reference.tables import Row, by_meaning, code, plain
from tidegate.__main__ import cli


def commands() -> list[Row]:
    """Return a row for each command, with its arguments and its description."""
    rows = []
    for name, command in _commands(typer.main.get_command(cli)):
        if hasattr(command, "commands"):
            continue
        arguments = "".join(f" {parameter.name.upper()}" for parameter in command.params if not _is_option(parameter))
        rows.append((code(name + arguments), plain(command.help.partition("\n\n")[0])))
    return [*sorted(rows)]


def options() -> list[Row]:
    return by_meaning(
        (", ".join(map(code, parameter.opts)), name or "tidegate", parameter.help)
        for name, command in _commands(typer.main.get_command(cli))
        for parameter in command.params
        if _is_option(parameter)
    )


def _commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name and the definition of each command, command groups included."""
    yield name, command
    for child, below in getattr(command, "commands", {}).items():
        yield from _commands(below, f"{name} {child}".strip())


def _is_option(parameter: Any) -> bool:
    return bool(parameter.opts[0].startswith("-"))
