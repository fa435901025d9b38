"""The completeness curve: the share of rows on time and the latency for each lag."""

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.domain.sketch import Sketch

MAX_POINTS = 200


@dataclass(frozen=True, slots=True)
class Point:
    """A lag with its completeness and its average latency; ``latency`` is None until the watermark has moved.

    Latency is the distance from the end of a window to the max event time when the window is emitted.
    """

    lag: int
    completeness: float
    latency: int | None


def curve(sketch: Sketch, wait: int | None, window: int = 0, lags: Iterable[int] | None = None) -> list[Point]:
    """Return points of the completeness curve.

    Args:
        sketch: Delays of the rows.
        wait: Latency in addition to the lag; None if it is unknown.
        window: Size of the tumbling windows that classify rows; 0 if the watermark alone classifies each row.
        lags: Lags to evaluate; None for every lag at which completeness changes, reduced to about :data:`MAX_POINTS`.
    """
    if lags is None:
        found = sorted({0, *(math.floor(edge) for edge in sketch.edges())})
        thinned = range(0, len(found) * MAX_POINTS, max(len(found), MAX_POINTS))
        lags = [*(found[at // MAX_POINTS] for at in thinned)]
        if lags[-1] != found[-1]:
            lags.append(found[-1])
    return [Point(lag, sketch.completeness(lag, window), None if wait is None else wait + lag) for lag in lags]


def least_lag(sketch: Sketch, target: float, window: int = 0) -> int:
    """Return the lowest lag with a completeness of at least ``target``, to the precision of the sketch."""
    highest = max((math.floor(edge) for edge in sketch.edges()), default=0)
    return bisect_left(range(highest), target, key=lambda lag: sketch.completeness(lag, window))
