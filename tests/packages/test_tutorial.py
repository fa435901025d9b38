"""The tutorial runs in an empty folder with the installed wheels, and prints what the page shows."""

import re
from pathlib import Path

from tests.packages.building import ROOT
from tests.packages.page import ADDRESS, PROGRAM_S, Installation
from tests.support.programs import run

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
FILES = re.findall(r'^```python title="([^"]+)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)
CONSOLE = "".join(re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(
    r"^\$ ((?:python|tidegate|tidegate-audit|for) (?!serve).*)\n((?:(?!\$ ).*\n)*)", CONSOLE, re.MULTILINE
)
"""The commands after the installation, each with its output. There, ``…`` stands for any text."""


def test_the_tutorial(environment: Path, tmp_path: Path) -> None:
    assert len(FILES) == 3
    assert len(COMMANDS) >= 12
    folder = tmp_path / "empty"
    folder.mkdir()
    installation = Installation(environment, folder)
    with installation.coordinator() as (address, line):
        assert line.replace(address, ADDRESS) in PAGE.splitlines()
        for name, text in FILES:
            (folder / name).write_text(text.replace(ADDRESS, address))
        variables = installation.variables(TIDEGATE_URL=address)
        for command, output in COMMANDS:
            printed = run("sh", "-c", command, cwd=folder, env=variables, timeout_s=PROGRAM_S)
            expected = re.escape(output.strip()).replace("…", ".*")
            # On a slow machine, the slowest substream has been silent for some time when the command runs.
            expected = expected.replace(
                re.escape("the slowest substream"), r"(?:the\ slowest\ substream|silent\ for\ \d+\ s)"
            )
            assert re.fullmatch(expected, printed.strip(), re.DOTALL), f"{command}: {printed}"
