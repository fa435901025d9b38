"""Tables in Markdown."""

from collections.abc import Iterable, Sequence

Row = Sequence[str]


def table(header: Row, rows: Iterable[Row]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for row in rows:
        cells = [" ".join(cell.split()).replace("|", "\\|").replace("<", "&lt;") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def code(name: str) -> str:
    """Return a name in backticks."""
    return f"`{name}`"
