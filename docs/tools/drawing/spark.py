"""Two partitions under Spark's own watermark: the rows that it loses, by its rule."""

from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

from docs.tools.drawing.paint import COLOURS, INK, RED, STYLE, save_flat
from tidegate_spark.auditing.rule import SparkWatermark

DELAY = 2
BATCHES = 12
PARTITIONS = {"fast": [0, 1, 3, 2, 4, 6, 5, 7, 9, 8, 10, 11], "slow": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]}
"""Hours that each partition is ahead of the start, by batch."""


@dataclass(frozen=True)
class Row:
    """A row: its partition, batch and event time, and whether it is lost."""

    partition: str
    batch: int
    at: int
    is_lost: bool


def maximum() -> tuple[list[Row], list[int]]:
    """Return the rows, and for each batch the watermark with which they are compared."""
    spark = SparkWatermark({0: DELAY}, merged=-DELAY)
    rows, compared, of_batch = [], [], [-DELAY, -DELAY]
    for batch in range(BATCHES):
        compared.append(of_batch[-2])
        times = {name: hours[batch] for name, hours in PARTITIONS.items()}
        rows += [Row(name, batch, at, at <= compared[-1]) for name, at in times.items()]
        of_batch.append(spark.after({0: max(times.values())}))
    return rows, compared


def draw(path: Path) -> None:
    """Draw the rows and the watermark."""
    rows, compared = maximum()
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.6, 3.2), layout="constrained")
        axes.step(
            range(BATCHES), compared, where="mid", color=INK, linewidth=1.2, label="Spark's watermark for late rows"
        )
        for colour, name in zip(COLOURS, PARTITIONS, strict=False):
            kept = [(row.batch, row.at) for row in rows if row.partition == name and not row.is_lost]
            axes.plot(*zip(*kept, strict=True), "o", color=colour, label=f"{name} partition")
        lost = [(row.batch, row.at) for row in rows if row.is_lost]
        axes.plot(
            *zip(*lost, strict=True), "x", color=RED, markersize=8, markeredgewidth=2, label=f"lost ({len(lost)})"
        )
        axes.set_xlabel("batch")
        axes.set_ylabel("event time in hours")
        axes.legend(loc="upper left", frameon=False, fontsize=8)
        save_flat(figure, path, repr((rows, compared)))
