"""Figures of scenes and curves, as SVG files."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from docs.tools.drawing.annotations import ROW, draw_windows, mark
from docs.tools.drawing.scene import Line, Seen

Points = list[tuple[float, float]]
COLOURS = ("#1f6f8b", "#b5651d", "#5b7f3a", "#7a4f9a")
RED = "#c0392b"
INK = "#010203"
"""Stands for the colour of the text around the figure, which :func:`save_flat` puts in its place."""
ALONE = "svg { color: #333 } @media (prefers-color-scheme: dark) { svg { color: #ccc } }"
"""Style of a figure that is shown without a page. The site shows figures within its pages, without this style."""
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tidegate",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#808080",
    "grid.alpha": 0.25,
    "savefig.transparent": True,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}


def timeline(seen: Seen, path: Path) -> None:
    """Draw one scene, with processing time on the horizontal axis and event time on the vertical axis."""
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.6, 3.4), layout="constrained")
        _scene(axes, seen)
        _legend(figure, axes)
        save_flat(figure, path, seen.digest())


def side_by_side(scenes: Sequence[Seen], path: Path) -> None:
    """Draw scenes side by side, with common scales."""
    with mpl.rc_context(STYLE):
        figure, all_axes = plt.subplots(
            1, len(scenes), figsize=(8.6, 3.2), sharey=True, sharex=True, layout="constrained"
        )
        for number, (axes, seen) in enumerate(zip(all_axes, scenes, strict=True)):
            _scene(axes, seen)
            axes.set_ylabel("event time" if number == 0 else "")
        _legend(figure, all_axes[0])
        save_flat(figure, path, repr([seen.digest() for seen in scenes]))


def bounds(curves: dict[str, list[tuple[int, int]]], path: Path) -> None:
    """Draw the lowest lag without late rows of the trailing partition, by skew."""
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.6, 3.2), layout="constrained")
        for (name, points), colour in zip(curves.items(), COLOURS, strict=False):
            axes.plot(*zip(*points, strict=True), "o-", color=colour, label=name, markersize=3.5)
        axes.set_xlabel("skew of B behind A")
        axes.set_ylabel("lowest lag without late rows of B")
        _legend(figure, axes)
        save_flat(figure, path, repr(curves))


def completeness(measured: Points, told: Points, lags: Sequence[int], path: Path) -> None:
    """Draw completeness against latency: the curve from the sketch of delays, and points measured by replays."""
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.6, 3.4), layout="constrained")
        axes.step(
            [latency for latency, _ in told],
            [100 * share for _, share in told],
            where="post",
            color=COLOURS[0],
            label="from the sketch of delays",
        )
        axes.plot(
            [latency for latency, _ in measured],
            [100 * share for _, share in measured],
            "o",
            color=COLOURS[1],
            label="measured by a replay with this lag",
        )
        for (latency, share), lag in zip(measured, lags, strict=True):
            axes.annotate(f"lag {lag}", (latency, 100 * share), xytext=(4, -12), textcoords="offset points", size=8)
        axes.axhspan(90, 102, xmax=0.27, color=COLOURS[2], alpha=0.12, lw=0)
        axes.set_xlim(0, 45)
        axes.set_ylim(60, 102)
        axes.text(0.4, 97, "90 % within 12", color=COLOURS[2], size=8)
        axes.set_xlabel("average latency, minutes")
        axes.set_ylabel("rows on time, per cent")
        _legend(figure, axes)
        save_flat(figure, path, repr((measured, told)))


def learning(curves: dict[str, Points], path: Path) -> None:
    """Draw the learned lag and the shares of late rows before and after delays triple."""
    with mpl.rc_context(STYLE):
        figure, (above, below) = plt.subplots(2, 1, figsize=(7.6, 4.4), sharex=True, layout="constrained")
        lag, *late = curves.items()
        above.plot(*zip(*lag[1], strict=True), color=COLOURS[0], label="learned lag, target 99 %")
        above.set_ylabel("lag, minutes")
        for (name, points), colour in zip(late, (COLOURS[0], RED), strict=True):
            below.plot(*zip(*points, strict=True), "o-", markersize=2.5, lw=1, color=colour, label=name)
        below.axhline(1, color="#999999", lw=0.8, ls="--")
        below.set_ylabel("late rows, per cent")
        below.set_xlabel("event time, hours")
        _legend(figure, above, below)
        save_flat(figure, path, repr(curves))


def drawn_from(path: Path) -> str:
    """Return the digest that a figure stores: the hash of the run that it shows."""
    return path.read_text().partition("<dc:description>")[2].partition("</dc:description>")[0]


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _scene(axes: Axes, seen: Seen) -> None:
    for (name, line), colour in zip(seen.max_event_times.items(), COLOURS, strict=False):
        one = len(seen.max_event_times) == 1
        _step(axes, line, color=colour, lw=0.8, ls=":", label="max event time" if one else f"max event time of {name}")
        watermark = seen.watermarks[name]
        if not one:
            _step(axes, watermark, color=colour, lw=1.1, alpha=0.65, label=f"watermark of {name}")
        for fate, marker, size in (("on time", "o", 14), ("late", "x", 30), ("future", "^", 30)):
            some = [event for event in seen.events if event.substream == name and event.fate == fate]
            axes.scatter(
                [e.at for e in some],
                [e.event_time for e in some],
                marker=marker,
                s=size,
                color=colour if fate == "on time" else RED,
                zorder=3,
                label=fate if some and fate != "on time" else None,
            )
    _step(axes, seen.coalesced_watermark, color=INK, lw=2, label="coalesced watermark")
    if seen.emitted != seen.coalesced_watermark:
        _step(axes, seen.emitted, color=RED, lw=2, ls="--", label="emitted watermark")
    draw_windows(axes, seen.windows)
    rows = mark(axes, seen.marks)
    axes.set_xlabel("processing time")
    axes.set_title(seen.title, loc="left", fontsize=10, pad=6 + ROW * rows)
    axes.set_ylabel("event time")


def _legend(figure: Figure, *all_axes: Axes) -> None:
    """Put one legend below the plots, where it covers no curve."""
    entries = [entry for axes in all_axes for entry in zip(*axes.get_legend_handles_labels(), strict=True)]
    handles, labels = zip(*entries, strict=True)
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False, fontsize=8)


def _step(axes: Axes, line: Line, **style: object) -> None:
    points = [(at, value) for at, value in line if value is not None]
    if points:
        axes.step(*zip(*points, strict=True), where="post", **style)  # type: ignore[arg-type]


def save_flat(figure: Figure, path: Path, run: str) -> None:
    """Write a figure without a background, in the colour of the text around it."""
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None, "Description": digest_of(run)})
    plt.close(figure)
    head, defs, rest = path.read_text().replace(INK, "currentColor").partition("<defs>")
    path.write_text(f"{head}<style>{ALONE}</style>{defs}{rest}")
