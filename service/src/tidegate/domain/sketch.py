"""Sketches of delays: numbers of rows by distance from the max event time of their substream.

Delays are counted in buckets whose edges grow by a constant factor, so every quantile is exact to within
:data:`RELATIVE_ERROR` (the buckets of DDSketch: Masson, Rim and Lee, VLDB 2019). Old rows decay: in each eighth
of a half-life, the weights are multiplied by a constant. All arithmetic uses whole numbers and doubles in one fixed
order, so that the functions in Redis compute identical results.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, repeat

RELATIVE_ERROR = 0.01
GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
HIGHEST_BUCKET = 1838
"""The last bucket; its edge is beyond every number that JSON holds exactly."""
MAX_BUCKETS = 640
"""Maximum number of buckets besides bucket 0. The sketch keeps the highest buckets, which span 5.5 decades.

Lower delays count in the lowest kept bucket.
"""
ROW = 1000
"""Weight of a new row. Weights are whole numbers, so a high initial weight makes decay precise."""
MAX_WEIGHT = 10**13
STEPS = 8
"""Decay steps in a half-life."""
DECAY = tuple(2 ** (-step / STEPS) for step in range(STEPS))

EDGES = (0.0, *accumulate(repeat(GAMMA, HIGHEST_BUCKET - 1), lambda edge, gamma: edge * gamma, initial=1.0))
"""Bucket 0 is for rows without delay. Bucket b > 0 is for delays in ``(EDGES[b - 1], EDGES[b]]``."""

Pairs = Iterable[tuple[int, int]]
"""Pairs of a bucket and its number of rows."""


def bucket_of(delay: int) -> int:
    """Return the bucket of a delay; the last bucket if the delay is beyond all edges."""
    return 0 if delay <= 0 else min(bisect_left(EDGES, delay), HIGHEST_BUCKET)


def typical(bucket: int) -> int:
    """Return the delay that represents a bucket, at the same relative distance from both edges."""
    return math.floor(EDGES[bucket] * 2 / (GAMMA + 1) + 0.5)


def decayed(weight: int, steps: int) -> int:
    """Return a weight after the decay of ``steps`` eighths of a half-life."""
    halvings, rest = divmod(steps, STEPS)
    return math.floor(math.floor(weight * DECAY[rest]) * 2.0**-halvings) if halvings < 60 else 0


@dataclass(slots=True)
class Sketch:
    """Weights by bucket, in thousandths of a row.

    Weights decay with event time, not with the clock. A silent substream therefore keeps its delays, and a replay gives
    the same weights. ``step`` is an eighth of the half-life, and ``position`` is the max event time in whole steps.
    """

    step: int = 0
    position: int = 0
    weights: dict[int, int] = field(default_factory=dict)

    def decay_to(self, max_event_time: int, half_life: int) -> int:
        """Decay to a max event time and return the number of steps; 0 after a change of half-life."""
        step = max(1, half_life // STEPS)
        position = max_event_time // step
        if step != self.step:
            self.step, self.position = step, position
            return 0
        steps = position - self.position
        if steps <= 0:
            return 0
        self.position = position
        remaining = ((bucket, decayed(weight, steps)) for bucket, weight in self.weights.items())
        self.weights = {bucket: weight for bucket, weight in remaining if weight}
        return steps

    def add(self, rows: Pairs) -> None:
        """Count rows; keep the highest :data:`MAX_BUCKETS` buckets and bucket 0."""
        for bucket, count in rows:
            if count:
                weight = min(count, MAX_WEIGHT // ROW) * ROW
                self.weights[bucket] = min(self.weights.get(bucket, 0) + weight, MAX_WEIGHT)
        if len(self.weights) > MAX_BUCKETS + (0 in self.weights):
            *low, lowest_kept = sorted(self.weights)[0 in self.weights : -(MAX_BUCKETS - 1)]
            for bucket in low:
                self.weights[lowest_kept] = min(self.weights[lowest_kept] + self.weights.pop(bucket), MAX_WEIGHT)

    @property
    def weight(self) -> int:
        """The total weight."""
        return sum(self.weights.values())

    @property
    def rows(self) -> float:
        """The total weight in rows."""
        return self.weight / ROW

    def lag_for(self, beyond: int) -> int:
        """Return the lowest whole lag with at most the weight ``beyond`` above it."""
        total = 0
        for bucket in sorted(self.weights, reverse=True):
            total += self.weights[bucket]
            if total > beyond:
                return math.floor(EDGES[bucket])
        return 0

    def completeness(self, lag: float, window: int = 0) -> float:
        """Return the share of rows on time under a lag; 1 if the sketch has no rows.

        Without ``window``, a row is late if its delay exceeds the lag. With tumbling windows of this size, a row is
        late if its delay minus the lag exceeds its distance to the end of its window. The estimate assumes that this
        distance is evenly distributed.
        """
        total = self.weight
        if not total:
            return 1.0
        return 1 - sum(w * _late_share(bucket, lag, window) for bucket, w in self.weights.items()) / total

    def quantile(self, share: float) -> int:
        """Return the delay that this share of the rows does not exceed, to within the relative error."""
        total = 0
        for bucket in sorted(self.weights, reverse=True):
            total += self.weights[bucket]
            if total > math.floor(self.weight * (1 - share)):
                return typical(bucket)
        return 0

    def edges(self) -> Iterator[float]:
        """Yield the lags at which the share of late rows changes, ascending."""
        return (EDGES[bucket] for bucket in sorted(self.weights))


def _late_share(bucket: int, lag: float, window: int) -> float:
    # Delays are whole numbers in (low, high]. A bucket with only one such number is exact.
    low, high = (math.floor(EDGES[bucket - 1]), math.floor(EDGES[bucket])) if bucket else (0, 0)
    if high - low <= 1:
        low = high
    if not window:
        # The distribution within a bucket is unknown, because coarse event times may make all its delays equal.
        # An estimate of one half limits the error to one half.
        return 0.0 if high <= lag else 1.0 if low >= lag else 0.5

    def integral(beyond: float) -> float:
        """Return the integral of the late share over delays from the lag to the lag plus ``beyond``."""
        if beyond <= 0:
            return 0.0
        return beyond * beyond / (2 * window) if beyond < window else beyond - window / 2

    if high == low:
        return min(max((high - lag) / window, 0.0), 1.0)
    return (integral(high - lag) - integral(low - lag)) / (high - low)
