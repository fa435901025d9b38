"""The site of the documentation: it builds strictly, its settings exist, and its links lead to headings."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tidegate.cli.following import Delivery
from tidegate.cli.frames import variables
from tidegate.domain.views import WORST_FIRST
from tidegate.settings import Settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OF_CLIENTS = {"TIDEGATE_URL", "TIDEGATE_TOKEN"}
FRAME: dict[str, Any] = {"start": 0, "end": 0, "state": "complete", "watermark": None}
OF_DELIVERIES = {*variables(Delivery("flights", FRAME, {"generation": 1}))}
OUTSIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
"""Pages that are not part of the site, which MkDocs does not check."""


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    """A link without a target, a page without a place in the menu, and a missing docstring are warnings."""
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    index = (tmp_path / "index.html").read_text()
    loaded = re.findall(r'(?:src|href)="(https?://[^"]+)"', re.sub(r"<a [^>]*>", "", index))
    assert not loaded, "the site needs a network"
    assert (tmp_path / "search" / "search_index.js").exists(), "the search does not work from file://"
    unbroken = re.compile(r"<p>(?:(?!</p>).)*?\n\s*(?:\d+\.|[-*]) ", re.DOTALL)
    for page in tmp_path.rglob("*.html"):
        found = unbroken.search(page.read_text())
        assert found is None, f"{page.name}: a list item within a paragraph; put an empty line before the list"


def test_every_named_setting_exists() -> None:
    settings = {f"TIDEGATE_{name.upper()}" for name in Settings.model_fields}
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        named = set(re.findall(r"\bTIDEGATE_[A-Z_]*[A-Z]", page.read_text()))
        assert named <= settings | OF_CLIENTS | OF_DELIVERIES, page


def test_the_guide_lists_the_variables_of_a_delivery() -> None:
    page = (DOCS / "how-to" / "schedulers.md").read_text()
    table = page[page.index("| variable | value |") :].partition("\n\n")[0]
    assert set(re.findall(r"TIDEGATE_[A-Z_]+", table)) == OF_DELIVERIES


def test_the_health_values_are_listed_worst_first() -> None:
    page = (DOCS / "how-to" / "monitor.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \| ", page[page.index("| health | means |") :], re.MULTILINE)
    assert tuple(listed[: len(WORST_FIRST)]) == WORST_FIRST


@pytest.mark.parametrize("name", OUTSIDE)
def test_every_link_of_the_repository_has_a_target(name: str) -> None:
    page = ROOT / name
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        headings = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE) if anchor else []
        anchors = {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, target
