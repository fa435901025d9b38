"""The reference describes every public name of the API, the command line and the client."""

import inspect
import re
from typing import Any

import pytest
import typer

import tidegate_spark
from docs.tools.reference.pages import FOLDER, PAGES
from tidegate.__main__ import cli

PYTHON = (FOLDER / "python.md").read_text()


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_current(name: str) -> None:
    """`make reference` generates the pages."""
    assert (FOLDER / name).read_text() == PAGES[name]()


def test_every_command_and_option_has_a_description() -> None:
    def check(command: Any) -> None:
        assert command.help, command.name
        for parameter in command.params:
            assert parameter.help or not parameter.opts[0].startswith("-"), (command.name, parameter.name)
        for child in getattr(command, "commands", {}).values():
            check(child)

    check(typer.main.get_command(cli))


def test_the_page_of_the_package_has_every_export() -> None:
    shown = set(re.findall(r"^::: tidegate_spark\.(\w+)$", PYTHON, re.MULTILINE))
    assert shown - {"windows", "testing"} == set(tidegate_spark.__all__)


def test_every_public_name_of_the_package_has_a_docstring() -> None:
    missing = [
        f"{name}.{member}"
        for name in tidegate_spark.__all__
        if inspect.isclass(export := getattr(tidegate_spark, name))
        for member, value in vars(export).items()
        if member[0] != "_" and callable(value) and not inspect.getdoc(value)
    ]
    assert not missing
    assert all(inspect.getdoc(getattr(tidegate_spark, name)) for name in tidegate_spark.__all__ if name[0].islower())
