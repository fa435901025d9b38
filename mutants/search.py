"""``python -m mutants --simulate``: check that the simulation finds each mutant that concerns state within a minute."""

from collections.abc import Sequence
from pathlib import Path

from mutants import client, domain
from mutants.mutant import Mutant
from mutants.runner import SEARCH_S, Copy, Found

MUTANTS = tuple(mutant for mutant in (*domain.MUTANTS, *client.MUTANTS) if mutant.concerns_state)
"""The mutants of the programs that the simulation runs. The mutants of the Lua functions mirror those of the domain."""


def search(mutants: Sequence[Mutant], root: Path, folder: Path) -> list[Found]:
    """Search for the mutants one after the other in a copy of the repository, and print the results.

    Mutants that the simulation cannot observe are printed with the reason, and not searched for.
    """
    copy = Copy(root, folder)
    copy.check_imports()
    found = []
    for mutant in mutants:
        mutant.check(copy.folder)
        if mutant.unseen:
            print(f"unseen           {mutant.name}  {mutant.unseen}", flush=True)
            continue
        found.append(copy.search(mutant))
        show(found[-1])
    return found


def show(found: Found) -> None:
    """Print one line for a mutant, and the detail of an error."""
    verdict = "found" if is_found(found) else "error" if found.detail else "missed"
    seed = "" if found.seed is None else f"  seed {found.seed}: {found.violation}"
    detail = f"\n    {found.detail}" if found.detail else ""
    print(f"{verdict:8} {found.seconds:5.1f} s  {found.mutant.name}{seed}{detail}", flush=True)


def is_found(found: Found) -> bool:
    """Return whether the simulation found the mutant in time."""
    return found.seed is not None and found.seconds <= SEARCH_S and not found.detail
