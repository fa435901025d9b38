"""Strategies for configurations, names, times and runs. They have few values, so commands often affect each other."""

from typing import Any

from hypothesis import strategies as st

from tidegate.domain.calendar import Frames
from tidegate.domain.completeness import RowCounts
from tidegate.domain.config import FrameThrottle, JobConfig, MinStepThrottle, NoThrottle, Override, Throttle
from tidegate.domain.job import PinnedWatermark, Run, TableVersion, TokenClaim
from tidegate.domain.offsets import BatchOffsets
from tidegate.domain.policies import (
    LimitingLag,
    LimitingLagAndDelay,
    LimitingLagAndLull,
    LimitingTimestampAndWallClockLag,
    Policy,
    Reported,
    TargetCompleteness,
)

START = 299_990
"""The first time, shortly before new intervals of the timeline."""
NAMES = ["a", "b", "c", "d/é", "e"]
names = st.sampled_from(NAMES)
ordinary_times = st.integers(START - 300, START + 300)
ends_of_range = st.sampled_from([2**53 - 1, -(2**53) + 1, -(2**53) + 5])
times = st.one_of(ordinary_times, ordinary_times, ordinary_times, ends_of_range)
max_event_times = st.dictionaries(names, ordinary_times, max_size=4)
marks: st.SearchStrategy[dict[str, int]] = st.one_of(
    st.just({}), st.just({}), st.dictionaries(names, ordinary_times, max_size=3)
)
delays = st.dictionaries(
    names,
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 9)), max_size=5).map(tuple),
    max_size=3,
)
batches = st.integers(0, 4)
queries = st.sampled_from(["p", "q"])
runs = st.builds(Run, queries, st.sampled_from(["c1", "c1", "c1", "c2"]), st.sampled_from("rstu"))
pinned_watermarks = st.one_of(st.none(), st.none(), st.builds(PinnedWatermark, st.one_of(st.none(), ordinary_times)))
lags = st.sampled_from([0, 5, 60])
targets = st.builds(
    TargetCompleteness,
    st.sampled_from([0.5, 0.9]),
    st.sampled_from([5, 60]),
    st.sampled_from([0, 5]),
    st.sampled_from([None, 60, 100]),
    st.sampled_from([1, 3, 10]),
)
flat_policies = st.one_of(st.builds(LimitingLag, lags), st.just(Reported()), targets)
policies = st.one_of(
    flat_policies,
    st.builds(LimitingLagAndDelay, lags, st.sampled_from([1, 5, 40, 333])),
    st.builds(LimitingLagAndLull, lags, st.sampled_from([0, 5, 30])),
    st.builds(LimitingTimestampAndWallClockLag, lags, st.sampled_from([0, 50, 200])),
)
overrides = st.lists(st.builds(Override, st.sampled_from(["a*", "*b", "d/*", "c", "*"]), policies), max_size=2)
throttles = st.one_of(
    st.just(NoThrottle()),
    st.sampled_from([FrameThrottle(20, 10, 3), FrameThrottle(50)]),
    st.builds(MinStepThrottle, st.sampled_from([1, 7, 50])),
)
FRAMES = Frames(20, correction_delay_ms=30)
frames_declared = st.sampled_from(
    [None, FRAMES, FRAMES, FRAMES, FRAMES, Frames(333, offset_ms=7, correction_delay_ms=0)]
)


def _config(policy: Policy, throttle: Throttle, arrival_target: float | None, **named: Any) -> JobConfig:
    """Return a configuration, with a target only if it has the frames that this needs."""
    return JobConfig(policy, throttle, arrival_target=arrival_target if named["frames"] else None, **named)


configs = st.builds(
    _config,
    policies,
    throttles,
    idle_timeout_ms=st.sampled_from([None, 1, 7, 40]),
    max_retention_ms=st.sampled_from([None, None, 1, 8, 40]),
    max_skew_ms=st.sampled_from([None, None, 1, 20, 100]),
    arrival_target=st.sampled_from([None, 0.5, 0.9]),
    max_arrival_delay_ms=st.sampled_from([15, 60, 250]),
    query_timeout_ms=st.sampled_from([None, None, 10, 50]),
    max_batch_hold_ms=st.sampled_from([None, None, 10, 50]),
    max_future_skew_ms=st.sampled_from([None, 0, 100]),
    overrides=overrides.map(tuple),
    expected_queries=st.sampled_from([(), (), ("p",), ("z", "p")]),
    frames=frames_declared,
    delay_half_life_ms=st.sampled_from([8, 100, 4000]),
)
waits = st.sampled_from([0, 0, 0, 3, 20])
counts = st.builds(RowCounts, *[st.integers(0, 3)] * 5)
rows_of_hours = st.builds(
    lambda hour, on_time, updated, late: (hour, on_time + updated + late, updated, late),
    st.integers(-2, 2),
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(0, 2),
)
rows_of_frames = st.none() | st.lists(
    st.builds(
        lambda time, on_time, updated, late: (time, on_time + updated + late, updated, late),
        ordinary_times,
        st.integers(0, 3),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    max_size=4,
).map(tuple)
outputs = st.none() | st.tuples(st.none() | ordinary_times)
versions = st.sampled_from(["0", "7", "9007199254740993", "9223372036854775807"])
table_versions: st.SearchStrategy[list[TableVersion]] = st.one_of(
    st.just([]),
    st.dictionaries(st.sampled_from(["t", "s", "é"]), versions, max_size=2).map(
        lambda told: [TableVersion(*each) for each in told.items()]
    ),
    versions.map(lambda version: [TableVersion(f"t-{number}", version) for number in range(19)]),
)
tokens = st.one_of(st.none(), st.none(), st.builds(TokenClaim, st.integers(0, 2), st.one_of(st.none(), ordinary_times)))
some_names = st.lists(names, unique=True, min_size=1, max_size=3)
caught_up_names = st.none() | st.none() | st.lists(names, unique=True, max_size=3)
offsets = st.none() | st.sampled_from([["a/0"], ["a/0", "a/b"], ["a/b", "b/0"], []]).flatmap(
    lambda partitions: st.builds(
        BatchOffsets,
        st.just(partitions),
        *(
            st.lists(values, min_size=len(partitions), max_size=len(partitions))
            for values in (
                *(st.none() | st.integers(0, 9), st.integers(3, 12)),
                *(st.none() | st.integers(0, 20), st.none() | st.integers(0, 9)),
            )
        ),
        st.lists(st.sampled_from(partitions), unique=True) if partitions else st.just([]),
        st.none() | st.integers(0, 3),
        st.sampled_from([[], ["topic"], ["topic"], ["topic", "partition"], ["partition"]]),
    )
)
owners = st.sampled_from(["", "p", "q"])
seldom = st.integers(0, 4).map(lambda drawn: drawn == 0)
