"""How far out of order a job's rows come, and what it costs to wait for them: the curve between the two."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidegate.domain.sketch import MOST_WEIGHT, STEPS, Pairs, Sketch, bucket_of, faded, typical

MOST_POINTS = 200


@dataclass(slots=True)
class Disorder:
    """``pool``: how far rows came behind the tops of their substreams, all of these together. ``merged``: how far they
    came behind where the job's watermark would have been under no lag at all, with which it waits for its slowest
    substream; that is what judges them.

    ``wait_weight``: over so much event time the watermark went on; ``waited``: by how far the job's top was ahead of
    what it passed, less the lag, summed up over that.
    """

    pool: Sketch = field(default_factory=Sketch)
    merged: Sketch = field(default_factory=Sketch)
    waited: float = 0.0
    wait_weight: int = 0

    @property
    def wait(self) -> int | None:
        """What waiting for the slowest substream, and moving in steps, costs beside the lag, on average; None: the
        watermark has not moved yet.
        """
        return math.floor(self.waited / self.wait_weight + 0.5) if self.wait_weight else None

    def passed(self, before: int, watermark: int, slide: int, max_event_time: int, lag: int, half_life: int) -> None:
        """The watermark went on from ``before``, and the ends of windows that lie between came out: one every
        ``slide``, or, where that is 0, anywhere. ``lag``: that of the substream which is furthest behind.
        """
        step = max(1, half_life // STEPS)
        left = faded(self.wait_weight, watermark // step - before // step)
        weight = min(watermark - before, MOST_WEIGHT - left)
        # In doubles, as the store has it.
        middle = before + (float(watermark) - before + slide) / 2
        share = left / self.wait_weight if self.wait_weight else 0.0
        self.waited = self.waited * share + (float(max_event_time) - lag - middle) * weight
        self.wait_weight = left + weight


def behind(rows: Pairs, ahead: int | None) -> Iterable[tuple[int, int]]:
    """Delays behind the merged watermark, from those behind a substream's top. ``ahead``: how far the substream's own
    watermark was ahead of the merged one; None: there was no such, and no row was late.
    """
    for bucket, count in rows:
        yield (bucket_of(typical(bucket) - ahead) if bucket and ahead is not None else 0), count


@dataclass(frozen=True, slots=True)
class Point:
    """What a lag gives, and what it costs: the share of rows that are on time, and by how much the job's top is beyond
    the end of a window, on average, when that comes out. ``latency`` None: nothing is known of that.
    """

    lag: int
    completeness: float
    latency: int | None


def curve(seen: Sketch, wait: int | None, window: int = 0, lags: Iterable[int] | None = None) -> list[Point]:
    """The points at ``lags``; without these, at all where something changes, thinned out to :data:`MOST_POINTS`.

    ``window``: rows are judged by tumbling windows of this size; 0: by themselves.
    """
    if lags is None:
        found = sorted({0, *(math.floor(edge) for edge in seen.edges())})
        thinned = range(0, len(found) * MOST_POINTS, max(len(found), MOST_POINTS))
        lags = [*(found[at // MOST_POINTS] for at in thinned)]
        if lags[-1] != found[-1]:
            lags.append(found[-1])
    return [Point(lag, seen.completeness(lag, window), None if wait is None else wait + lag) for lag in lags]


def least_lag(seen: Sketch, target: float, window: int = 0) -> int:
    """The least lag that is as complete as ``target`` says, to the precision of the sketch."""
    low, high = -1, max((math.floor(edge) for edge in seen.edges()), default=0)
    if seen.completeness(0, window) >= target:
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        if seen.completeness(middle, window) >= target:
            high = middle
        else:
            low = middle
    return high
