"""The sweeper: it applies timeouts, and skips jobs that time cannot change."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from redis.exceptions import RedisError

from tests.support.driver import records, with_store
from tests.support.store import JobStore
from tidegate.domain.batches import PartitionReport
from tidegate.domain.config import JobConfig
from tidegate.domain.errors import ClockJumped
from tidegate.domain.job import Run
from tidegate.domain.policies import (
    LimitingLag,
    LimitingLagAndDelay,
    LimitingLagAndLull,
    LimitingTimestampAndWallClockLag,
)
from tidegate.runtime.background import Sweeper
from tidegate.runtime.metrics import Metrics
from tidegate.store import jobs
from tidegate.store.clock import ClockGuard
from tidegate.store.connection import connect
from tidegate.store.embedded import EmbeddedValkey
from tidegate.store.jobs import DUE_AT_ONCE
from tidegate.store.keyspace import SWEEPS, job_key


async def until(store: JobStore, reached: Callable[[], Awaitable[bool]]) -> None:
    """Sweep on two replicas at once until a condition holds; fail after 2000 rounds."""
    sweepers = Sweeper(store, 50, Metrics()), Sweeper(store, 50, Metrics())
    for _ in range(2000):
        await asyncio.gather(*(sweeper.sweep() for sweeper in sweepers))
        if await reached():
            return
        await asyncio.sleep(0.01)
    pytest.fail("the condition did not hold after 2000 sweeps")


class DeletedInBetween(JobStore):
    """A store in which one job is deleted right after the sweeper has taken it."""

    victim = ""

    async def due(self, by_ms: Sequence[int | RedisError]) -> list[list[str] | RedisError]:
        found = await super().due(by_ms)
        if any(isinstance(jobs, list) and self.victim in jobs for jobs in found):
            await self.delete(self.victim)
        return found


def test_a_job_deleted_during_a_sweep_does_not_stop_the_sweep(valkey: EmbeddedValkey, job_name: str) -> None:
    """If the sweep failed, substreams of other jobs would not become idle."""

    async def sweep() -> list[str]:
        redis = connect(valkey.url)
        store = DeletedInBetween(redis)
        store.victim = f"{job_name}.1"
        for name in (store.victim, f"{job_name}.2"):
            await store.configure(name, JobConfig(LimitingLag(0), idle_timeout_ms=1), {}, None)
            await store.report(name, {"a": 5})
        await asyncio.sleep(0.05)
        await Sweeper(store, 50, Metrics()).sweep()
        rows = (await store.reads.substreams(f"{job_name}.2")).rows
        await redis.aclose()
        return [row.state for row in rows]

    assert asyncio.run(sweep()) == ["idle"]


async def by_the_clock(store: JobStore, job: str) -> None:
    """Create a job whose watermark moves with each sweep."""
    await store.configure(job, JobConfig(LimitingTimestampAndWallClockLag(1000, 10_000)), {}, None)
    await store.report(job, {"a": 5})


def test_replicas_take_different_jobs(valkey: EmbeddedValkey, job_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas add capacity. The jobs of a replica that has stopped before it swept them are taken by another."""
    names = [f"{job_name}.{number}" for number in range(DUE_AT_ONCE + 5)]

    async def run(store: JobStore) -> None:
        for name in names:
            await by_the_clock(store, name)
        await asyncio.sleep(0.01)

        async def taken() -> set[str]:
            [found] = await store.due(await store.read_clock())
            assert not isinstance(found, RedisError) and len(found) <= DUE_AT_ONCE
            return {job for job in found if job in names}

        monkeypatch.setattr(jobs, "LEASE_MS", 60_000)
        first, second = await taken(), await taken()
        assert first and second and not first & second
        assert first | second == set(names)
        assert await taken() == set()
        monkeypatch.setattr(jobs, "LEASE_MS", 50)
        await Sweeper(store, 50, Metrics()).sweep()
        assert await store.sweep_due([names[0]]) == [None]
        await asyncio.sleep(0.01)  # the job is due again from the next millisecond on
        lost = await taken()
        assert names[0] in lost
        await asyncio.sleep(0.1)
        assert lost <= await taken() | await taken()
        for name in names:
            await store.delete(name)

    with_store(valkey, run)


def test_replicas_together_sweep_a_job_once_per_interval(valkey: EmbeddedValkey, job_name: str) -> None:
    """Otherwise, each further replica would sweep each job that follows the clock once more."""
    interval_ms, seconds = 300, 1.5

    async def run(store: JobStore) -> None:
        spaced = JobStore(store.redis, sweep_interval_ms=interval_ms)
        await by_the_clock(spaced, job_name)
        before = (await spaced.reads.status(job_name)).summary.emissions
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            await asyncio.gather(*(Sweeper(spaced, interval_ms, Metrics()).sweep() for _ in range(3)))
            await asyncio.sleep(0.01)
        elapsed_ms = 1000 * (time.monotonic() - began)
        swept = (await spaced.reads.status(job_name)).summary.emissions - before
        assert 1 <= swept <= elapsed_ms // interval_ms + 1
        await spaced.delete(job_name)

    with_store(valkey, run)


def test_jobs_that_cannot_be_swept_do_not_keep_others_waiting(valkey: EmbeddedValkey, job_name: str) -> None:
    """However many there are, and although they have been due for longer."""

    async def run(store: JobStore) -> None:
        damaged = [f"{job_name}.{number}" for number in range(2 * DUE_AT_ONCE)]
        await store.redis.zadd(SWEEPS, {name: number for number, name in enumerate(damaged)})
        await store.redis.mset({job_key(name): "of another program" for name in damaged})
        await by_the_clock(store, job_name)
        before = (await store.reads.status(job_name)).state.watermark
        await asyncio.sleep(0.02)
        await Sweeper(store, 50, Metrics()).sweep()
        after = (await store.reads.status(job_name)).state.watermark
        assert before is not None and after is not None and after > before
        await store.delete(job_name)
        await store.redis.zrem(SWEEPS, *damaged)
        await store.redis.delete(*map(job_key, damaged))

    with_store(valkey, run)


