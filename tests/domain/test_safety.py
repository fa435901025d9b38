"""A row that is on time in its substream is on time in the job, or the history names the limit that made it late."""

from collections import defaultdict
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.machine import JobMachine
from tidegate.domain.batches import PartitionReport
from tidegate.domain.config import FrameThrottle, JobConfig, MinStepThrottle, NoThrottle
from tidegate.domain.history import MOVEMENTS
from tidegate.domain.job import Run
from tidegate.domain.policies import (
    LimitingLag,
    LimitingLagAndDelay,
    LimitingLagAndLull,
    LimitingTimestampAndWallClockLag,
)
from tidegate.domain.values import DIRECT, above

SUBSTREAMS = ["a", "b", "c"]
START = 1000

arrivals = st.lists(
    st.tuples(
        st.sampled_from(SUBSTREAMS),
        st.integers(0, 30),  # distance of its event time from the max event time of its substream
        st.booleans(),  # whether the event time is ahead
        st.integers(0, 25),  # processing time since the previous arrival
    ),
    min_size=1,
    max_size=60,
)
lags = st.sampled_from([0, 5, 20])
throttles = st.sampled_from([NoThrottle(), FrameThrottle(20, 10, 3), MinStepThrottle(15)])


def stream(steps: list[tuple[str, int, bool, int]]) -> list[tuple[str, int, int]]:
    """Return substream, event time and processing time of each arrival."""
    max_event_times: defaultdict[str, int] = defaultdict(lambda: START)
    now, out = START, []
    for name, distance, ahead, pause in steps:
        now += pause
        time = max_event_times[name] + distance if ahead else max_event_times[name] - distance
        max_event_times[name] = max(max_event_times[name], time)
        out.append((name, time, now))
    return out


@given(arrivals, lags, throttles, st.lists(st.integers(0, 59), max_size=20))
def test_without_limits_a_row_on_time_in_its_substream_is_on_time_in_the_job(
    steps: list[tuple[str, int, bool, int]], lag: int, throttle: NoThrottle, sweeps: list[int]
) -> None:
    """A fast substream must not make the rows of a slow one late."""
    job = JobMachine(JobConfig(LimitingLag(lag), throttle), START)
    job.declare(DIRECT, SUBSTREAMS, START)
    max_event_times: dict[str, int] = {}
    for number, (name, time, now) in enumerate(stream(steps)):
        if name not in max_event_times or time >= max_event_times[name] - lag:
            assert not above(job.watermark, time)
        max_event_times[name] = max(time, max_event_times.get(name, time))
        job.report({name: time}, now)
        if number in sweeps:
            job.sweep(now)


@given(arrivals, lags, st.integers(1, 4))
def test_without_limits_the_same_holds_for_rows_in_batches(
    steps: list[tuple[str, int, bool, int]], lag: int, size: int
) -> None:
    """Rows are classified by the pinned watermark of their batch, and reports take effect with its commit."""
    job = JobMachine(JobConfig(LimitingLag(lag)), START)
    run = Run("q", "c", "r")
    job.declare("q", SUBSTREAMS, START)
    max_event_times: dict[str, int] = {}
    rows = stream(steps)
    for batch, first in enumerate(range(0, len(rows), size)):
        part = rows[first : first + size]
        pinned_watermark = job.begin(run, batch, part[0][2]).pinned_watermark
        for partition, (name, time, now) in enumerate(part):
            if name not in max_event_times or time >= max_event_times[name] - lag:
                assert not above(pinned_watermark, time)
            job.stage(run, batch, PartitionReport(partition, {name: time}), now)
        for name, time, _ in part:
            max_event_times[name] = max(time, max_event_times.get(name, time))
        job.commit(run, batch, None, part[-1][2])


