"""Every public name of the API, the command line and the client is documented."""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import tidegate_spark
from docs.reference.page import FILE, page
from docs.reference.python import members_of
from tests.support.api import DOCUMENT
from tidegate.__main__ import cli

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("glossary.md", "reference.md", "api.md", "operations.md", "spark.md")


def documented() -> set[str]:
    """Return the words in backticks on the pages that document names."""
    text = "\n".join(re.sub(r"```.*?```", "", (DOCS / name).read_text(), flags=re.DOTALL) for name in PAGES)
    return {word for code in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"[\w-]+", code)}


def undocumented(names: set[str]) -> set[str]:
    assert names
    return names - documented()


def members(part: Any) -> Iterator[str]:
    """Yield the names of properties and parameters in a part of the OpenAPI document."""
    if isinstance(part, dict):
        yield from part.get("properties", ())
        yield from (parameter["name"] for parameter in part.get("parameters", ()))
        for value in part.values():
            yield from members(value)
    elif isinstance(part, list):
        for value in part:
            yield from members(value)


def commands(command: Any) -> Iterator[str]:
    """Yield the names of commands and options below a command."""
    for parameter in command.params:
        yield from (option for option in (*parameter.opts, *parameter.secondary_opts) if option.startswith("-"))
    for name, child in getattr(command, "commands", {}).items():
        yield name
        yield from commands(child)


def exports(name: str) -> Iterator[str]:
    """Yield the names of an export, its methods, fields and parameters."""
    export = getattr(tidegate_spark, name)
    yield name
    functions = [export] if inspect.isfunction(export) else []
    if inspect.isclass(export):
        # String attributes are error messages.
        public = {name for name, value in members_of(export).items() if name[0] != "_" and not isinstance(value, str)}
        functions = [getattr(export, member) for member in public if callable(getattr(export, member))]
        yield from public
        # The fields of a stream store the arguments of its methods.
        yield from () if export is tidegate_spark.Stream else inspect.get_annotations(export)
    for function in functions:
        yield from set(inspect.signature(function).parameters) - {"self"}


def test_an_invented_name_is_not_documented() -> None:
    """`undocumented` finds names that no page documents."""
    assert undocumented({"watermark", "high_tide_mark", "--at-least", "--at-last"}) == {"high_tide_mark", "--at-last"}


def test_every_name_of_the_api_is_documented() -> None:
    assert not undocumented(set(members(json.loads(DOCUMENT.read_text()))))


def test_every_command_and_option_is_documented() -> None:
    assert not undocumented(set(commands(typer.main.get_command(cli))))


def test_every_export_of_the_client_is_documented() -> None:
    assert not undocumented({word for name in tidegate_spark.__all__ for word in exports(name)})


def test_the_reference_page_is_current() -> None:
    """`make reference` generates the page."""
    assert FILE.read_text() == page()
