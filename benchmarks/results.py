"""The results of benchmarks as rows of one table. Some rows have a target."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Spread:
    """The median, the lowest and the highest figure of all rounds."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, figures: Iterable[float]) -> "Spread":
        """Return the spread of figures."""
        ordered = sorted(figures)
        return cls(statistics.median(ordered), ordered[0], ordered[-1])

    def __str__(self) -> str:
        """Return the figures with three significant digits."""
        return f"{_short(self.median):>9}  [{_short(self.lowest)} .. {_short(self.highest)}]"


def _short(figure: float) -> str:
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of a benchmark.

    Attributes:
        name: Name of the measured quantity. The name of a ratio has both sides.
        figures: The figures of all rounds.
        unit: Unit of the figures; empty for a ratio.
        at_most: Highest median that meets the target; None if there is no such target.
        at_least: Lowest median that meets the target; None if there is no such target.
    """

    name: str
    figures: Spread
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def is_missed(self) -> bool:
        """Whether the median misses the target."""
        return (self.at_most is not None and self.figures.median > self.at_most) or (
            self.at_least is not None and self.figures.median < self.at_least
        )

    @property
    def target(self) -> str:
        """The target as text, or an empty text for a row without a target."""
        if self.at_most is not None:
            return f"<= {_short(self.at_most)}"
        return "" if self.at_least is None else f">= {_short(self.at_least)}"


def ratios(of: Sequence[float], to: Sequence[float]) -> Spread:
    """Return the spread of the ratios of two figures in each round."""
    return Spread.of(one / other for one, other in zip(of, to, strict=True))


def table(rows: Sequence[Row]) -> str:
    """Return rows as text."""
    width = max(len(row.name) for row in rows)
    lines = [f"{'':<{width}}  {'median':>9}  {'[lowest .. highest]':<22} {'unit':<5} target"]
    for row in rows:
        verdict = f"{row.target:<9} {'MISSED' if row.is_missed else 'met'}" if row.target else ""
        lines.append(f"{row.name:<{width}}  {row.figures!s:<33} {row.unit:<5} {verdict}".rstrip())
    return "\n".join(lines)


def write_summary(path: Path, benchmark: str, rows: Sequence[Row]) -> None:
    """Write the rows of a benchmark to the summary, and keep the rows of other benchmarks."""
    summary = json.loads(path.read_text()) if path.exists() else {}
    summary[benchmark] = [
        {
            "name": row.name,
            "median": row.figures.median,
            "lowest": row.figures.lowest,
            "highest": row.figures.highest,
            "unit": row.unit,
            "target": row.target,
            "met": not row.is_missed if row.target else None,
        }
        for row in rows
    ]
    path.write_text(json.dumps(summary, indent=2) + "\n")
