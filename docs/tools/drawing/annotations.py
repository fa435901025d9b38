"""Marks and windows in the figures of scenes. Their labels are where no curve is."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from docs.tools.drawing.scene import Window

Mark = tuple[float, str]
OPEN, CLOSED, EDGE = "#1f6f8b", "#808080", "#5b7f3a"
SIZE = 8
CHARACTER = 0.07
"""Width of a character of a label, in inches. It has a margin, because the reader's font differs."""
ROW = 12
"""Height of a row of labels, in points."""


def mark(axes: Axes, marks: Sequence[Mark]) -> int:
    """Draw a vertical line for each mark, with its label above the plot.

    A label is to the left of its line if it would end outside the plot. A label that would cover the line of a later
    mark is in a higher row.

    Returns:
        The number of rows of labels.
    """
    low, high = axes.get_xlim()
    figure = axes.get_figure(root=True)
    assert figure is not None
    width, height = figure.get_size_inches()
    begins: list[float] = []
    for at, text in reversed(marks):
        length = CHARACTER * len(text) / (0.85 * width) * (high - low)
        begin, side = (at, "left") if at + length <= high + 1 else (at - length, "right")
        row = next((row for row, other in enumerate(begins) if begin + length <= other), len(begins))
        begins[row : row + 1] = [begin]
        top = 1 + row * ROW / 72 / (0.6 * height)
        style: Any = {"color": "#999999", "lw": 0.7, "ls": "--", "zorder": 0, "clip_on": False}
        axes.plot([at, at], [0, top + 0.02], transform=axes.get_xaxis_transform(), **style)
        axes.annotate(
            text,
            (at, top),
            xycoords=axes.get_xaxis_transform(),
            xytext=(2 if side == "left" else -2, 2),
            textcoords="offset points",
            ha=side,
            size=SIZE,
        )
    if marks:
        axes.set_xlim(low, high)
    return len(begins)


def draw_windows(axes: Axes, windows: Sequence[Window]) -> None:
    """Draw each window as a band that ends when it closes. A line marks the time at which it closes."""
    first, last = axes.get_xlim()
    label: str | None = "window closes"
    for window in windows:
        a, b, closes = window.begin, window.end, window.closes
        axes.fill_between([first, last if closes is None else closes], a + 0.4, b - 0.4, color=OPEN, alpha=0.13, lw=0)
        name, middle = f"[{a}, {b})", (a + b) / 2
        if closes is None:
            axes.text(first + 0.6, middle, f"{name} open", va="center", ha="left", size=SIZE)
            continue
        axes.fill_between([closes, last], a + 0.4, b - 0.4, color=CLOSED, alpha=0.09, lw=0)
        axes.plot([closes, closes], [a + 0.4, b - 0.4], color=EDGE, lw=2.5, solid_capstyle="butt", label=label)
        label = None
        axes.text(last - 0.4, middle, f"{name} closed at {closes}", va="center", ha="right", size=SIZE)
    if windows:
        axes.set_xlim(first, last)
