"""The scenes of docs/explanation, one for each figure. Times are small numbers; read them as minutes."""

from dataclasses import replace

from docs.tools.drawing.scene import Act, Scene
from tidegate.domain import batches, commands
from tidegate.domain.batches import PartitionReport
from tidegate.domain.config import FrameThrottle, JobConfig, MinStepThrottle
from tidegate.domain.job import JobState, Run
from tidegate.domain.policies import (
    LimitingLag,
    LimitingLagAndDelay,
    LimitingLagAndLull,
    LimitingTimestampAndWallClockLag,
    Reported,
)


def steady(begin: int, end: int, behind: int = 5, every: int = 3) -> list[tuple[int, int]]:
    """Return an ordered stream: an event every ``every`` units, reported ``behind`` units after its event time."""
    return [(at, at - behind) for at in range(begin, end, every)]


DISORDERED = [
    (3, 10),
    (6, 14),
    (9, 7),
    (12, 22),
    (15, 19),
    (18, 28),
    (21, 12),
    (24, 31),
    (27, 38),
    (30, 30),
    (33, 42),
    (36, 45),
    (39, 37),
    (42, 50),
    (45, 47),
    (48, 55),
]
STALLED = [(3, 10), (6, 16), (9, 14), (12, 24), (15, 30), (52, 33), (56, 40), (60, 46)]

BUSY = Run("left", "checkpoint", "run")
STUCK = Run("right", "checkpoint", "run")


def batch(run: Run, number: int, times: dict[str, int]) -> Act:
    def act(job: JobState, now: int) -> None:
        batches.begin(job, run, number, now)
        batches.stage(job, run, number, PartitionReport(0, times), now)
        batches.commit(job, run, number, None, now)

    return act


def begin(run: Run, number: int) -> Act:
    return lambda job, now: batches.begin(job, run, number, now)


def commit(run: Run, number: int, times: dict[str, int]) -> Act:
    def act(job: JobState, now: int) -> None:
        batches.stage(job, run, number, PartitionReport(0, times), now)
        batches.commit(job, run, number, None, now)

    return act


def ready_made(mark: int) -> Act:
    return lambda job, now: commands.report(job, {}, now, watermarks={"a": mark})


def both(*acts: Act) -> Act:
    def act(job: JobState, now: int) -> None:
        for one in acts:
            one(job, now)

    return act


OVERLAPPING: dict[int, Act] = {
    2: both(batch(BUSY, 0, {"a": 10}), batch(STUCK, 0, {"b": 12})),
    10: batch(BUSY, 1, {"a": 22}),
    12: begin(STUCK, 1),
    18: batch(BUSY, 2, {"a": 32}),
    26: batch(BUSY, 3, {"a": 42}),
    34: batch(BUSY, 4, {"a": 52}),
}