limits = st.sampled_from(
    [
        JobConfig(LimitingLag(0), idle_timeout_ms=10),
        JobConfig(LimitingLag(0), idle_timeout_ms=60),
        JobConfig(LimitingLag(0), max_retention_ms=16),
        JobConfig(LimitingLag(0), max_retention_ms=80),
        JobConfig(LimitingLag(0), max_skew_ms=10),
        JobConfig(LimitingLag(0), max_skew_ms=40, idle_timeout_ms=60),
        JobConfig(LimitingLagAndLull(0, 5)),
        JobConfig(LimitingLagAndLull(0, 30), max_retention_ms=16),
        JobConfig(LimitingTimestampAndWallClockLag(0, 0)),
        JobConfig(LimitingTimestampAndWallClockLag(0, 40), idle_timeout_ms=10),
        JobConfig(LimitingLagAndDelay(0, 16)),
    ]
)
PASSING = ("idle_timeout_ms", "max_retention_ms", "max_skew_ms")
NAMES_OF: dict[type, str] = {
    LimitingLagAndDelay: "max_delay_ms",
    LimitingLagAndLull: "max_lull_ms",
    LimitingTimestampAndWallClockLag: "wall_clock_lag_ms",
}


def limits_on_record(job: JobMachine, name: str, beyond: int) -> set[str]:
    """Return the limits in the history that let the watermark pass ``beyond`` before the substream ``name`` did."""
    found: set[str] = set()
    member = f"/{name}"
    idle_by = None
    for record in job.history:
        if record.kind == "idle" and member in record.details["substreams"]:
            idle_by = record.details["limit"]
        elif record.kind == "active" and member in record.details["substreams"]:
            idle_by = None
        elif record.kind in MOVEMENTS and record.details["coalesced_watermark"] > beyond:
            if idle_by is not None:
                found.add(idle_by)
            for limit in record.details.get("limits", []):
                if member in limit["substreams"]:
                    found.add(limit["limit"])
            return found
    return found


@settings(max_examples=300)
@given(arrivals, limits, st.sampled_from([0, 5, 20]), throttles)
def test_the_history_names_the_limit_that_made_a_row_late(
    steps: list[tuple[str, int, bool, int]], config: JobConfig, lag: int, throttle: NoThrottle
) -> None:
    """The history must name a limit of the configuration."""
    policy = config.policy
    lag_field = "timestamp_lag_ms" if isinstance(policy, LimitingTimestampAndWallClockLag) else "lag_ms"
    config = replace(config, policy=replace(policy, **{lag_field: lag}), throttle=throttle)  # type: ignore[type-var]
    allowed = {NAMES_OF.get(type(policy))}
    allowed |= {limit for limit in PASSING if getattr(config, limit) is not None}
    job = JobMachine(config, START)
    job.declare(DIRECT, SUBSTREAMS, START)
    max_event_times: dict[str, int] = {}
    for name, time, now in stream(steps):
        job.sweep(now)
        if (name not in max_event_times or time >= max_event_times[name] - lag) and above(job.watermark, time):
            explained = limits_on_record(job, name, time)
            assert explained, f"{name} is late at {time}, and the history names no limit"
            assert explained <= allowed
        max_event_times[name] = max(time, max_event_times.get(name, time))
        job.report({name: time}, now)


def test_every_limit_acts_on_such_streams() -> None:
    """The test above checks nothing for a limit that never acts."""
    steps = [("a", 5, True, 0), ("b", 5, True, 0), ("c", 5, True, 0)]
    steps += [("a", 9, True, 9), ("b", 8, True, 1)] * 40 + [("c", 5, True, 0)]
    acted: set[str] = set()
    for config in (
        JobConfig(LimitingLag(0), idle_timeout_ms=50),
        JobConfig(LimitingLag(0), max_retention_ms=40),
        JobConfig(LimitingLag(0), max_skew_ms=20),
        JobConfig(LimitingLagAndLull(0, 30)),
        JobConfig(LimitingTimestampAndWallClockLag(0, 40)),
        JobConfig(LimitingLagAndDelay(30, 20)),
    ):
        job = JobMachine(config, START)
        job.declare(DIRECT, SUBSTREAMS, START)
        for name, time, now in stream(steps):
            job.sweep(now)
            job.report({name: time}, now)
        acted |= set(job.limits)
    assert acted == {*PASSING, *NAMES_OF.values()}
