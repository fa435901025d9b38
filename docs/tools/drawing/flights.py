"""``python -m docs.tools.drawing.flights``: draw the rows that Spark's own watermark loses in the demo.

The figure shows the output of the last ``make demo``: the windows of the coordinated query, and the counts of Spark.
"""

import json
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import matplotlib as mpl
import pyarrow.dataset as ds

mpl.use("svg")
import matplotlib.pyplot as plt
from matplotlib.dates import DateFormatter, DayLocator, date2num

from docs.tools.drawing.paint import COLOURS, RED, STYLE, save_flat

ROOT = Path(__file__).parents[3]
DEMO, FIGURE = ROOT / "out" / "demo", ROOT / "docs" / "figures" / "flights.svg"
HOUR_MS = 3_600_000


def counted() -> Counter[int]:
    """Return the rows of the coordinated query by hour (Unix milliseconds)."""
    rows = ds.dataset(DEMO / "windows").to_table(["window_start", "departures"]).to_pylist()
    hours: Counter[int] = Counter()
    for row in rows:
        hours[round(row["window_start"].timestamp() * 1000)] += row["departures"]
    return hours


def counted_by_spark() -> Counter[int]:
    """Return the rows of Spark's own query by hour. The last count of an origin and hour is the final one."""
    final: dict[tuple[str, int], int] = {}
    for batch in sorted((DEMO / "state" / "native").glob("*.json")):
        for origin, hour, count in json.loads(batch.read_text()):
            final[origin, hour] = count
    hours: Counter[int] = Counter()
    for (_, hour), count in final.items():
        hours[hour] += count
    return hours


def main() -> int:
    """Draw the figure, and return the exit code."""
    if not (DEMO / "summary.json").exists():
        print(f"{DEMO} has no output: run make demo first.", file=sys.stderr)
        return 1
    every, by_spark = counted(), counted_by_spark()
    hours = range(min(every), max(every) + HOUR_MS, HOUR_MS)
    kept, lost = [by_spark[hour] for hour in hours], [every[hour] - by_spark[hour] for hour in hours]
    at = [float(date2num(datetime.fromtimestamp(hour / 1000, UTC))) for hour in hours]  # type: ignore[no-untyped-call]
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8.6, 3.0), layout="constrained")
        label = f"counted by Spark's own watermark and by Tidegate ({sum(kept):,})"
        axes.bar(at, kept, width=1 / 24, color=COLOURS[0], label=label)
        label = f"counted by Tidegate only ({sum(lost):,} of {sum(every.values()):,})"
        axes.bar(at, lost, width=1 / 24, bottom=kept, color=RED, label=label)
        axes.xaxis.set_major_locator(DayLocator())  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_formatter(DateFormatter("%d %b", UTC))  # type: ignore[no-untyped-call]
        axes.set_ylabel("departures per hour")
        figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=9)
        save_flat(figure, FIGURE, repr((kept, lost)))
    print(FIGURE.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
