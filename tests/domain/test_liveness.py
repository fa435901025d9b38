"""A job that is swept only when a change is due reaches the watermark of a job that is swept continuously."""

import random
from collections.abc import Callable

import pytest

from tests.support.machine import JobMachine
from tidegate.domain.batches import PartitionReport
from tidegate.domain.config import FrameThrottle, JobConfig, MinStepThrottle, NoThrottle, Throttle
from tidegate.domain.errors import DomainError
from tidegate.domain.job import Run
from tidegate.domain.policies import (
    LimitingLag,
    LimitingLagAndDelay,
    LimitingLagAndLull,
    LimitingTimestampAndWallClockLag,
)
from tidegate.domain.values import DIRECT, above

NAMES = ["a", "b", "c"]
RUN = Run("q", "checkpoint", "run")
LONG_ENOUGH = 1200
SLOT = 160 // 16 + 25
"""Tolerance in milliseconds: a slot of the retention history (160 // 16) and a minimum step (25).

The slots start at the first evaluation, which may differ between the two jobs.
"""

Command = Callable[[JobMachine, int], object]


THROTTLES: list[Throttle] = [NoThrottle(), FrameThrottle(20, 20), MinStepThrottle(25)]


def any_config(chance: random.Random) -> JobConfig:
    return JobConfig(
        chance.choice(
            [
                LimitingLag(20),
                LimitingLagAndDelay(60, 48),
                LimitingLagAndLull(60, 30),
                LimitingTimestampAndWallClockLag(60, 90),
            ]
        ),
        chance.choice(THROTTLES),
        idle_timeout_ms=chance.choice([None, 50]),
        max_retention_ms=chance.choice([None, 160]),
        max_skew_ms=chance.choice([None, 40]),
        query_timeout_ms=chance.choice([None, 120]),
        max_batch_hold_ms=chance.choice([None, 100]),
        expected_queries=chance.choice([(), ("q",)]),
    )


def any_command(chance: random.Random, now: int) -> Command:
    name = chance.choice(NAMES)
    time = now - chance.randint(-10, 80)
    config = any_config(chance)
    at_most = now - chance.randint(0, 200)
    lasts = chance.choice([None, 30])
    batch = chance.randint(0, 3)
    commands: list[Command] = [
        lambda job, at: job.report({name: time}, at),
        lambda job, at: job.report({name: time}, at),
        lambda job, at: job.report({name: time}, at),
        lambda job, at: job.declare(DIRECT, [name], at, {name: time}),
        lambda job, at: job.declare(DIRECT, [name], at),
        lambda job, at: job.restore(DIRECT, {name: time}, at),
        lambda job, at: job.hold("h", at_most, lasts, at),
        lambda job, at: job.release("h", at),
        lambda job, at: job.configure(config, at),
        lambda job, at: job.complete(at),
        lambda job, at: job.reopen(at),
        lambda job, at: job.idle(DIRECT, [name], at),
        lambda job, at: job.evict(DIRECT, [name], at),
        lambda job, at: job.begin(RUN, batch, at),
        lambda job, at: job.stage(RUN, batch, PartitionReport(0, {name: time}), at),
        lambda job, at: job.commit(RUN, batch, None, at),
        lambda job, at: job.heartbeat(RUN, at, at),
    ]
    return chance.choice(commands)


def do(job: JobMachine, command: Command, now: int) -> str:
    try:
        command(job, now)
    except DomainError as refused:
        return refused.code
    return ""


@pytest.mark.parametrize("seed", range(60))
def test_sweeps_at_due_times_suffice(seed: int) -> None:
    """A job without a due sweep would hold its watermark forever."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    config = any_config(chance)
    watched, left_alone = JobMachine(config, 1000), JobMachine(config, 1000)
    now = 1000
    for _ in range(25):
        command = any_command(chance, now)
        assert do(left_alone, command, now) == do(watched, command, now)
        for _ in range(chance.choice([0, 1, 7, 60])):
            now += 1
            watched.sweep(now)
            sweep_if_due(left_alone, now)
    for _ in range(LONG_ENOUGH):
        now += 1
        watched.sweep(now)
        sweep_if_due(left_alone, now)
    there = watched.watermark_state()
    for _ in range(SLOT):
        now += 1
        sweep_if_due(left_alone, now)
    here = left_alone.watermark_state()
    assert not above(there.coalesced_watermark, here.coalesced_watermark)
    assert not above(there.watermark, here.watermark)
    watched.sweep(now)
    assert [row.state for row in left_alone.substream_table(now)] == [row.state for row in watched.substream_table(now)]


def test_retention_passes_the_slowest_after_an_eviction() -> None:
    """The eviction empties the history of the max watermark. A sweep must record the value that is left."""
    job = JobMachine(JobConfig(LimitingLag(0), max_retention_ms=160), 1000)
    job.declare(DIRECT, ["slow"], 1000)
    job.report({"fast": 900, "other": 800}, 1000)
    job.evict(DIRECT, ["fast"], 1001)
    for now in range(1002, 1400):
        sweep_if_due(job, now)
    assert (job.coalesced_watermark, job.next_change_ms()) == (800, None)


def sweep_if_due(job: JobMachine, now: int) -> None:
    due_ms = job.next_change_ms()
    if due_ms is not None and due_ms + job.unattended_ms <= now:
        job.sweep(now)
