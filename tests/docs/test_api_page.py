"""``docs/api.md``: its tables say what the code does."""

import re
from itertools import takewhile
from pathlib import Path

from tests.support.roles import MAY
from tidegate.api import problems
from tidegate.domain import errors

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
SOURCE = Path(problems.__file__).parents[1]


def rows(header: str) -> list[list[str]]:
    """The cells of the table with that header."""
    lines = PAGE[PAGE.index(header) :].splitlines()[2:]
    table = takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_the_table_of_roles_is_the_matrix() -> None:
    told: dict[str, set[str]] = {}
    for what, *marks in rows("| call | read | report | operate | admin |"):
        roles = {role for role, mark in zip(("read", "report", "operate", "admin"), marks, strict=True) if mark == "x"}
        told |= dict.fromkeys(re.findall(r"`(\w+)`", what) or [what], roles)
    reads = told.pop("all that only reads")
    assert told.pop("create a job") == MAY["put_job"]
    assert told.pop("change a job's rules") == MAY["put_job"] - {"report"}
    assert told == {call: roles for call, roles in MAY.items() if roles != reads and call != "put_job"}


def test_every_code_of_an_error_is_told_with_its_status() -> None:
    """Programs go by them."""
    told = {
        (int(status), code)
        for statuses, codes, _ in rows("| status | code | what to do |")
        for status in statuses.split(", ")
        for code in re.findall(r"`(\w+)`", codes)
    }
    of_domain = {(problems.STATUS_OF[error], error.code) for error in errors.DomainError.__subclasses__()}
    text = "\n".join(path.read_text() for path in (SOURCE / "api").rglob("*.py"))
    of_api = {(int(status), code) for status, code in re.findall(r'Problem\(\s*(\d{3}),\s*"(\w+)"', text)}
    of_api |= {(status, code) for status, (code, _) in problems.STARLETTE_PROBLEMS.items()}
    codes = {code for _, code in of_domain | of_api}
    assert {code for _, code in told} == codes
    assert of_domain | of_api <= told