SCENES: dict[str, Scene] = {
    "limiting_lag": Scene(
        "limiting_lag, lag 10", JobConfig(LimitingLag(10)), {"a": DISORDERED}, 52, marks=[(21, "more than 10 behind")]
    ),
    "limiting_lag_and_delay": Scene(
        "limiting_lag_and_delay, lag 12, max_delay 20",
        JobConfig(LimitingLagAndDelay(12, 20)),
        {"a": STALLED},
        64,
        marks=[(35, "max event time of 20 ago")],
    ),
    "limiting_lag_and_lull": Scene(
        "limiting_lag_and_lull, lag 12, max_lull 15",
        JobConfig(LimitingLagAndLull(12, 15)),
        {"a": STALLED},
        64,
        marks=[(30, "lull begins")],
    ),
    "lull_unseen": Scene(
        "limiting_lag_and_lull with a substream that never reports",
        JobConfig(LimitingLagAndLull(5, 10)),
        {"a": steady(3, 50)},
        54,
        declared=["a", "never"],
        marks=[(3, "no watermark: held by 'never'")],
    ),
    "wall_clock": Scene(
        "limiting_timestamp_and_wall_clock_lag, timestamp_lag 5, wall_clock_lag 20",
        JobConfig(LimitingTimestampAndWallClockLag(5, 20)),
        {"a": [(4, 1), (7, 5), (10, 9), (13, 11), (44, 18), (47, 42), (50, 46), (53, 50)]},
        56,
        marks=[(31, "reaches max event time")],
    ),
    "reported": Scene(
        "reported",
        JobConfig(Reported()),
        {"a": steady(3, 40)},
        44,
        acts={at: ready_made(mark) for at, mark in ((8, 2), (16, 10), (20, 7), (28, 21), (40, 33))},
        marks=[(20, "lower: ignored")],
    ),
    "throttles": Scene(
        "limiting_lag 5, no throttle",
        JobConfig(LimitingLag(5)),
        {"a": steady(3, 56, every=2)},
        58,
    ),
    "idle_timeout": Scene(
        "limiting_lag 5, idle_timeout 12",
        JobConfig(LimitingLag(5), idle_timeout_ms=12),
        {"a": steady(3, 60), "b": [*steady(4, 20, behind=9), (44, 16), *steady(48, 60, behind=7)]},
        62,
        marks=[(31, "b is idle"), (44, "b is active")],
    ),
    "max_retention": Scene(
        "limiting_lag 0, max_retention 16",
        JobConfig(LimitingLag(0), max_retention_ms=16),
        {"fast": steady(3, 60), "slow": [(at, at // 2 - 2) for at in range(4, 60, 4)]},
        62,
        marks=[(40, "retention passes slow")],
    ),
    "max_skew": Scene(
        "limiting_lag 0, max_skew 12",
        JobConfig(LimitingLag(0), max_skew_ms=12),
        {
            "a": steady(3, 60),
            "b": steady(4, 60, behind=7),
            "c": [*[(at, at // 2 - 1) for at in range(5, 41, 4)], (44, 36), *steady(47, 60, behind=8)],
        },
        62,
        marks=[(37, "c is skewed"), (44, "c counts again")],
    ),
    "open_batch": Scene(
        "two queries, an open batch",
        JobConfig(LimitingLag(0)),
        {},
        44,
        acts={**OVERLAPPING, 38: commit(STUCK, 1, {"b": 50})},
        marks=[(12, "right begins"), (38, "right commits")],
    ),
    "max_batch_hold": Scene(
        "two queries, query_timeout 20, max_batch_hold 30",
        JobConfig(LimitingLag(0), max_batch_hold_ms=30, query_timeout_ms=20),
        {},
        52,
        acts=OVERLAPPING,
        marks=[(12, "right begins and dies"), (32, "its substreams are idle"), (42, "W passes its batch")],
    ),
    "max_future_skew": Scene(
        "limiting_lag 5, max_future_skew 10",
        JobConfig(LimitingLag(5), max_future_skew_ms=10),
        {"a": sorted([*steady(3, 50), (20, 55)])},
        54,
        marks=[(20, "a broken clock")],
    ),
    "hold": Scene(
        "a hold at 15, and the end of input",
        JobConfig(LimitingLag(5), FrameThrottle(10, 10)),
        {"a": steady(3, 48)},
        54,
        acts={
            16: lambda job, now: commands.hold(job, "repair", 15, None, now),
            32: lambda job, now: commands.release(job, "repair", now),
            52: lambda job, now: commands.complete(job, now),
        },
        marks=[(16, "held"), (32, "released"), (52, "complete")],
    ),
}
WINDOWED = JobConfig(LimitingLag(5), FrameThrottle(10, 10), idle_timeout_ms=14)

SCENES |= {
    "windows": Scene(
        "limiting_lag 5, frames of 10, windows of 10",
        WINDOWED,
        {"a": sorted([*steady(3, 50), (25, 15), (35, 13), (41, 31)])},
        60,
        marks=[(25, "on time: its window is open"), (35, "late: its window is closed")],
        window_size=10,
        windows_end=50,
    ),
    "windows_held": Scene(
        "limiting_lag 5, frames of 10, idle_timeout 14, windows of 10",
        WINDOWED,
        {"fast": steady(3, 60), "slow": [*steady(4, 26, behind=9), (50, 26), *steady(53, 60, behind=7)]},
        74,
        marks=[(39, "slow is idle"), (50, "slow is active")],
        window_size=10,
        windows_end=60,
    ),
}

THROTTLED = [
    SCENES["throttles"],
    replace(SCENES["throttles"], title="frame of 10", config=JobConfig(LimitingLag(5), FrameThrottle(10, 10))),
    replace(SCENES["throttles"], title="min_step 15", config=JobConfig(LimitingLag(5), MinStepThrottle(15))),
]
