"""The limit on skew in jobs of many substreams: the functions in Redis find the median by rank in up to three sets."""

import random
from collections.abc import Iterable

import pytest

from tests.store.twin import Twin
from tests.support.driver import Driver
from tidegate.domain.config import JobConfig, Override
from tidegate.domain.limits import is_skewed, passed_substreams, skew_bound
from tidegate.domain.policies import LimitingLag, LimitingLagAndLull, LimitingTimestampAndWallClockLag
from tidegate.domain.values import DIRECT
from tidegate.domain.views import explain, status, substreams

START, LIMIT_MS = 1_700_000_000_000, 20_000
CLOCKS = (
    Override("clock-*", LimitingTimestampAndWallClockLag(1000, 30_000)),
    Override("lull-*", LimitingLagAndLull(1000, 5_000)),
)


def config(overrides: Iterable[Override]) -> JobConfig:
    return JobConfig(
        LimitingLag(1000),
        overrides=tuple(overrides),
        max_skew_ms=LIMIT_MS,
        idle_timeout_ms=60_000,
        max_future_skew_ms=None,
    )


def agree(twin: Twin) -> None:
    """Compare the reads of a job that show skew. An explanation sweeps the job before."""
    job, store = twin.machine, twin.store
    twin.both(lambda: job.sweep(now_ms=twin.now), store.sweep(twin.job, now_ms=twin.now))
    held = twin.driver(store.reads.held(twin.job, 4, now_ms=twin.now))
    assert explain(held.job(job.config), twin.now, 4) == explain(job, twin.now, 4)
    assert held.passed == passed_substreams(job)
    assert twin.driver(store.reads.status(twin.job, now_ms=twin.now)).summary.skewed == status(job).skewed
    table = twin.driver(store.reads.substreams(twin.job, [*job.substreams], now_ms=twin.now))
    shown = {(row.query, row.substream): (row.state, row.since_ms) for row in table.rows}
    assert shown == {(row.query, row.substream): (row.state, row.since_ms) for row in substreams(job, twin.now)}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("overrides", [(), CLOCKS], ids=["flat", "with clocks"])
def test_both_machines_set_the_same_substreams_apart(
    driver: Driver, overrides: tuple[Override, ...], seed: int
) -> None:
    drawn = random.Random(seed)  # noqa: S311 - the same job in each run
    twin = Twin(driver, config(overrides), START, None)
    kinds = ["flat", "clock", "lull"] if overrides else ["flat"]
    names = [f"{drawn.choice(kinds)}-{number}" for number in range(drawn.choice((2, 3, 40, 161)))]
    seen = 0
    for step in range(25):
        twin.now += drawn.choice((0, 300, 2000, 9000))
        some = drawn.sample(names, drawn.randint(1, len(names)))
        times = {name: twin.now - drawn.choice((0, 500, 9000, 19_999, 25_000, 60_000, -70_000)) for name in some}
        cap = {name: time - 2000 for name, time in times.items()} if drawn.random() < 0.3 else {}
        twin.both(
            lambda: twin.machine.report(times, min_event_times=cap, now_ms=twin.now),  # noqa: B023 - called at once
            twin.store.report(twin.job, times, min_event_times=cap, now_ms=twin.now),
        )
        if step == 12:
            twin.both(
                lambda: twin.machine.declare(DIRECT, ["late"], now_ms=twin.now),
                twin.store.actions.declare(twin.job, DIRECT, ["late"], now_ms=twin.now),
            )
        if step == 14:
            twin.both(
                lambda: twin.machine.evict(DIRECT, ["late"], now_ms=twin.now),
                twin.store.actions.evict(twin.job, DIRECT, ["late"], now_ms=twin.now),
            )
        if drawn.random() < 0.5:
            agree(twin)
        bound = skew_bound(twin.machine)
        skewed = sum(is_skewed(substream, bound) for substream in twin.machine.substreams.values())
        assert skewed <= (sum(s.counts for s in twin.machine.substreams.values()) - 1) // 2
        seen += skewed
    assert seen > 0 or len(names) < 40
