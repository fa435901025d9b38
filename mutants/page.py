"""The page ``docs/contributing/mutants.md``."""

from collections.abc import Iterable
from pathlib import Path

from mutants.mutant import tier
from mutants.runner import Outcome

PAGE = Path("docs") / "contributing" / "mutants.md"

_HEAD = """\
# Mutation check

`make mutants` puts one deliberate defect at a time into a copy of the repository and runs the tests that must catch it.
The check fails if a defect survives. `make mutants ONLY=<name>` checks a single defect. `mutants/` defines the defects.

`make mutants` writes this page. The default tier is `make test`.

| defect | guarantee it breaks | caught by test | tier |
|---|---|---|---|
"""


def page(outcomes: Iterable[Outcome]) -> str:
    """Return the text of the page."""
    rows = []
    for outcome in outcomes:
        mutant = outcome.mutant
        test = f"`{outcome.test}`" if outcome.verdict == "caught" else f"**{outcome.verdict}**"
        ran_in = tier(outcome.test) if outcome.test else ""
        rows.append(f"| `{mutant.name}`: {mutant.defect} | {mutant.guarantee} | {test} | {ran_in} |\n")
    return _HEAD + "".join(rows)
