"""The index of the architecture page: the files and the names in it exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
PLACES = (
    ROOT,
    ROOT / "service" / "src" / "tidegate",
    ROOT / "service" / "src" / "tidegate" / "store",
    ROOT / "spark_client" / "src",
)
ROWS = re.findall(r"^\| \d+\. (.+?) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
A_PATH = re.compile(r"[\w./]+(?:\.(?:py|lua|md)|/)")


def file(path: str) -> Path:
    """Return the file or folder that a row names."""
    found = [place / path for place in PLACES if (place / path).exists()]
    assert found, f"{path} does not exist"
    return found[0]


def defines(text: str, name: str) -> bool:
    """Return whether the text of a file defines a name, in Python or in Lua."""
    name = re.escape(name)
    return bool(
        re.search(
            rf"^\s*(?:async def|def|class|function|local function) {name}\b|^\s*{name}\b.* = |^local .*\b{name}\b",
            text,
            re.M,
        )
    )


@pytest.mark.parametrize(("question", "answer"), ROWS)
def test_what_a_row_names_exists(question: str, answer: str) -> None:
    spans = re.findall(r"`([^`]+)`", answer)
    assert any(map(A_PATH.fullmatch, spans)), "a row names a file"
    for path in filter(A_PATH.fullmatch, spans):
        file(path)
    for names, path in re.findall(r"((?:`[\w.]+`(?:, | and )?)+) (?:in|of) `([\w./]+)`", answer):
        text = file(path).read_text()
        for name in re.findall(r"`([\w.]+)`", names):
            if not A_PATH.fullmatch(name):
                assert defines(text, name), f"{path} does not define {name}"


def test_the_index_has_rows() -> None:
    assert len(ROWS) > 20
