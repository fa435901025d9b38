"""The packages in images have the versions that the tests use."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PINNED = re.compile(r"^([a-z0-9-]+==\S+)(?: ; [^\\]+)? \\\n((?:    --hash=\S+(?: \\)?\n)+)", re.MULTILINE)
NOT_TESTED = {"setuptools"}
"""Packages that images need only to build others from source."""


def pinned(path: Path) -> dict[str, set[str]]:
    """Return the hashes of each pinned package, by name and version."""
    found = {name: set(re.findall(r"--hash=(\S+)", hashes)) for name, hashes in PINNED.findall(path.read_text())}
    assert len(found) == len(re.findall(r"^\S+==", path.read_text(), re.MULTILINE))
    return found


@pytest.mark.parametrize("image", ["build", "coordinator", "spark", "flights"])
def test_an_image_has_the_versions_of_the_tests(image: str) -> None:
    everything = pinned(ROOT / "requirements.lock")
    of_image = pinned(ROOT / "deploy" / "locks" / f"{image}.lock")
    assert of_image
    for name, hashes in of_image.items():
        if name.partition("==")[0] not in NOT_TESTED:
            assert hashes == everything[name], name


def test_no_lock_names_an_index() -> None:
    locks = [*(ROOT / "deploy" / "locks").iterdir(), ROOT / "benchmarks" / "flink" / "flink.lock"]
    for path in (ROOT / "requirements.lock", *locks):
        assert "://" not in path.read_text(), path.name
