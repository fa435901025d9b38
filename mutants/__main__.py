"""``python -m mutants [--only NAME]``: check that the tests catch each mutant.

The exit status is 1 if a mutant survived or its check failed, and 2 if the run could not start.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mutants import client, domain, lua, service
from mutants.mutant import Mutant, MutantError
from mutants.page import PAGE, page
from mutants.runner import Copy, Outcome

ROOT = Path(__file__).parents[1]
MUTANTS = (*domain.MUTANTS, *lua.MUTANTS, *service.MUTANTS, *client.MUTANTS)


def chosen(only: str | None) -> Sequence[Mutant]:
    """Return all mutants, or the one with the name ``only``.

    Raises:
        MutantError: If no mutant has that name.
    """
    if only is None:
        return MUTANTS
    found = [mutant for mutant in MUTANTS if mutant.name == only]
    if not found:
        names = ", ".join(mutant.name for mutant in MUTANTS)
        raise MutantError(f"No mutant is named {only!r}; choose one of {names}.")
    return found


def show(outcome: Outcome) -> None:
    """Print one line for a mutant, and the detail of an error."""
    detail = f"\n    {outcome.detail}" if outcome.detail else ""
    print(f"{outcome.verdict:8} {outcome.seconds:5.1f} s  {outcome.mutant.name}  {outcome.test}{detail}", flush=True)


def check(mutants: Sequence[Mutant], folder: Path) -> list[Outcome]:
    """Check mutants one after the other in a copy of the repository.

    Raises:
        MutantError: If a mutant cannot be applied, or a test fails without a mutant.
    """
    copy = Copy(ROOT, folder)
    copy.check_imports()
    for mutant in mutants:
        mutant.check(copy.folder)
    tests = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
    print(f"{len(mutants)} mutants; their tests without a mutant:", end=" ", flush=True)
    print(f"passed in {copy.check_baseline(tests):.1f} s", flush=True)
    outcomes = []
    for mutant in mutants:
        outcomes.append(copy.outcome(mutant))
        show(outcomes[-1])
    return outcomes


def main() -> int:
    """Run the check. After a run of all mutants, write the page."""
    parser = argparse.ArgumentParser(prog="python -m mutants", description="Check that the tests catch known defects.")
    parser.add_argument("--only", metavar="NAME", help="check a single mutant")
    only: str | None = parser.parse_args().only
    try:
        mutants = chosen(only)
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            outcomes = check(mutants, Path(folder))
    except MutantError as error:
        print(error, file=sys.stderr)
        return 2
    if only is None:
        (ROOT / PAGE).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / PAGE).write_text(page(outcomes), encoding="utf-8")
    caught = sum(outcome.verdict == "caught" for outcome in outcomes)
    print(f"{caught} of {len(outcomes)} mutants caught.")
    return 0 if caught == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
