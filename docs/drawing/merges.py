"""The exercise of two partitions: B is as orderly as A but trails it by a fixed skew. What lag keeps B whole?

At each moment ``now`` both partitions bring an event at the top of their stream, and one that is D older: A's at now
and now - D, B's at now - skew and now - skew - D. The watermark is taken from the lowest, the highest, or the average
of the two tops. See docs/semantics.md for what the analysis gives.
"""

from collections.abc import Callable

from tidegate.domain import commands
from tidegate.domain.config import JobConfig
from tidegate.domain.names import DIRECT
from tidegate.domain.policy import LimitingLag
from tidegate.domain.simulate import new_job
from tidegate.domain.state import JobState

DISORDER = 7
MOMENTS = 60

Late = Callable[[int, int], int]
"""How many events of B are late, given the skew and the lag."""


def arrivals(skew: int) -> list[tuple[str, int]]:
    """Both tops come before the older events: the order that is hardest on B."""
    out = []
    for now in range(1000, 1000 + MOMENTS):
        out += [("A", now), ("B", now - skew), ("A", now - DISORDER), ("B", now - skew - DISORDER)]
    return out


def late_by_minimum(skew: int, lag: int) -> int:
    """A job with a substream for each: what Tidegate does."""
    job = new_job(JobConfig(LimitingLag(lag)), 0)
    commands.declare(job, DIRECT, ["A", "B"], 0)
    return _late(job, skew, lambda partition: partition)


def late_by_maximum(skew: int, lag: int) -> int:
    """A job that takes both for one substream: the highest event time of all, as Spark has it."""
    return _late(new_job(JobConfig(LimitingLag(lag)), 0), skew, lambda _: "both")


def _late(job: JobState, skew: int, substream: Callable[[str], str]) -> int:
    late = 0
    for partition, time in arrivals(skew):
        watermark = job.watermark
        late += partition == "B" and watermark is not None and time < watermark
        commands.report(job, {substream(partition): time}, 0)
    return late


def late_by_average(skew: int, lag: int) -> int:
    """What no system does, in plain arithmetic (doubled, to stay with whole numbers)."""
    max_event_times: dict[str, int] = {}
    late = 0
    for partition, time in arrivals(skew):
        if len(max_event_times) == 2:
            late += partition == "B" and 2 * time < sum(max_event_times.values()) - 2 * lag
        max_event_times[partition] = max(time, max_event_times.get(partition, time))
    return late


def least_lag(late: Late, skew: int) -> int:
    """The lowest lag at which nothing of B is late; at every one below it something is."""
    return next(lag for lag in range(1000) if late(skew, lag) == 0)


def least_lags() -> dict[str, list[tuple[int, int]]]:
    """By skew, for each way of merging."""
    ways = {"maximum": late_by_maximum, "average": late_by_average, "minimum": late_by_minimum}
    return {name: [(skew, least_lag(late, skew)) for skew in range(0, 41, 4)] for name, late in ways.items()}
