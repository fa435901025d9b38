"""The completeness curve from sketches, compared with a replay of the same rows."""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.tools.drawing.clicks import LAGS, MINUTE, WINDOW, clicks
from examples.flights.data import load
from examples.flights.settings import Settings
from tests.domain.streams import APART, LAWS, Law, arrivals
from tests.support.machine import JobMachine
from tidegate.domain.completeness import (
    EDGES,
    MAX_POINTS,
    RELATIVE_ERROR,
    DelayStatistics,
    Sketch,
    bucket_of,
    curve,
    least_lag,
    typical,
)
from tidegate.domain.config import FrameThrottle, JobConfig, NoThrottle, Throttle
from tidegate.domain.policies import LimitingLag, Reported
from tidegate.domain.simulate import UNBOUNDED, Row, classify, merged_event_times, under_lag

FOR_EVER = 10**15
HOUR = 3_600_000


def rows_of(times: list[int]) -> list[Row]:
    return [Row(time, "", at) for at, time in enumerate(times)]


def steady(law: Law) -> list[Row]:
    return rows_of(arrivals(law, 20_000, 3))


@cache
def january() -> tuple[tuple[int, int, str], ...]:
    """Return take-off time, landing time and origin of the flights of January, in the order of the landings."""
    start = datetime(2013, 1, 1, tzinfo=UTC)
    flights = load(Settings(start, 31, 1, 30, 0, Path("out"))).flights
    millis = [(flights[name] - start).dt.total_seconds() * 1000 for name in ("departed_at", "landed_at")]
    return tuple(zip(*(column.astype(int) for column in millis), flights["origin"], strict=True))


def statistics_of(rows: list[Row], lag: int, throttle: Throttle) -> DelayStatistics:
    """Return the delay statistics of a machine with this lag, after a separate report for each row."""
    config = JobConfig(LimitingLag(lag), throttle, delay_half_life_ms=FOR_EVER)
    job = JobMachine(config, 0, numbers=UNBOUNDED)
    job.declare("", sorted({row.substream for row in rows}), 0)
    max_event_times: dict[str, int] = {}
    for row in rows:
        max_event_time = max_event_times.get(row.substream)
        delays = (
            {}
            if max_event_time is None
            else {
                row.substream: (
                    (bucket_of(max_event_time - config.throttle.classified_at(row.event_time, UNBOUNDED)), 1),
                )
            }
        )
        max_event_times[row.substream] = (
            row.event_time if max_event_time is None else max(max_event_time, row.event_time)
        )
        job.report({row.substream: row.event_time}, 0, delays=delays)
    return job.delay_statistics


