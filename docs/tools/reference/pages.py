"""The generated pages of the reference."""

from pathlib import Path

from docs.tools.reference import commands, configuration, rest

FOLDER = Path(__file__).parents[2] / "reference"
PAGES = {"rest.md": rest.page, "cli.md": commands.page, "configuration.md": configuration.page}
"""Functions that return the text of a page, by the name of its file."""
