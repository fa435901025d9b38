"""Deliberate defects, as patches with the tests that must catch them."""

import email
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PATCHES = Path(__file__).parent / "patches"
OF_STATE = ("Monotone", "Safe", "Committed", "Written", "Replay-exact", "Idempotent", "Evidence-based idleness")
"""The guarantees about the state of a job, which the simulation checks."""
SIMULATED = ("domain-", "client-")
"""Prefixes of the defects of programs that the simulation runs. The functions in Lua have the defects of the domain."""


class MutantError(Exception):
    """Raised when a mutant cannot be checked. The message names it."""


@dataclass(frozen=True)
class Mutant:
    """A defect: one change to one file.

    Attributes:
        patch: The file with the change. Its head has the other attributes.
        defect: The behaviour of the changed program, in one sentence.
        guarantee: The guarantee that the defect breaks.
        tests: pytest arguments (paths or node ids), of which at least one test must fail.
        unseen: Why the simulation cannot find the defect within a minute. Empty if it must find the defect.
    """

    patch: Path
    defect: str
    guarantee: str
    tests: tuple[str, ...]
    unseen: str

    @classmethod
    def read(cls, patch: Path) -> "Mutant":
        """Return the mutant in a file."""
        head = email.message_from_string(patch.read_text(encoding="utf-8"))
        return cls(patch, head["Defect"], head["Guarantee"], tuple(head.get_all("Test", ())), head.get("Unseen", ""))

    @property
    def name(self) -> str:
        """The name for ``make mutants ONLY=<name>``."""
        return self.patch.stem

    @property
    def is_simulated(self) -> bool:
        """Whether the simulation must find the defect, or the head of the patch says why it cannot."""
        return self.guarantee in OF_STATE and self.name.startswith(SIMULATED)

    def apply(self, tree: Path, *options: str) -> None:
        """Apply the change to a tree, with options of ``git apply``.

        Raises:
            MutantError: If the change does not apply.
        """
        command = ["git", "apply", *options, str(self.patch)]
        ended = subprocess.run(command, cwd=tree, capture_output=True, text=True)
        if ended.returncode:
            raise MutantError(f"{self.name} does not apply; update {self.patch.name}: {ended.stderr.strip()}")

    @contextmanager
    def applied(self, tree: Path) -> Iterator[None]:
        """Apply the change to a tree, and undo it afterwards."""
        self.apply(tree)
        try:
            yield
        finally:
            self.apply(tree, "--reverse")


def mutants() -> list[Mutant]:
    """Return all mutants by name."""
    return [Mutant.read(patch) for patch in sorted(PATCHES.glob("*.patch"))]
