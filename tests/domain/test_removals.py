"""After an eviction, a job continues as if the substream had never reported. Only its watermark does not go back."""

from copy import deepcopy

from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.machine import JobMachine
from tidegate.domain.config import FrameThrottle, JobConfig, NoThrottle
from tidegate.domain.policies import (
    SLOTS,
    LimitingLag,
    LimitingLagAndDelay,
    LimitingLagAndLull,
    LimitingTimestampAndWallClockLag,
)
from tidegate.domain.values import DIRECT, by_value, highest

START = 1000
OTHERS = ["a", "b", "c"]
policies = st.sampled_from(
    [
        LimitingLag(5),
        LimitingLagAndDelay(5, 48),
        LimitingLagAndLull(5, 20),
        LimitingTimestampAndWallClockLag(5, 60),
    ]
)
configs = st.builds(
    JobConfig,
    policies,
    st.sampled_from([NoThrottle(), FrameThrottle(10, 10)]),
    idle_timeout_ms=st.sampled_from([None, 15, 40]),
    max_retention_ms=st.sampled_from([None, 64, 160]),
    max_skew_ms=st.sampled_from([None, 20]),
)
Step = tuple[str, int, int]
"""A substream ("": a sweep), the distance of its event time from the clock, and the time since the previous step."""


def steps(names: list[str], ahead: int) -> st.SearchStrategy[list[Step]]:
    one = st.tuples(st.sampled_from([*names, ""]), st.integers(-60, ahead), st.integers(0, 30))
    return st.lists(one, min_size=1, max_size=25)


@given(configs, steps([*OTHERS, "x"], 60_000), steps(OTHERS, 20))
@example(
    JobConfig(LimitingLag(5), max_retention_ms=64, max_future_skew_ms=None),
    [("x", 31, 0), ("a", 0, 1), ("a", 0, 30)],
    [("a", -8, 8), ("a", 0, 30), ("a", 0, 3), ("a", 0, 1), ("a", 0, 30), ("", 0, 30)],
)
def test_an_evicted_substream_moves_nothing(config: JobConfig, before: list[Step], after: list[Step]) -> None:
    """One of the two jobs gets no report of the substream; a sweep takes its place.

    The first sample starts the slots of retention (see :class:`TimestampHistory`), and it may be of the substream. A
    value of the history may therefore return up to a slot earlier.
    """
    job, other = (JobMachine(config, START) for _ in range(2))
    for one in (job, other):
        one.declare(DIRECT, OTHERS, START)
    now_ms = START
    for name, distance, pause in before:
        now_ms += pause
        for one, names in ((job, [*OTHERS, "x"]), (other, OTHERS)):
            time = now_ms + (distance if name == "x" else min(distance, 20))
            one.report({name: time}, now_ms) if name in names else one.sweep(now_ms)
    job.evict(DIRECT, ["x"], now_ms)
    other.sweep(now_ms)
    assert job.summary().max_event_time == other.summary().max_event_time
    reached = job.watermark_state().watermark
    for name, distance, pause in after:
        now_ms += pause
        for one in (job, other):
            one.report({name: now_ms + distance}, now_ms) if name else one.sweep(now_ms)
        found, limit = job.watermark_state().watermark, highest(reached, other.watermark_state().watermark)
        if config.max_retention_ms is not None:
            later = deepcopy(other)
            later.sweep(now_ms + config.max_retention_ms // SLOTS)
            limit = highest(limit, later.watermark_state().watermark)
        assert by_value(found) <= by_value(limit)
    job.complete(now_ms)
    other.complete(now_ms)
    limit = highest(reached, other.watermark_state().watermark)
    assert job.watermark_state().watermark == limit
