"""Outages by the clock of Redis: time in which no coordinator runs counts towards no limit."""

import asyncio
import time
from collections.abc import Callable

import pytest

from tests.support.driver import Driver, records
from tests.support.store import JobStore
from tidegate.domain.batches import PartitionReport
from tidegate.domain.config import JobConfig
from tidegate.domain.job import Run
from tidegate.domain.policies import LimitingLag, LimitingLagAndLull
from tidegate.store.keyspace import ATTENDANCE

UNATTENDED_AFTER_MS = 300
LIMIT_MS, OUTAGE_S = 1000, 1.5
"""The outage is longer than the limits."""
RUN = Run("q", "c", "r")


async def idle(store: JobStore, job: str) -> None:
    await store.configure(job, JobConfig(LimitingLag(0), idle_timeout_ms=LIMIT_MS), {}, None)
    await store.report(job, {"a": 100, "b": 10_000})


async def lull(store: JobStore, job: str) -> None:
    await store.configure(job, JobConfig(LimitingLagAndLull(0, LIMIT_MS)), {}, None)
    await store.report(job, {"a": 100})


async def open_batch(store: JobStore, job: str) -> None:
    await store.configure(job, JobConfig(LimitingLag(0), max_batch_hold_ms=LIMIT_MS), {}, None)
    await store.report(job, {"a": 100})
    await store.begin(job, RUN, 0)
    await store.report(job, {"a": 10_000})


async def dead_query(store: JobStore, job: str) -> None:
    await store.configure(job, JobConfig(LimitingLag(0), query_timeout_ms=LIMIT_MS), {}, None)
    await store.begin(job, RUN, 0)
    await store.stage(job, RUN, 0, PartitionReport(0, {"a": 100}))
    await store.commit(job, RUN, 0, None)
    await store.report(job, {"b": 10_000})


async def hold(store: JobStore, job: str) -> None:
    await store.configure(job, JobConfig(LimitingLag(0)), {}, None)
    await store.actions.hold(job, "h", 100, LIMIT_MS)
    await store.report(job, {"a": 10_000})


@pytest.fixture
def store(driver: Driver) -> JobStore:
    return JobStore(driver.store.redis, UNATTENDED_AFTER_MS)


@pytest.mark.parametrize("prepare", [idle, lull, open_batch, dead_query, hold])
def test_an_outage_counts_towards_no_limit(
    driver: Driver, store: JobStore, job_name: str, prepare: Callable[..., object]
) -> None:
    """A restart takes longer than many limits. Afterwards the limit acts as if there had been no outage."""

    async def check() -> None:
        await prepare(store, job_name)  # type: ignore[misc]
        await asyncio.sleep(OUTAGE_S)
        assert (await store.sweep(job_name)).watermark == 100
        assert "unattended" in [record.kind for _, record in await records(store, job_name)]
        deadline = time.monotonic() + 60
        while (await store.sweep(job_name)).watermark == 100:
            assert time.monotonic() < deadline, "the limit did not act after the outage"
            await asyncio.sleep(0.02)

    driver(check())


def test_an_outage_of_one_job_is_one_of_all(driver: Driver, store: JobStore, job_name: str) -> None:
    """The first call after an outage may be about another job. A new job has had no outage."""

    async def unattended(job: str) -> int:
        found = [record for _, record in await records(store, job) if record.kind == "unattended"]
        return sum(record.details["unattended_ms"] for record in found)

    async def check() -> None:
        other, new = f"{job_name}-other", f"{job_name}-new"
        await idle(store, job_name)
        await idle(store, other)
        await asyncio.sleep(OUTAGE_S)
        await idle(store, new)
        for _ in range(2):
            for job in (job_name, other, new):
                await store.sweep(job)
        for job in (job_name, other):
            assert await unattended(job) >= 1000 * OUTAGE_S - UNATTENDED_AFTER_MS
        assert await unattended(new) == 0

    driver(check())


def test_a_coordinator_without_calls_attends_the_jobs(driver: Driver, store: JobStore) -> None:
    """Otherwise the silence of all substreams would be an outage."""

    async def attended() -> int:
        return int(await store.redis.hget(ATTENDANCE, "until") or 0)

    async def check() -> None:
        await store.due(await store.read_clock())
        before = await attended()
        await asyncio.sleep(0.3)
        await store.due(await store.read_clock())
        assert await attended() >= before + 300

    driver(check())
