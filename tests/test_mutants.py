"""The patches of ``mutants/`` fit the code."""

from pathlib import Path

import pytest

from mutants.mutant import mutants

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "contributing" / "mutants.md").read_text()


@pytest.mark.slow  # not in the default tier, in which a change of the code is tried many times
def test_every_mutant_applies_and_is_listed() -> None:
    found = mutants()
    assert len(found) > 50
    for mutant in found:
        mutant.apply(ROOT, "--check")
        assert f"`{mutant.name}`: {mutant.defect} | {mutant.guarantee} |" in PAGE, mutant.name
        assert mutant.tests
        for test in mutant.tests:
            assert (ROOT / test.partition("::")[0]).exists(), f"{mutant.name}: {test}"
