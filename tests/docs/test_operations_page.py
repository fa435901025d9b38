"""``docs/operations.md`` and the README: what they name is there."""

import re
from pathlib import Path

from tidegate.domain.health import WORST_FIRST
from tidegate.settings import Settings

ROOT = Path(__file__).parents[2]
OPERATIONS, README = (ROOT / "docs" / "operations.md").read_text(), (ROOT / "README.md").read_text()
OF_CLIENTS = {"TIDEGATE_URL", "TIDEGATE_TOKEN"}


def test_every_setting_is_told_and_nothing_else() -> None:
    """In the README, and what operations names of them."""
    settings = {f"TIDEGATE_{name.upper()}" for name in Settings.model_fields}
    told = set(re.findall(r"TIDEGATE_[A-Z_]+", README))
    assert told - OF_CLIENTS == settings
    assert set(re.findall(r"TIDEGATE_[A-Z_]+", OPERATIONS)) <= settings | OF_CLIENTS


def test_the_health_values_are_listed_worst_first() -> None:
    told = re.findall(r"^\| `(\w+)` \| ", OPERATIONS[OPERATIONS.index("| health | means |") :], re.MULTILINE)
    assert tuple(told[: len(WORST_FIRST)]) == WORST_FIRST


def test_every_link_leads_somewhere() -> None:
    """Of all pages: to files that are there, and to headings that they have."""
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
