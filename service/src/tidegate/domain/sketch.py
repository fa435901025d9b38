"""Sketches of delays: how many rows came how far behind the top of their substream.

Delays are counted in buckets whose edges grow by a constant factor, so that whatever is read from them is right to
within :data:`RELATIVE_ERROR` (the buckets of DDSketch, Masson, Rim and Lee, VLDB 2019). Sketches of parts of a stream
add up to that of the whole. What was seen long ago fades: each eighth of a half-life weights are multiplied by a
constant. All arithmetic is in whole numbers and in doubles that are multiplied, added and rounded in one order, so that
the scripts of the store come to the same result to the last bit.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, repeat

RELATIVE_ERROR = 0.01
GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
HIGHEST_BUCKET = 1838
"""Its edge is beyond what a JSON number holds exactly."""
MOST_BUCKETS = 640
"""So many a sketch keeps, the highest; they span five decades and a half. What is below counts in the lowest kept."""
ROW = 1000
"""The weight of a row. Weights are whole, and so a row can fade."""
MOST_WEIGHT = 10**13
STEPS = 8
"""So many times in a half-life a sketch fades a little."""
FADES = tuple(2 ** (-step / STEPS) for step in range(STEPS))

EDGES = (0.0, *accumulate(repeat(GAMMA, HIGHEST_BUCKET - 1), lambda edge, gamma: edge * gamma, initial=1.0))
"""Bucket 0 is for rows that were not behind. Bucket b > 0 is for delays above ``EDGES[b - 1]``, up to ``EDGES[b]``."""

Pairs = Iterable[tuple[int, int]]
"""Buckets, and how much is in each."""


def bucket_of(delay: int) -> int:
    """The bucket of a delay; of one that is beyond all edges, the last."""
    return 0 if delay <= 0 else min(bisect_left(EDGES, delay), HIGHEST_BUCKET)


def typical(bucket: int) -> int:
    """A delay in the bucket, as far from its edges as can be."""
    return math.floor(EDGES[bucket] * 2 / (GAMMA + 1) + 0.5)


def faded(weight: int, steps: int) -> int:
    """A weight, so many eighths of a half-life later."""
    halvings, rest = divmod(steps, STEPS)
    return math.floor(math.floor(weight * FADES[rest]) * 2.0**-halvings) if halvings < 60 else 0


@dataclass(slots=True)
class Sketch:
    """``weights`` by bucket, in thousandths of a row. They fade as event time goes on, by where the top is, not by the
    clock: a substream that is silent forgets nothing, and a stream that is read again fades as it did.

    ``step``: an eighth of the half-life that it fades by; ``position``: how many of these its top had come.
    """

    step: int = 0
    position: int = 0
    weights: dict[int, int] = field(default_factory=dict)

    def fade_to(self, max_event_time: int, half_life: int) -> int:
        """Fades to where the top is; returns by how many steps. After another half-life than before, by none."""
        step = max(1, half_life // STEPS)
        position = max_event_time // step
        if step != self.step:
            self.step, self.position = step, position
            return 0
        passed = position - self.position
        if passed <= 0:
            return 0
        self.position = position
        left = ((bucket, faded(weight, passed)) for bucket, weight in self.weights.items())
        self.weights = {bucket: weight for bucket, weight in left if weight}
        return passed

    def add(self, rows: Pairs) -> None:
        """Counts rows; keeps the highest :data:`MOST_BUCKETS` buckets beside that of the rows that were not behind."""
        for bucket, count in rows:
            if count:
                weight = min(count, MOST_WEIGHT // ROW) * ROW
                self.weights[bucket] = min(self.weights.get(bucket, 0) + weight, MOST_WEIGHT)
        if len(self.weights) > MOST_BUCKETS + (0 in self.weights):
            *low, lowest_kept = sorted(self.weights)[0 in self.weights : -(MOST_BUCKETS - 1)]
            for bucket in low:
                self.weights[lowest_kept] = min(self.weights[lowest_kept] + self.weights.pop(bucket), MOST_WEIGHT)

    @property
    def weight(self) -> int:
        return sum(self.weights.values())

    @property
    def rows(self) -> float:
        """How many rows it stands for, as far as they have not faded."""
        return self.weight / ROW

    def lag_for(self, beyond: int) -> int:
        """The least lag beyond which at most the weight ``beyond`` lies, as a whole number."""
        left = 0
        for bucket in sorted(self.weights, reverse=True):
            left += self.weights[bucket]
            if left > beyond:
                return math.floor(EDGES[bucket])
        return 0

    def completeness(self, lag: float, window: int = 0) -> float:
        """Which share of the rows is on time under a lag; 1 where there are none.

        By row, one is late whose delay is beyond the lag. By windows of a size, it is late where its window has ended
        by then: where its delay is beyond the lag by more than it was before the end of its window. How much that is,
        nobody has counted: it is taken to be spread evenly over the window.
        """
        total = self.weight
        if not total:
            return 1.0
        return 1 - sum(w * _late(bucket, lag, window) for bucket, w in self.weights.items()) / total

    def quantile(self, share: float) -> int:
        """The delay that so large a share of the rows does not exceed, to the stated error."""
        left = 0
        for bucket in sorted(self.weights, reverse=True):
            left += self.weights[bucket]
            if left > math.floor(self.weight * (1 - share)):
                return typical(bucket)
        return 0

    def edges(self) -> Iterator[float]:
        """The lags at which the share of late rows changes, ascending."""
        return (EDGES[bucket] for bucket in sorted(self.weights))


def _late(bucket: int, lag: float, window: int) -> float:
    """Which share of a bucket's rows is late."""
    # Delays are whole: in the bucket are those above low, up to high; if that is but one, it is known.
    low, high = (math.floor(EDGES[bucket - 1]), math.floor(EDGES[bucket])) if bucket else (0, 0)
    if high - low <= 1:
        low = high
    if not window:
        # Where in a bucket its rows are is not known. Event times are often those of a clock that ticks: then all are
        # in one place, and to say half is never wrong by more than half.
        return 0.0 if high <= lag else 1.0 if low >= lag else 0.5

    def spread(beyond: float) -> float:
        """The integral of the share that is late, from a delay that is at the lag up to one so far beyond it."""
        if beyond <= 0:
            return 0.0
        return beyond * beyond / (2 * window) if beyond < window else beyond - window / 2

    if high == low:
        return min(max((high - lag) / window, 0.0), 1.0)
    return (spread(high - lag) - spread(low - lag)) / (high - low)
