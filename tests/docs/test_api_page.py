"""``docs/how-to/secure.md`` and ``docs/reference/errors.md``: the tables match the code."""

import ast
import re
from itertools import takewhile
from pathlib import Path

import pytest

import tidegate
from tests.support.roles import MAY
from tidegate.auth.callers import CallerError
from tidegate.domain.errors import DomainError
from tidegate.http.problems import ERRORS, STORE_ERRORS
from tidegate.runtime.wakeups import TooManyWaiting
from tidegate.views.completeness import FrameInForce

DOCS = Path(__file__).parents[2] / "docs"
PAGES = "".join((DOCS / page).read_text() for page in ("how-to/secure.md", "reference/errors.md"))
SERVICE = Path(tidegate.__file__).parent


def rows(header: str) -> list[list[str]]:
    """Return the cells of the table with a header."""
    lines = PAGES[PAGES.index(header) :].splitlines()[2:]
    table = takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_the_table_of_roles_is_the_matrix() -> None:
    listed: dict[str, set[str]] = {}
    for what, *marks in rows("| call | read | report | operate | admin |"):
        roles = {role for role, mark in zip(("read", "report", "operate", "admin"), marks, strict=True) if mark == "x"}
        listed |= dict.fromkeys(re.findall(r"`(\w+)`", what) or [what], roles)
    reads = listed.pop("all calls that only read")
    assert listed.pop("create a job") == MAY["configure"]
    assert listed.pop("change a job's configuration") == MAY["configure"] - {"report"}
    assert listed == {call: roles for call, roles in MAY.items() if roles != reads and call != "configure"}


def test_every_error_code_is_listed_with_its_status() -> None:
    listed = {
        (int(status), code)
        for statuses, codes, _ in rows("| status | code | what to do |")
        for status in statuses.split(", ")
        for code in re.findall(r"`(\w+)`", codes)
    }
    assert {code for _, code in listed} == ERRORS.keys()
    assert {(kind.status, code) for code, kind in ERRORS.items()} <= listed


def test_every_raised_error_has_a_status() -> None:
    """An error without a status would be answered with 500."""
    raised = {error.code for error in DomainError.__subclasses__()} | {TooManyWaiting.code}
    raised |= {error.code for error in CallerError.__subclasses__()} | {FrameInForce.code} | {*STORE_ERRORS}
    text = "\n".join(path.read_text() for path in SERVICE.rglob("*.py"))
    raised |= set(re.findall(r'Problem\(\s*"(\w+)"', text))
    assert raised == ERRORS.keys()


@pytest.mark.parametrize("file", sorted(SERVICE.rglob("*.py")), ids=lambda file: str(file.relative_to(SERVICE)))
def test_only_the_table_names_the_status_of_an_error(file: Path) -> None:
    """Only ``ERRORS`` has status codes of errors, so there is one place to change."""
    if file.is_relative_to(SERVICE / "store") or file.is_relative_to(SERVICE / "domain"):
        return
    has_table = file.name == "problems.py"
    tree = ast.parse(file.read_text())
    if has_table:
        tree.body = [each for each in tree.body if getattr(getattr(each, "target", None), "id", "") != "ERRORS"]
    for node in ast.walk(tree):
        named: list[ast.AST] = []
        if isinstance(node, ast.Compare) and not has_table:  # whose functions compare with the lowest of a class
            named = [*ast.walk(node)]
        elif isinstance(node, ast.Call):
            named = [
                *node.args,
                *(keyword.value for keyword in node.keywords if keyword.arg in ("status", "status_code")),
            ]
        for number in named:
            if isinstance(number, ast.Constant) and type(number.value) is int:
                assert not 400 <= number.value < 600, (
                    f"{file.name}:{number.lineno} has the status {number.value}: use the table in problems.py"
                )
