"""The exercise of :mod:`benchmarks.lateness`: all events in Python, and the first events with Spark."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.lateness import EVENTS, GRACES, HALVES, LAG, SIZE, arrivals, measure


def by_hand(events: int, lag: int, grace: int) -> tuple[int, int, int, float]:
    """Return the numbers of on-time, updated and late events, and the mean latency of the emitted windows.

    Each event is classified when it arrives.
    """
    max_event_time, counts = -1, [0, 0, 0]
    open_ends: set[int] = set()
    latencies = []
    for time in arrivals(events):
        max_event_time = max(max_event_time, time)
        watermark = max_event_time - HALVES * lag
        end = (time // (HALVES * SIZE) + 1) * HALVES * SIZE
        row_class = 0 if end > watermark else 1 if end + HALVES * grace > watermark else 2
        counts[row_class] += 1
        if row_class == 0:
            open_ends.add(end)
        for closed in [end for end in open_ends if end <= watermark]:
            open_ends.remove(closed)
            latencies.append((max_event_time - closed) / HALVES)
    return (*counts, sum(latencies) / len(latencies))  # type: ignore[return-value]


def test_allowed_lateness_gives_the_completeness_of_a_longer_lag_without_its_latency() -> None:
    """With a lag of 5, an allowed lateness of 5 or 15 is as complete as a lag of 10 or 20, without its latency."""

    def complete(lag: int, grace: int) -> tuple[str, float]:
        on_time, updated, _, latency = by_hand(EVENTS, lag, grace)
        return f"{100 * (on_time + updated) / EVENTS:.3f}", round(latency, 2)

    assert [complete(LAG, grace) for grace in GRACES] == [
        ("85.005", 5.79),
        ("93.465", 5.79),
        ("99.475", 5.79),
        ("100.000", 5.79),
    ]
    assert [complete(lag, 0) for lag in (10, 20)] == [("93.465", 10.87), ("99.475", 20.87)]


@pytest.mark.parametrize("grace", [0, 15])
def test_a_real_query_counts_as_by_hand(spark: SparkSession, tmp_path: Path, grace: int) -> None:
    events = 200
    [found] = measure(spark, tmp_path, lambda line: None, events, [grace])
    on_time, updated, late, latency = by_hand(events, LAG, grace)
    assert (found.on_time, found.updated, found.late) == (on_time, updated, late)
    assert found.latency == pytest.approx(latency)
    assert late > 0 if grace == 0 else updated > 0
    # The state has open windows, closed windows that still accept rows, and windows that this batch has closed.
    assert 0 < found.state_rows <= (LAG + grace) // SIZE + 3
