"""``python -m mutants [--only NAME] [--simulate]``: check that the tests, or the simulation, catch each mutant.

The exit status is 1 if a mutant survived or its check failed, and 2 if the run could not start.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from mutants.mutant import Mutant, MutantError, mutants
from mutants.runner import SEARCH_S, Copy, Found, Outcome

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "contributing" / "mutants.md"
FULL_TIER = tuple(f"tests/{name}/" for name in ("clusters", "faults", "fuzz", "images", "page", "scale", "spark"))
"""Directories with tests that `make test` does not run."""

HEAD = """\
# Mutation check

`make mutants` puts one deliberate defect at a time into a copy of the repository and runs the tests that must catch it.
The check fails if a defect survives. `make mutants ONLY=<name>` checks a single defect. Each defect is a patch in
`mutants/patches/`.

`make mutants` writes this page. The default tier is `make test`.

| defect | guarantee it breaks | caught by test | tier |
|---|---|---|---|
"""


def main() -> int:
    """Run the check, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m mutants", description="Check that the tests catch known defects.")
    parser.add_argument("--only", metavar="NAME", help="check a single mutant")
    parser.add_argument("--simulate", action="store_true", help="search for the mutants with the simulation")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in mutants() if mutant.is_simulated or not arguments.simulate]
    if arguments.only is not None:
        names = ", ".join(mutant.name for mutant in chosen)
        chosen = [mutant for mutant in chosen if mutant.name == arguments.only]
        if not chosen:
            print(f"No mutant is named {arguments.only!r}; choose one of {names}.", file=sys.stderr)
            return 2
    try:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            copy = Copy(ROOT, Path(folder))
            copy.check_imports()
            for mutant in chosen:
                mutant.apply(copy.folder, "--check")
            if arguments.simulate:
                return search(copy, chosen)
            outcomes = check(copy, chosen)
    except MutantError as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.only is None:
        PAGE.write_text(page(outcomes), encoding="utf-8")
    caught = sum(outcome.verdict == "caught" for outcome in outcomes)
    print(f"{caught} of {len(outcomes)} mutants caught.")
    return int(caught < len(outcomes))


def check(copy: Copy, chosen: Sequence[Mutant]) -> list[Outcome]:
    """Run the tests of mutants one after the other, and print the results.

    Raises:
        MutantError: If a test fails without a mutant.
    """
    tests = dict.fromkeys(test for mutant in chosen for test in mutant.tests)
    print(f"{len(chosen)} mutants; their tests without a mutant:", end=" ", flush=True)
    print(f"passed in {copy.check_baseline(tests):.1f} s", flush=True)
    outcomes = []
    for mutant in chosen:
        outcome = copy.outcome(mutant)
        detail = f"\n    {outcome.detail}" if outcome.detail else ""
        print(f"{outcome.verdict:8} {outcome.seconds:5.1f} s  {mutant.name}  {outcome.test}{detail}", flush=True)
        outcomes.append(outcome)
    return outcomes


def search(copy: Copy, chosen: Sequence[Mutant]) -> int:
    """Search for mutants one after the other with the simulation, print the results, and return the exit status.

    Mutants that the simulation cannot observe are printed with the reason, and not searched for.
    """
    results = []
    for mutant in chosen:
        if mutant.unseen:
            print(f"unseen           {mutant.name}  {mutant.unseen}", flush=True)
            continue
        found = copy.search(mutant)
        verdict = "found" if _is_found(found) else "error" if found.detail else "missed"
        seed = "" if found.seed is None else f"  seed {found.seed}: {found.violation}"
        detail = f"\n    {found.detail}" if found.detail else ""
        print(f"{verdict:8} {found.seconds:5.1f} s  {mutant.name}{seed}{detail}", flush=True)
        results.append(_is_found(found))
    print(f"{sum(results)} of {len(results)} mutants found within {SEARCH_S} s.")
    return int(not all(results))


def _is_found(found: Found) -> bool:
    """Return whether the simulation found the mutant in time."""
    return found.seed is not None and found.seconds <= SEARCH_S and not found.detail


def page(outcomes: Iterable[Outcome]) -> str:
    """Return the text of the page of the documentation."""
    rows = []
    for outcome in outcomes:
        mutant, tier = outcome.mutant, "full" if outcome.test.startswith(FULL_TIER) else "default"
        test = f"`{outcome.test}` | {tier}" if outcome.verdict == "caught" else f"**{outcome.verdict}** | "
        rows.append(f"| `{mutant.name}`: {mutant.defect} | {mutant.guarantee} | {test} |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    sys.exit(main())
