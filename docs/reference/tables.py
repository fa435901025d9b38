"""Tables in Markdown."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

MAX_LISTED = 4

Row = Sequence[str]


def table(header: Row, rows: Iterable[Row]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for row in rows:
        cells = [cell.replace("|", "\\|").replace("<", "\\<") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def code(name: str) -> str:
    return f"`{name}`"


def plain(text: str) -> str:
    """Return a docstring as one line of Markdown, with single backticks in place of roles and double backticks."""
    return re.sub(r":\w+:`([^`]+)`", r"`\1`", " ".join(text.split())).replace("``", "`")


def by_meaning(uses: Iterable[tuple[str, str, str]]) -> list[Row]:
    """Return a row for each pair of name and meaning, with the users of the pair.

    Args:
        uses: Triples of name, user and meaning.
    """
    users: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, user, meaning in uses:
        users[name, meaning].append(user)
    rows = [(name, _listed([code(user) for user in sorted(of)]), meaning) for (name, meaning), of in users.items()]
    return sorted(rows, key=lambda row: [cell.replace("`", "") for cell in row])


def _listed(users: list[str]) -> str:
    if len(users) <= MAX_LISTED:
        return ", ".join(users)
    return f"{', '.join(users[: MAX_LISTED - 1])} and {len(users) - MAX_LISTED + 1} more"
