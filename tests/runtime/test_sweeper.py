"""The sweeper: what happens to one job must not keep it from the others."""

import asyncio

from tidegate.domain.config import JobConfig
from tidegate.domain.policy import LimitingLag
from tidegate.runtime.sweeper import Sweeper
from tidegate.store.connection import connect
from tidegate.store.embedded import EmbeddedValkey
from tidegate.store.redis import JobStore


class DeletedInBetween(JobStore):
    """A store in which one job is deleted right after the sweeper learnt that time drives it."""

    victim = ""

    async def driven_by_time(self, job: str) -> bool:
        driven = await super().driven_by_time(job)
        if job == self.victim:
            await self.delete(job)
        return driven


def test_a_job_deleted_in_the_midst_of_a_sweep_stops_nobody(valkey: EmbeddedValkey, job: str) -> None:
    """Otherwise one delete at the wrong moment would end all idleness of direct reporters, for ever."""

    async def sweep() -> list[str]:
        redis = connect(valkey.url)
        store = DeletedInBetween(redis)
        store.victim = f"{job}.1"
        for name in (store.victim, f"{job}.2"):
            await store.put(name, JobConfig(LimitingLag(0), idle_timeout_ms=1), {}, None)
            await store.report(name, {"a": 5})
        await asyncio.sleep(0.05)
        await Sweeper(store, 50).sweep()
        _, rows = await store.substreams(f"{job}.2")
        await redis.aclose()
        return [row.state for row in rows]

    assert asyncio.run(sweep()) == ["idle"]
