"""The installed wheels run the programs on the pages of both distributions."""

from pathlib import Path

import pytest

from tests.packages.building import ROOT
from tests.packages.page import ADDRESS, Installation, Page

PAGES = ("service/README.md", "spark_client/README.md")


@pytest.mark.parametrize("name", PAGES)
def test_the_program_and_the_commands_of_a_page_run(name: str, environment: Path, tmp_path: Path) -> None:
    """They need only both wheels, their declared dependencies and an empty folder."""
    page = Page.read(ROOT / name)
    assert page.program
    assert page.output
    assert page.commands
    folder = tmp_path / "empty"
    folder.mkdir()
    installation = Installation(environment, folder)
    with installation.coordinator() as (address, line):
        assert line.replace(address, ADDRESS) in (ROOT / name).read_text().splitlines()
        installation.run_page(page, address)