@pytest.mark.parametrize(
    "config",
    [
        JobConfig(LimitingLagAndDelay(1000, 20)),
        JobConfig(LimitingLagAndLull(1000, 20)),
        JobConfig(LimitingTimestampAndWallClockLag(1000, 10_000)),
        JobConfig(LimitingLag(0), idle_timeout_ms=20),
        JobConfig(LimitingLag(0), max_retention_ms=20),
    ],
    ids=["delay", "lull", "wall clock", "idle", "retention"],
)
def test_time_moves_the_watermark_without_any_report_or_read(
    valkey: EmbeddedValkey, job_name: str, config: JobConfig
) -> None:
    """The windows of a silent input must close."""

    async def run(store: JobStore) -> None:
        await store.configure(job_name, config, {}, None)
        limits = config.idle_timeout_ms or config.max_retention_ms
        await store.actions.declare(job_name, "", ["silent"] if limits else [])
        before = (await store.report(job_name, {"a": 5000})).state.coalesced_watermark

        async def moved() -> bool:
            emitted = [record for _, record in await records(store, job_name) if record.kind == "emission"]
            return bool(emitted) and emitted[-1].details["coalesced_watermark"] != before

        await until(store, moved)

    with_store(valkey, run)


@pytest.mark.parametrize(
    "config",
    [
        JobConfig(LimitingLag(10)),
        JobConfig(LimitingLag(10), idle_timeout_ms=20),
        JobConfig(LimitingLag(10), max_retention_ms=20, query_timeout_ms=20),
        JobConfig(LimitingLagAndDelay(10, 20)),
    ],
    ids=["no limit", "all idle", "nothing retained", "no delay left"],
)
def test_a_job_that_time_cannot_change_is_not_swept(valkey: EmbeddedValkey, job_name: str, config: JobConfig) -> None:
    """Thousands of silent jobs must not keep Redis busy."""

    async def run(store: JobStore) -> Any:
        await store.configure(job_name, config, {}, None)
        await store.report(job_name, {"a": 5000})

        async def forgotten() -> bool:
            return await store.redis.zscore(SWEEPS, job_name) is None

        await until(store, forgotten)
        before = await store.redis.dump(job_key(job_name))
        for _ in range(10):
            await asyncio.sleep(0.01)
            await Sweeper(store, 50, Metrics()).sweep()
        return before == await store.redis.dump(job_key(job_name))

    assert with_store(valkey, run)


def test_a_heartbeat_makes_a_timeout_of_its_query_due(valkey: EmbeddedValkey, job_name: str) -> None:
    """A query that died holds the watermark no longer than its timeout."""

    async def run(store: JobStore) -> None:
        await store.configure(job_name, JobConfig(LimitingLag(0), query_timeout_ms=30), {}, None)
        dead = Run("dead", "c", "r")
        await store.begin(job_name, dead, 0)
        await store.stage(job_name, dead, 0, PartitionReport(0, {"a": 5}))
        await store.commit(job_name, dead, 0, None)
        await store.report(job_name, {"b": 100})

        async def released() -> bool:
            return (await store.reads.status(job_name)).state.coalesced_watermark == 100

        await until(store, released)
        assert (await store.reads.status(job_name)).summary.limits == {"query_timeout_ms": 1}

    with_store(valkey, run)


def test_a_clock_that_jumps_ahead_is_refused(valkey: EmbeddedValkey, job_name: str) -> None:
    """After a failover to a host whose clock is a year ahead, all substreams would become idle."""

    async def run(store: JobStore) -> None:
        guard = ClockGuard(60_000)
        guarded = JobStore(store.redis, guard=guard)
        seconds, _ = await store.redis.time()
        guard.accept(seconds * 1000 - 3_600_000)  # the last accepted time is one hour ago
        await store.configure(job_name, JobConfig(LimitingLag(0), idle_timeout_ms=1000), {}, None)
        before = await store.redis.dump(job_key(job_name))
        for command in (
            lambda: guarded.report(job_name, {"a": 5}),
            lambda: guarded.sweep(job_name),
            lambda: guarded.configure(f"{job_name}.2", JobConfig(LimitingLag(0)), {}, None),
            lambda: guarded.read_clock(),
        ):
            with pytest.raises(ClockJumped):
                await command()
        assert await store.redis.dump(job_key(job_name)) == before
        assert (await JobStore(store.redis, guard=ClockGuard(60_000)).report(job_name, {"a": 5})).state.watermark == 5

    with_store(valkey, run)


def test_a_clock_that_was_back_for_a_while_is_accepted_again() -> None:
    guard = ClockGuard(60_000)
    guard.accept(10_000_000)
    guard.accept(10_000_000 - 3_600_000)
    guard.accept(10_000_000)
    with pytest.raises(ClockJumped):
        guard.accept(10_000_000 + 3_600_000)


def test_a_small_step_back_moves_the_latest_time_to_accept() -> None:
    """The clocks of Redis and of the coordinator differ in speed, so the guard follows Redis."""
    guard = ClockGuard(60_000)
    guard.accept(10_000_000)
    guard.accept(10_000_000 - 30_000)
    with pytest.raises(ClockJumped):
        guard.accept(10_000_000 + 50_000)
