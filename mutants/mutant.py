"""A deliberate defect and the tests that must catch it."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

FULL_TIER = tuple(f"tests/{name}/" for name in ("clusters", "faults", "fuzz", "images", "page", "scale", "spark"))
"""Directories with tests of the full tier only."""


class Guarantee(StrEnum):
    """The guarantees of Tidegate, and access control."""

    MONOTONE = "Monotone"
    SAFE = "Safe"
    COMMITTED = "Committed"
    REPLAY_EXACT = "Replay-exact"
    IDEMPOTENT = "Idempotent"
    IDLENESS = "Evidence-based idleness"
    LIVE = "Live"
    EXACT = "Exact"
    ACCESS = "Access"


OF_STATE = frozenset(
    {
        Guarantee.MONOTONE,
        Guarantee.SAFE,
        Guarantee.COMMITTED,
        Guarantee.REPLAY_EXACT,
        Guarantee.IDEMPOTENT,
        Guarantee.IDLENESS,
    }
)
"""The guarantees about the state of a job, which the simulation checks."""


class MutantError(Exception):
    """The mutant cannot be checked; the message names it."""


@dataclass(frozen=True)
class Mutant:
    """A defect: one change to one file.

    Attributes:
        name: Name for ``make mutants ONLY=<name>``.
        defect: The behaviour of the changed program, in one sentence.
        guarantee: The guarantee that the defect breaks.
        file: Path of the file, relative to the root of the repository.
        old: Text to replace; it occurs exactly once in the file.
        new: Text that replaces ``old``.
        tests: pytest arguments (paths or node ids), of which at least one test must fail.
        unseen: Why the simulation cannot find the defect within a minute; empty if it must find the defect.
    """

    name: str
    defect: str
    guarantee: Guarantee
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    unseen: str = ""

    @property
    def concerns_state(self) -> bool:
        """Whether the defect breaks a guarantee about state, which the simulation checks."""
        return self.guarantee in OF_STATE

    def changed(self, text: str) -> str:
        """Return the text of the file with the defect.

        Raises:
            MutantError: If the old text does not occur exactly once, or the result is not valid Python.
        """
        count = text.count(self.old)
        if count != 1:
            raise MutantError(
                f"{self.name}: the old text occurs {count} times in {self.file}, expected once; update the mutant."
            )
        changed = text.replace(self.old, self.new)
        if self.file.endswith(".py"):
            try:
                compile(changed, self.file, "exec")
            except SyntaxError as error:
                raise MutantError(f"{self.name}: the new text is not valid Python ({error}); fix it.") from None
        return changed

    def check(self, root: Path) -> None:
        """Raise MutantError unless the mutant can be applied to the tree at ``root``."""
        path = root / self.file
        if not path.is_file():
            raise MutantError(f"{self.name}: {self.file} does not exist; update the mutant.")
        self.changed(path.read_text(encoding="utf-8"))


def tier(test: str) -> str:
    """Return the tier in which a test runs: ``default`` or ``full``."""
    return "full" if test.startswith(FULL_TIER) else "default"
