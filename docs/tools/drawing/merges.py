"""The lowest lag without late rows of partition B, which trails partition A by a fixed skew.

At each time ``now``, each partition has two events: one at its max event time, and one that is older by D = 7. A has
events at now and now - D, B at now - skew and now - skew - D. The watermark is the minimum, the maximum or the average
of the two max event times, minus the lag. docs/explanation/watermarks.md has the analysis.
"""

from collections.abc import Callable

from tidegate.domain import commands
from tidegate.domain.config import JobConfig
from tidegate.domain.job import JobState
from tidegate.domain.policies import LimitingLag
from tidegate.domain.simulate import new_job
from tidegate.domain.values import DIRECT

DISORDER = 7
MOMENTS = 60

Late = Callable[[int, int], int]
"""A function that returns the number of late events of B, given the skew and the lag."""


def arrivals(skew: int) -> list[tuple[str, int]]:
    """Return the events as pairs of partition and event time, in the order in which they arrive.

    At each time, the max event times arrive before the older events. This order is the worst case for B.
    """
    out = []
    for now in range(1000, 1000 + MOMENTS):
        out += [("A", now), ("B", now - skew), ("A", now - DISORDER), ("B", now - skew - DISORDER)]
    return out


def late_by_minimum(skew: int, lag: int) -> int:
    """Return the number of late events of B if each partition is a substream, as in Tidegate."""
    job = new_job(JobConfig(LimitingLag(lag)), 0)
    commands.declare(job, DIRECT, ["A", "B"], 0)
    return _late(job, skew, lambda partition: partition)


def late_by_maximum(skew: int, lag: int) -> int:
    """Return the number of late events of B if both partitions are one substream, as with Spark's own watermark."""
    return _late(new_job(JobConfig(LimitingLag(lag)), 0), skew, lambda _: "both")


def _late(job: JobState, skew: int, substream: Callable[[str], str]) -> int:
    late = 0
    for partition, time in arrivals(skew):
        watermark = job.watermark
        late += partition == "B" and watermark is not None and time < watermark
        commands.report(job, {substream(partition): time}, 0)
    return late


def late_by_average(skew: int, lag: int) -> int:
    """Return the number of late events of B if the watermark is derived from the average.

    Both sides of the comparison are doubled, so that all numbers are integers.
    """
    max_event_times: dict[str, int] = {}
    late = 0
    for partition, time in arrivals(skew):
        if len(max_event_times) == 2:
            late += partition == "B" and 2 * time < sum(max_event_times.values()) - 2 * lag
        max_event_times[partition] = max(time, max_event_times.get(partition, time))
    return late


def least_lag(late: Late, skew: int) -> int:
    """Return the lowest lag with which no event of B is late."""
    return next(lag for lag in range(1000) if late(skew, lag) == 0)


def least_lags() -> dict[str, list[tuple[int, int]]]:
    """Return points of skew and lowest lag for each way to merge the max event times."""
    ways = {"maximum": late_by_maximum, "average": late_by_average, "minimum": late_by_minimum}
    return {name: [(skew, least_lag(late, skew)) for skew in range(0, 41, 4)] for name, late in ways.items()}
