"""``docs/operations.md`` and the README: settings, health values and links match the code."""

import re
from pathlib import Path

from tidegate.domain.health import WORST_FIRST
from tidegate.settings import Settings

ROOT = Path(__file__).parents[2]
OPERATIONS, README = (ROOT / "docs" / "operations.md").read_text(), (ROOT / "README.md").read_text()
OF_CLIENTS = {"TIDEGATE_URL", "TIDEGATE_TOKEN"}


def test_every_setting_is_listed() -> None:
    """The README lists every setting. operations.md names only existing ones."""
    settings = {f"TIDEGATE_{name.upper()}" for name in Settings.model_fields}
    listed = set(re.findall(r"TIDEGATE_[A-Z_]+", README))
    assert listed - OF_CLIENTS == settings
    assert set(re.findall(r"TIDEGATE_[A-Z_]+", OPERATIONS)) <= settings | OF_CLIENTS


def test_the_health_values_are_listed_worst_first() -> None:
    listed = re.findall(r"^\| `(\w+)` \| ", OPERATIONS[OPERATIONS.index("| health | means |") :], re.MULTILINE)
    assert tuple(listed[: len(WORST_FIRST)]) == WORST_FIRST


def test_every_link_has_a_target() -> None:
    """The links in all pages lead to existing files and headings."""
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if target.startswith(("http:", "https:")):
                continue
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            assert there.exists(), f"{page.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE)
                anchors = {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}
                assert anchor in anchors, f"{page.name}: {target}"
