"""Completeness: which rows were late, and how late rows are.

The ledger counts rows by substream and hour of event time. A sketch counts rows by delay: the distance from the max
event time of their substream. The completeness curve is computed from a sketch.

This is the model. In a coordinator, ``store/lua/completeness.lua`` does the same.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from itertools import accumulate, groupby, repeat
from operator import attrgetter, itemgetter
from typing import Literal

from tidegate.domain.values import SubstreamKey, described, member

# Rows that queries account for, by class, substream and hour of event time

LateDisposition = Literal["dropped", "diverted"]
"""The late disposition of a query, which either drops its late rows or diverts them to a side output."""

RowsOfHour = tuple[int, int, int, int]
"""An hour of event time, counted from 0, and its number of rows, updated rows and late rows."""

RowsByDelay = tuple[tuple[int, int], ...]
"""Rows by delay bucket; see :class:`Sketch`."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Numbers of committed rows by row class."""

    on_time: int = described(
        "Rows at or above the pinned watermark of their batch. With windows: rows whose windows are all open.",
        example=301204,
    )
    updated: int = described(
        "Rows with a closed window within its allowed lateness. Such a row changes a written result.", example=118
    )
    late: int = described(
        "Rows below the pinned watermark of their batch. With windows: rows with a window that no longer accepts rows.",
        example=57,
    )
    null_event_time: int = described("Rows without an event time.", example=0)
    future: int = described("Rows with an event time too far in the future.", example=0)

    def __add__(self, other: "RowCounts") -> "RowCounts":
        """Return the sums by class."""
        return RowCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