MINUTES = [minutes * 60_000 for minutes in (0, 10, 30, 60, 120, 180, 240, 360, 480)]
STREAMS: dict[str, tuple[Callable[[], list[Row]], int, int, list[int]]] = {
    "the book's": (clicks, WINDOW, 5 * MINUTE, [lag * MINUTE for lag in LAGS]),
    "flights": (lambda: [Row(time, "", at) for time, at, _ in january()], HOUR, HOUR // 2, MINUTES),
    "flights by origin": (lambda: [Row(time, of, at) for time, at, of in january()], HOUR, HOUR // 2, MINUTES),
}
"""Streams by name: rows, size of the windows, lag of the job, and lags on the curve."""
for law, drawn in LAWS.items():
    STREAMS[law] = (partial(steady, drawn), 10_000, 5_000, [*range(0, 90_000, 5_000)])


@pytest.mark.parametrize(
    "stream",
    [pytest.param(name, marks=[] if name in ("flights", "exponential") else pytest.mark.fuzz) for name in STREAMS],
)
def test_the_curve_agrees_with_a_replay(stream: str) -> None:
    make, window, lag, lags = STREAMS[stream]
    rows = make()
    merged = merged_event_times(rows, {row.substream for row in rows})
    framed = statistics_of(rows, lag, FrameThrottle(window, window))
    by_row = statistics_of(rows, lag, NoThrottle())
    for point in curve(framed.merged, framed.wait, 0, lags):
        measured = classify(under_lag(rows, merged, point.lag), window)
        print(f"{stream}: {point} measured {measured.completeness:.2%} {measured.average_latency:.0f}")
        assert point.completeness == pytest.approx(measured.completeness, abs=0.01)
        assert point.latency is not None and measured.average_latency is not None
        if "flights" not in stream:  # at night many windows are empty, and a replay does not count them
            assert point.latency == pytest.approx(measured.average_latency, abs=0.05 * window)
        # Without frames, the sketch does not know the positions of rows in their windows.
        guessed = by_row.merged.completeness(point.lag, window)
        assert guessed == pytest.approx(measured.completeness, abs=0.05 if "flights" in stream else 0.01)
    # A coarse clock puts many rows exactly at a lag, and a sketch cannot split these. So each lag is raised by 5 %.
    for point in curve(by_row.merged, None, 0, [lag * 21 // 20 for lag in lags]):
        measured = classify(under_lag(rows, merged, point.lag), 1)
        assert point.completeness == pytest.approx(measured.completeness, abs=0.01)


@given(st.integers(1, 2**53 - 1))
def test_the_typical_delay_of_a_bucket_is_within_the_stated_error(delay: int) -> None:
    bucket = bucket_of(delay)
    assert EDGES[bucket - 1] < delay <= EDGES[bucket]
    assert abs(typical(bucket) - delay) <= RELATIVE_ERROR * delay * 1.000001 + 0.5


@given(st.lists(st.integers(-5, 10_000), max_size=60), st.lists(st.integers(-5, 10_000), max_size=60))
def test_sketches_of_parts_add_up(some: list[int], others: list[int]) -> None:
    together, apart = Sketch(), Sketch()
    together.add([(bucket_of(delay), 1) for delay in [*some, *others]])
    for part in (some, others):
        apart.add([(bucket_of(delay), 1) for delay in part])
    assert apart == together


def test_weights_halve_in_a_half_life_of_event_time() -> None:
    sketch = Sketch()
    sketch.decay_to(0, 800)
    sketch.add([(5, 1000)])
    for max_event_time in (100, 350, 350, 800):
        sketch.decay_to(max_event_time, 800)
    assert sketch.rows == pytest.approx(500, rel=1e-3)
    # A change of the half-life does not decay the weights.
    assert sketch.decay_to(8000, 1600) == 0
    assert sketch.rows == pytest.approx(500, rel=1e-3)
    sketch.decay_to(8000 + 1600 * 100, 1600)
    assert sketch.weights == {}


def test_a_long_curve_is_thinned_out_and_keeps_its_ends() -> None:
    sketch = Sketch()
    sketch.add([(bucket, 1) for bucket in range(600)])
    points = curve(sketch, None)
    assert len(points) <= MAX_POINTS + 2
    assert points[0].lag == 0
    assert points[-1].completeness == 1
    assert all(a.completeness <= b.completeness for a, b in pairwise(points))


def test_least_lag_is_the_lowest_sufficient_one() -> None:
    sketch = Sketch()
    sketch.add([(0, 90), (bucket_of(50), 9), (bucket_of(1000), 1)])
    assert least_lag(sketch, 0.9) == 0
    assert least_lag(sketch, 0.99) == math.floor(EDGES[bucket_of(50)])
    assert least_lag(sketch, 0.9901) > 900
    windowed = least_lag(sketch, 0.95, 100)
    assert sketch.completeness(windowed, 100) >= 0.95 > sketch.completeness(windowed - 1, 100)
    assert least_lag(Sketch(), 0.99) == 0


def test_the_wait_of_frames_is_measured_from_their_ends() -> None:
    throttled = JobMachine(JobConfig(LimitingLag(5), FrameThrottle(100, 100)), 0)
    for time in range(0, 1000, 10):
        throttled.report({"a": time}, 0)
    assert throttled.delay_statistics.wait is not None
    # The first event at least 5 past the end of a window is 10 past it. So the wait is 10 less the lag of 5.
    assert throttled.delay_statistics.wait == 5


def test_without_a_lag_there_is_no_curve() -> None:
    job = JobMachine(JobConfig(Reported()), 0)
    for time in range(5):
        job.report({"a": time}, 0, watermarks={"a": time}, delays={"a": ((3, 1),)})
    assert job.delay_statistics.merged.weights == {}
    assert job.delay_statistics.wait is None
    assert job.delay_statistics.pool.rows == 4


def test_rows_before_the_first_watermark_are_on_time_under_any_lag() -> None:
    job = JobMachine(JobConfig(LimitingLag(0)), 0)
    job.declare("", ["b"], 0)
    for time in range(5):
        job.report({"a": APART * time}, 0, delays={"a": ((300, 1),)})
    assert [*job.delay_statistics.merged.weights] == [0]
