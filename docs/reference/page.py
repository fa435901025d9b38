"""The text of ``docs/reference.md``."""

from pathlib import Path

from docs.reference import api, commands, python
from docs.reference.tables import table

FILE = Path(__file__).parents[1] / "reference.md"

HEAD = """\
# Reference

This page lists the names of the API, of the command line and of the Python package. `make reference` writes
it from the code. The [glossary](glossary.md) explains the terms. The [metrics](operations.md#metrics) and the
[settings](../README.md#run-the-coordinator) have their own tables."""


def page() -> str:
    """Return the text of ``docs/reference.md``."""
    sections = {
        "## API: members of bodies and answers": table(("member", "schemas", "meaning"), api.members()),
        "## API: parameters and headers": table(("parameter", "calls", "meaning"), api.parameters()),
        "## Command line: commands": table(("command", "meaning"), commands.commands()),
        "## Command line: options": table(("option", "commands", "meaning"), commands.options()),
        "## Python: `tidegate_spark`": table(("name", "parameter or attribute", "meaning"), python.exports()),
    }
    return "\n\n".join([HEAD, *(f"{title}\n\n{text}" for title, text in sections.items())]) + "\n"
