"""One more limit never lowers the watermark: limits exist to let it pass substreams."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.machine import JobMachine
from tidegate.domain.config import FrameThrottle, JobConfig, MinStepThrottle, NoThrottle, Override, Throttle
from tidegate.domain.policies import (
    LimitingLag,
    LimitingLagAndDelay,
    LimitingLagAndLull,
    LimitingTimestampAndWallClockLag,
)
from tidegate.domain.values import DIRECT

START = 1000
NAMES = ["a", "b", "c"]
MIN_STEP = 12
policies = st.sampled_from(
    [LimitingLag(5), LimitingLagAndDelay(5, 48), LimitingLagAndLull(5, 20), LimitingTimestampAndWallClockLag(5, 60)]
)
limits = {
    "idle_timeout_ms": st.sampled_from([15, 40]),
    "max_retention_ms": st.sampled_from([64, 160]),
    "max_skew_ms": st.sampled_from([1, 10, 60]),
}
steps = st.lists(st.tuples(st.sampled_from([*NAMES, ""]), st.integers(-60, 20), st.integers(0, 40)), max_size=40)
"""A substream ("": a sweep), the distance of its event time from the clock, and the time since the previous step."""


@pytest.mark.parametrize("throttle", [NoThrottle(), FrameThrottle(10, 10), MinStepThrottle(MIN_STEP)])
@given(st.data(), policies, policies, st.sampled_from([*limits]), st.booleans(), steps)
def test_one_more_limit_never_lowers_the_watermark(
    throttle: Throttle,
    data: st.DataObject,
    policy: LimitingLag,
    other: LimitingLag,
    limit: str,
    has_others: bool,
    steps: list[tuple[str, int, int]],
) -> None:
    """At each moment, the watermark is at least as high as without the limit.

    Under a minimum step, its steps begin elsewhere, so it may be lower by less than a step. Beside a limit on skew, a
    substream that becomes idle lowers the median.
    """
    config = JobConfig(policy, throttle, overrides=(Override("a", other),))
    if has_others:
        others: dict[str, Any] = {
            name: data.draw(limits[name]) for name in limits if name not in (limit, "max_skew_ms")
        }
        config = replace(config, **others)
    one: dict[str, Any] = {limit: data.draw(limits[limit])}
    more = replace(config, **one)
    without, with_limit = JobMachine(config, START), JobMachine(more, START)
    now_ms = START
    for job in (without, with_limit):
        job.declare(DIRECT, NAMES, START)
    slack = MIN_STEP - 1 if isinstance(throttle, MinStepThrottle) else 0
    for name, distance, pause in steps:
        now_ms += pause
        for job in (without, with_limit):
            job.sweep(now_ms)
            if name:
                job.report({name: now_ms + distance}, now_ms)
        lower, higher = without.watermark_state().watermark, with_limit.watermark_state().watermark
        assert lower is None or (higher is not None and higher >= lower - slack)


def test_the_watermark_follows_the_clock_while_all_substreams_are_idle() -> None:
    """The policy promises a distance from the clock, and an idle timeout must not take it away."""
    for idle_timeout_ms in (None, 100):
        job = JobMachine(JobConfig(LimitingLagAndLull(0, 50), idle_timeout_ms=idle_timeout_ms), 0)
        job.report({"a": 10, "b": 20}, 0)
        job.sweep(120)
        assert job.sweep(1050).watermark == (1010 if idle_timeout_ms is None else 1020)
        job.report({"a": 600}, 1050)
        assert job.sweep(1060).watermark == (1010 if idle_timeout_ms is None else 1020)
