"""Learned arrival delays over many batches: the functions in Redis learn and pass the same as the model."""

import random
from collections import Counter

import pytest

from tests.store.twin import Twin
from tests.support.driver import Driver
from tidegate.domain.batches import BeginOptions, PartitionReport
from tidegate.domain.calendar import Frames
from tidegate.domain.completeness import BatchAccounting, RowCounts
from tidegate.domain.config import FrameThrottle, JobConfig, NoThrottle, Override
from tidegate.domain.job import Run
from tidegate.domain.limits import arrival_delay, passed_substreams, proven_until
from tidegate.domain.policies import LimitingLag, LimitingLagAndLull
from tidegate.domain.views import explain, status
from tidegate.domain.what_if import what_if_arrivals, what_if_skew

START, HOUR_MS, DAY_MS = 1_700_000_000_000, 3_600_000, 86_400_000
STEP_MS = HOUR_MS // 2
RUNS = (Run("p", "c1", "r"), Run("q", "c2", "s"))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("frames", "highest_ms"),
    [(Frames("hour"), 8 * HOUR_MS), (Frames("day", "America/New_York"), 3 * DAY_MS), (Frames(7 * 60_000), 2 * HOUR_MS)],
    ids=["hours", "days", "minutes"],
)
def test_both_machines_learn_the_same(driver: Driver, frames: Frames, highest_ms: int, seed: int) -> None:
    drawn = random.Random(seed)  # noqa: S311 - the same job in each run
    config = JobConfig(
        LimitingLag(30 * 60_000),
        FrameThrottle(HOUR_MS) if drawn.random() < 0.5 else NoThrottle(),
        overrides=(Override("lull-*", LimitingLagAndLull(60_000, HOUR_MS)),),
        frames=frames,
        arrival_target=drawn.choice((None, 0.9, 0.99)),
        max_arrival_delay_ms=highest_ms,
        max_skew_ms=drawn.choice((None, 6 * HOUR_MS)),
        max_future_skew_ms=DAY_MS,
        delay_half_life_ms=drawn.choice((6 * HOUR_MS, 3 * DAY_MS)),
    )
    twin = Twin(driver, config, START, None)
    job, store = twin.machine, twin.store
    delays = set()
    for number in range(300):
        twin.now += STEP_MS
        for run in RUNS[: 1 + (number % 3 == 0)]:
            names = [f"{kind}-{each}" for kind in ("flat", "lull") for each in range(3) if drawn.random() < 0.6]
            names = [name for name in names if name != "flat-2" or number % 100 < 50]
            ages = [drawn.expovariate(1 / HOUR_MS) * drawn.choice((0.1, 1, 3)) for _ in range(drawn.randrange(1, 9))]
            times = [int(twin.now - age) for age in ages] + [twin.now + 3 * DAY_MS] * (drawn.random() < 0.1)
            options = BeginOptions(input_age_ms=drawn.choice((0, 0, 60_000, None)))
            twin.both(
                lambda: job.begin(run, number, options=options, now_ms=twin.now),  # noqa: B023 - called at once
                store.begin(twin.job, run, number, options=options, now_ms=twin.now),
            )
            report = PartitionReport(0, {name: max(times[:1]) - 1000 * len(name) for name in names})
            twin.both(
                lambda: job.stage(run, number, report, now_ms=twin.now),  # noqa: B023 - called at once
                store.stage(twin.job, run, number, report, now_ms=twin.now),
            )
            by_frame = tuple((time, count, 0, 0) for time, count in Counter(times).items())
            named = names or ["flat-0"]
            counts = tuple(RowCounts(len(times), 0, 0, 0, 0) for _ in named)
            account = BatchAccounting(tuple(named), counts, frames=by_frame if drawn.random() < 0.95 else None)
            twin.both(
                lambda: job.commit(run, number, account, now_ms=twin.now),  # noqa: B023 - called at once
                store.commit(twin.job, run, number, account, now_ms=twin.now),
            )
        if number % 10 == 0:
            twin.both(lambda: job.sweep(now_ms=twin.now), store.sweep(twin.job, now_ms=twin.now))
            held = driver(store.reads.held(twin.job, 4, now_ms=twin.now))
            assert held.passed == passed_substreams(job)
            assert explain(held.job(job.config), twin.now, 4) == explain(job, twin.now, 4)
            assert driver(store.reads.status(twin.job, now_ms=twin.now)).summary.arrivals == status(job).arrivals
            limit_ms = drawn.choice((1, 2, 8)) * HOUR_MS
            asked = driver(
                store.reads.held(twin.job, 1, now_ms=twin.now, what_if_skew_ms=limit_ms, what_if_target=True)
            )
            assert asked.what_if_skew(limit_ms) == what_if_skew(job, limit_ms)
            for target in (0.5, 0.99, 0.9999):
                told = what_if_arrivals(*asked.arrivals, config, target, job.frames.completions)
                assert (
                    told == what_if_arrivals(job.arrivals, proven_until(job), config, target, job.frames.completions)
                    or not job.arrivals.rows
                )
        found = arrival_delay(job)
        delays.add(found and (found.is_learned, found.delay_ms))
    twin.compare_frames()
    if config.arrival_target is not None:
        assert len(delays) > 1, "the delay has moved"
        assert job.limits["arrival_target"] > 5
