"""Two minutes of the fault suite; `make faults` runs longer."""

import secrets
from pathlib import Path

import pytest

from tests.faults.suite.plan import Plan
from tests.faults.suite.run import Run
from tests.faults.suite.store import clock_works
from tests.faults.suite.world import World
from tidegate.store.embedded import server_binary

MINUTES = 2
LEAST_FAULTS = 5


@pytest.mark.fuzz
@pytest.mark.timeout(1200)
def test_no_fault_breaks_a_guarantee(tmp_path: Path) -> None:
    seed = secrets.randbelow(1_000_000)
    binary = server_binary()
    has_clock = clock_works(binary, tmp_path / "probe")
    directory = tmp_path / "run"
    directory.mkdir()
    lines: list[str] = []
    with World(Plan.of(seed), directory, binary, has_clock) as world:
        outcome = Run(world, lines.append).run(MINUTES)
    assert not outcome.violations, "\n".join([*lines, f"Repeat: make faults SEED={seed} MINUTES={MINUTES}"])
    assert outcome.injected >= LEAST_FAULTS
