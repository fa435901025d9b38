"""Limits on the flights: late rows against the time from the end of an hour to its closing.

``make bench BENCH=limits`` measures the results and writes ``limits.json``, of which a copy is beside the figures.
"""

import json
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

from docs.tools.drawing.paint import COLOURS, INK, STYLE, save_flat

MEASURED = Path(__file__).parents[2] / "figures" / "limits_on_flights.json"
NAMES = {"idle timeout": "idle_timeout", "max skew": "max_skew", "arrival target": "arrival_target"}
OFFSETS = {"idle timeout": (3, 3), "max skew": (3, 8), "arrival target": (-12, -9)}
"""Places of the names of the settings beside their points."""
LOWEST = 0.0008
"""The share of late rows, in per cent, at which results with fewer are drawn."""


def measured() -> list[dict[str, Any]]:
    """Return the results of the benchmark."""
    found: list[dict[str, Any]] = json.loads(MEASURED.read_text())
    return found


def draw(path: Path) -> None:
    """Draw the median and the 95th percentile of each setting."""
    results = measured()
    with mpl.rc_context(STYLE):
        figure, axes_of = plt.subplots(1, 2, figsize=(7.6, 3.6), sharex=True, sharey=True, layout="constrained")
        for axes, value, title in zip(axes_of, ("median_h", "p95_h"), ("median", "95 % of the hours"), strict=True):
            axes.set_title(title, fontsize=9)
            for kind, of_kind in groupby(results, itemgetter("kind")):
                settings = [*of_kind]
                late = [max(100 * each["late"], LOWEST) for each in settings]
                hours = [each[value] for each in settings]
                if kind not in NAMES:
                    axes.axhline(hours[0], color=INK, lw=0.8, ls=":", label="each hour once its last flight has landed")
                    continue
                colour = COLOURS[[*NAMES].index(kind)]
                axes.plot(late, hours, "o-", color=colour, markersize=3.5, lw=1, label=NAMES[kind])
                for at, each in zip(zip(late, hours, strict=True), settings, strict=True):
                    more: Any = {"textcoords": "offset points", "fontsize": 5.5, "color": colour}
                    axes.annotate(each["setting"], at, OFFSETS[kind], **more)
            axes.set_xscale("log")
            axes.set_xlabel("late flights, per cent")
            axes.set_ylim(0, 26)
        axes_of[0].set_ylabel("from the end of an hour to its closing, hours")
        handles, labels = axes_of[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=8)
        save_flat(figure, path, repr(results))