NO_ROWS = RowCounts(0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class HourCounts:
    """Numbers of rows in one hour: all rows, updated rows, dropped rows and diverted rows."""

    rows: int = 0
    updated: int = 0
    dropped: int = 0
    diverted: int = 0

    def __add__(self, other: "HourCounts") -> "HourCounts":
        """Return the sums."""
        return HourCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def late(self) -> int:
        """The late rows, dropped or diverted."""
        return self.dropped + self.diverted


@dataclass(frozen=True, slots=True)
class BatchAccounting:
    """The rows of one batch by substream, and the disposition of its late rows.

    ``hours`` contains the known rows of each substream by hour. ``all_hours`` contains all rows of the batch by hour,
    if ``hours`` is incomplete. ``frames`` contains all rows of the batch by frame: as for an hour, but with a time in
    the frame in place of the number; None if the client does not count them.
    """

    substreams: tuple[str, ...]
    counts: tuple[RowCounts, ...]
    late_disposition: LateDisposition = "dropped"
    hours: tuple[tuple[RowsOfHour, ...], ...] = ()
    all_hours: tuple[RowsOfHour, ...] = ()
    frames: tuple[RowsOfHour, ...] | None = None

    def by_substream(self) -> Iterator[tuple[str, RowCounts]]:
        """Yield the counts of each substream."""
        return zip(self.substreams, self.counts, strict=True)

    def by_hour(self) -> Iterator[tuple[str, RowsOfHour]]:
        """Yield the rows of each substream and hour."""
        for name, hours in zip(self.substreams, self.hours, strict=False):
            for rows in hours:
                yield name, rows


# The ledger: rows, updated rows and late rows, by substream and hour of event time

HOUR = 3_600_000
"""Units of event time in an hour. Hours are counted from 0."""
HOURS_KEPT = 168
"""Maximum number of hours kept: one week."""
ENTRIES_KEPT = 50_000
"""Maximum number of entries (substream and hour). A job with many substreams keeps fewer hours."""

Entry = tuple[SubstreamKey, int, HourCounts]
"""A substream, an hour, and the counts of the substream's rows in this hour."""


def sum_by_hour(rows: Iterable[Sequence[int]]) -> dict[int, tuple[int, int, int]]:
    """Return the sums of rows, updated rows and late rows for each hour."""
    sums: dict[int, tuple[int, int, int]] = {}
    for hour, count, updated, late in rows:
        before = sums.get(hour, (0, 0, 0))
        sums[hour] = before[0] + count, before[1] + updated, before[2] + late
    return sums


@dataclass(slots=True)
class Ledger:
    """Counts by hour, of the job and of the substreams that were known when their batch committed.

    The ledger keeps the latest hours with rows. The entries of a substream stay when the substream is done or evicted.
    ``unattributed`` is the number of rows by hour that batches accounted for without a substream.
    """

    of_job: dict[int, HourCounts] = field(default_factory=dict)
    of_substreams: dict[int, dict[SubstreamKey, HourCounts]] = field(default_factory=dict)
    unattributed: Counter[int] = field(default_factory=Counter)

    def add(
        self,
        rows: Iterable[tuple[SubstreamKey | None, RowsOfHour]],
        disposition: LateDisposition,
        all_rows: Sequence[RowsOfHour] = (),
        latest: int | None = None,
    ) -> None:
        """Add the rows of one batch.

        Args:
            rows: Rows by substream; None for an unknown substream.
            disposition: Disposition of the late rows.
            all_rows: All rows of the batch by hour, if ``rows`` is incomplete.
            latest: Latest accepted event time. The ledger ignores later hours, because they would displace valid
                hours. None: no limit.
        """
        given = [(key, of_hour) for key, of_hour in rows if of_hour[1]]
        attributed = sum_by_hour(of_hour for _, of_hour in given)
        of_job = {
            hour: counts
            for hour, counts in (sum_by_hour(all_rows) or attributed).items()
            if counts[0] and (latest is None or hour * HOUR <= latest)
        }
        for hour, counts in of_job.items():
            self.of_job[hour] = self.of_job.get(hour, HourCounts()) + _hour_counts(*counts, disposition)
            self.of_substreams.setdefault(hour, {})
            unattributed = counts[0] - attributed.get(hour, (0, 0, 0))[0]
            if unattributed > 0:
                self.unattributed[hour] += unattributed
        for key, (hour, count, updated, late) in given:
            if key is not None and hour in of_job:
                of_each = self.of_substreams[hour]
                of_each[key] = of_each.get(key, HourCounts()) + _hour_counts(count, updated, late, disposition)
        self._trim()

    def _trim(self) -> None:
        entries = sum(map(len, self.of_substreams.values()))
        while len(self.of_job) > 1 and (len(self.of_job) > HOURS_KEPT or entries > ENTRIES_KEPT):
            first = min(self.of_job)
            entries -= len(self.of_substreams.pop(first))
            del self.of_job[first]
            self.unattributed.pop(first, None)

    def entries(self) -> Iterator[Entry]:
        """Yield all entries of substreams."""
        for hour, of_each in self.of_substreams.items():
            for key, counts in of_each.items():
                yield key, hour, counts


def _hour_counts(count: int, updated: int, late: int, disposition: LateDisposition) -> HourCounts:
    dropped, diverted = (late, 0) if disposition == "dropped" else (0, late)
    return HourCounts(count, updated, dropped, diverted)


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive hours of event time, ``[start, end)``, in which rows of a substream were late.

    ``whole`` is true if the counts include all rows of these hours.
    """

    key: SubstreamKey
    start: int
    end: int
    counts: HourCounts
    whole: bool = True


def spans(entries: Iterable[Entry], unattributed: Collection[int] = ()) -> list[Span]:
    """Return the spans of late rows, sorted by dropped rows, then diverted rows (both descending), name and time.

    Args:
        entries: Entries of a ledger.
        unattributed: Hours with rows that have no substream.
    """
    found: list[Span] = []
    late = sorted((entry for entry in entries if entry[2].late), key=itemgetter(0, 1))
    for key, of_key in groupby(late, key=itemgetter(0)):
        open_span: Span | None = None
        for _, hour, counts in of_key:
            span = Span(key, hour * HOUR, (hour + 1) * HOUR, counts, hour not in unattributed)
            if open_span is not None and open_span.end == span.start:
                whole = open_span.whole and span.whole
                open_span = Span(key, open_span.start, span.end, open_span.counts + counts, whole)
                found[-1] = open_span
            else:
                open_span = span
                found.append(span)
    found.sort(key=lambda span: (member(span.key), span.start))
    return sorted(found, key=attrgetter("counts.dropped", "counts.diverted"), reverse=True)


# Sketches of delays: numbers of rows by distance from the max event time of their substream
#
# Delays are counted in buckets whose edges grow by a constant factor, so every quantile is exact to within the relative
# error (the buckets of DDSketch: Masson, Rim and Lee, VLDB 2019). Old rows decay: in each eighth of a half-life, the
# weights are multiplied by a constant. All arithmetic uses whole numbers and doubles in one fixed order, so that the
# functions in Redis compute identical results.

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


@dataclass(slots=True)
class DelayStatistics:
    """The delays of all rows of a job, and the latency in addition to the lag.

    ``pool`` contains the delays behind the max event time of the row's substream. ``merged`` contains the delays behind
    the watermark that the job would have without any lag. That watermark follows the slowest substream, so it decides
    which rows are late. ``wait_sum / wait_weight`` is the average latency: the distance from an event time that the
    watermark passes to the max event time minus the lag.
    """

    pool: Sketch = field(default_factory=Sketch)
    merged: Sketch = field(default_factory=Sketch)
    wait_sum: float = 0.0
    wait_weight: int = 0

    @property
    def wait(self) -> int | None:
        """The average latency in addition to the lag; None until the watermark has moved."""
        return math.floor(self.wait_sum / self.wait_weight + 0.5) if self.wait_weight else None


# The completeness curve: the share of rows on time and the latency for each lag

MAX_POINTS = 200
"""Approximate maximum number of points, if the caller gives no lags."""


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
