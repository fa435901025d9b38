"""``python -m mutants [--only NAME] [--simulate]``: check that the tests, or the simulation, catch each mutant.

The exit status is 1 if a mutant survived or its check failed, and 2 if the run could not start.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mutants import client, domain, lua, search, service
from mutants.mutant import Mutant, MutantError
from mutants.page import PAGE, page
from mutants.runner import SEARCH_S, Copy, Outcome

ROOT = Path(__file__).parents[1]
MUTANTS = (*domain.MUTANTS, *lua.MUTANTS, *service.MUTANTS, *client.MUTANTS)


def chosen(only: str | None, mutants: Sequence[Mutant] = MUTANTS) -> Sequence[Mutant]:
    """Return all mutants, or the one with the name ``only``.

    Raises:
        MutantError: If no mutant has that name.
    """
    if only is None:
        return mutants
    found = [mutant for mutant in mutants if mutant.name == only]
    if not found:
        names = ", ".join(mutant.name for mutant in mutants)
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
    """Run the check, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m mutants", description="Check that the tests catch known defects.")
    parser.add_argument("--only", metavar="NAME", help="check a single mutant")
    parser.add_argument("--simulate", action="store_true", help="search for the mutants with the simulation")
    arguments = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            return (_search if arguments.simulate else _test)(arguments.only, Path(folder))
    except MutantError as error:
        print(error, file=sys.stderr)
        return 2


def _search(only: str | None, folder: Path) -> int:
    found = search.search(chosen(only, search.MUTANTS), ROOT, folder)
    print(f"{sum(search.is_found(each) for each in found)} of {len(found)} mutants found within {SEARCH_S} s.")
    return 0 if all(map(search.is_found, found)) else 1


def _test(only: str | None, folder: Path) -> int:
    """Run the tests. After a run of all mutants, write the page."""
    outcomes = check(chosen(only), folder)
    if only is None:
        (ROOT / PAGE).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / PAGE).write_text(page(outcomes), encoding="utf-8")
    caught = sum(outcome.verdict == "caught" for outcome in outcomes)
    print(f"{caught} of {len(outcomes)} mutants caught.")
    return 0 if caught == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
