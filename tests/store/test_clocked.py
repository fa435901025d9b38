"""Policies that follow the clock, in long runs. The Lua functions compute what the domain evaluates step by step.

``test_twin.py`` covers all commands in short runs. Here, a job gets hundreds of reports with falling event times, so
that caps apply repeatedly. The clock sometimes jumps beyond the histories of the policies. Substreams come and go.
"""

import random
from collections.abc import Callable

import pytest

from tests.store.twin import Twin
from tests.support.driver import Driver, command_of
from tidegate.domain.config import JobConfig, Override
from tidegate.domain.policies import (
    LimitingLag,
    LimitingLagAndDelay,
    LimitingLagAndLull,
    LimitingTimestampAndWallClockLag,
    Reported,
)
from tidegate.domain.values import DIRECT

POLICIES = (
    LimitingLagAndDelay(40, 3),
    LimitingLagAndDelay(7, 50),
    LimitingLagAndDelay(500, 16),
    LimitingLagAndLull(20, 5),
    LimitingLagAndLull(0, 0),
    LimitingTimestampAndWallClockLag(10, 60),
    LimitingTimestampAndWallClockLag(30, 0),
    LimitingLag(25),
    Reported(),
)
NAMES = ["a", "b", "c", "x1", "x2"]


def any_config(chance: random.Random) -> JobConfig:
    overrides = [Override(pattern, chance.choice(POLICIES)) for pattern in ("x*", "a") if chance.random() < 0.6]
    return JobConfig(
        chance.choice(POLICIES),
        idle_timeout_ms=chance.choice([None, 30, 200]),
        max_retention_ms=chance.choice([None, None, 64]),
        max_skew_ms=chance.choice([None, None, 40]),
        overrides=tuple(overrides),
    )


def step(twin: Twin, chance: random.Random, falling: list[int], sweeps: float) -> None:
    """Execute a random command; ``sweeps`` is the probability of a sweep before it. Rare sweeps let caps accumulate."""
    machine, store, job, now = twin.machine, twin.store, twin.job, twin.now
    if chance.random() < sweeps:
        twin.both(lambda: machine.sweep(now), store.sweep(job, now_ms=now))
    what = chance.random()
    if what < 0.8:
        # Event times fall from report to report, so each cap is below all earlier ones.
        falling[0] = now if chance.random() < 0.03 else falling[0] - chance.randint(0, 3)
        max_event_times = {
            name: falling[0] + chance.choice([0, 0, 5]) for name in chance.sample(NAMES, chance.choice([1, 1, 2]))
        }
        marks = {name: now - chance.randint(0, 80) for name in chance.sample(NAMES, 1) if chance.random() < 0.3}
        marks = {name: mark for name, mark in marks.items() if name in max_event_times}
        twin.both(
            lambda: machine.report(max_event_times, now, watermarks=marks),
            store.report(job, max_event_times, watermarks=marks, now_ms=now),
        )
    elif what < 0.88:
        names = chance.sample(NAMES, 1)
        act = chance.choice(["declare", "evict", "idle", "done"] if chance.random() < 0.2 else ["declare", "idle"])
        twin.both(
            lambda: getattr(machine, act)(DIRECT, names, now_ms=now),
            command_of(store, act)(job, DIRECT, names, now_ms=now),
        )
    elif what < 0.91:
        marks = {chance.choice(NAMES): now - chance.randint(0, 200)}
        twin.both(lambda: machine.restore(DIRECT, marks, now), store.actions.restore(job, DIRECT, marks, now_ms=now))
    elif what < 0.94:
        config = any_config(chance)
        twin.change(config)
    else:
        names = chance.sample(NAMES, 1)
        seen = {name: now - chance.randint(0, 100) for name in names}
        twin.both(
            lambda: machine.declare(DIRECT, names, now, seen),
            store.actions.declare(job, DIRECT, names, seen, now_ms=now),
        )
    twin.now += chance.choice([0, 0, 0, 1, 1, 2, 7, chance.choice([1, 20, 90, 1500])])


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.fuzz) for seed in range(2, 10))])
def test_computed_watermarks_equal_evaluated_ones(make_driver: Callable[[], Driver], seed: int) -> None:
    """The watermark of a substream must not depend on the number of evaluations."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    driver = make_driver()
    for _ in range(2):
        twin = Twin(driver, any_config(chance), 10_000, chance.choice([None, 1000]))
        falling, sweeps = [10_000], chance.choice([0.25, 0.002])
        for _ in range(250):
            step(twin, chance, falling, sweeps)
            twin.compare_tables()
    driver.close()
