"""Feeds: their lifetime, and their behaviour while the store does not answer."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from redis.exceptions import ConnectionError as Away

from tests.support.driver import with_store
from tests.support.store import JobStore
from tidegate.domain.config import JobConfig
from tidegate.domain.errors import JobDeleted
from tidegate.domain.policies import LimitingLag
from tidegate.runtime import feed
from tidegate.runtime.background import end
from tidegate.runtime.feed import Feed, Goal, State
from tidegate.runtime.wakeups import WakeUps
from tidegate.store.embedded import EmbeddedValkey
from tidegate.store.keyspace import WAKE
from tidegate.store.replies import Watched


def feeds() -> int:
    return sum(task.get_name() == "feed" for task in asyncio.all_tasks())


async def until(reached: Callable[[], bool]) -> None:
    for _ in range(2000):
        if reached():
            return
        await asyncio.sleep(0.01)
    pytest.fail("the condition did not hold within 20 s")


def test_a_feed_without_followers_ends(valkey: EmbeddedValkey, job_name: str) -> None:
    """A command of the store's client may ignore a cancellation, so the test tries many short uses."""

    async def run(store: JobStore) -> None:
        await store.configure(job_name, JobConfig(LimitingLag(0)), {}, None)
        wakeups = WakeUps(store, 10_000, 300)
        for pause_ms in range(300):
            steps = wakeups.follow(job_name, None, 15, nullcontext())
            await anext(steps)
            await asyncio.sleep(pause_ms % 15 / 10_000)
            await steps.aclose()
        await until(lambda: feeds() == 0)
        assert wakeups.waiting == 0

    with_store(valkey, run)


def test_a_foreign_message_stops_no_feed(
    valkey: EmbeddedValkey, job_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs may use the same Redis and publish on any channel."""
    monkeypatch.setattr(feed, "POLL_S", 600)

    async def run(store: JobStore) -> None:
        await store.configure(job_name, JobConfig(LimitingLag(0)), {}, None)
        wakeups = WakeUps(store, 10, 300)
        listening = asyncio.create_task(wakeups.run())
        while not await store.redis.pubsub_numpat():
            await asyncio.sleep(0.01)
        await store.redis.publish(WAKE.encode() + b"\xff", "")
        waiting = asyncio.create_task(wakeups.wait(job_name, Goal(5), 60))
        await until(lambda: feeds() == 1)
        await asyncio.sleep(1)
        await store.report(job_name, {"a": 5})
        assert (await waiting).watermark == 5
        await end([listening])

    with_store(valkey, run)


class Flaky(JobStore):
    """A store that does not answer some of its calls."""

    away: Callable[[int], bool] = staticmethod(lambda call: False)
    calls = 0

    async def watch(self, job: str, known: str | None, most: int, now_ms: int | None = None) -> Watched:
        self.calls += 1
        if self.away(self.calls):
            raise Away("away")
        return await super().watch(job, known, most, now_ms)


@pytest.mark.parametrize("failing", [{1}, {2}, {1, 2}, {1, 2, 3}, {2, 3}])
def test_failed_reads_do_not_hide_a_gap(
    valkey: EmbeddedValkey, job_name: str, monkeypatch: pytest.MonkeyPatch, failing: set[int]
) -> None:
    """A follower whose id is not found gets a discontinuous state, whichever calls failed before."""
    monkeypatch.setattr(feed, "RETRY_S", 0.01)

    async def run(plain: JobStore) -> None:
        store = Flaky(plain.redis)
        store.away = lambda call: call in failing
        await store.configure(job_name, JobConfig(LimitingLag(0)), {}, None)
        await store.report(job_name, {"a": 5})
        followed = Feed(store, job_name)
        task = asyncio.create_task(followed.run())
        found = None
        async for step in followed.follow("7-0", 0.01):
            if step:
                found = step
                break
        assert isinstance(found, State) and found.discontinuous
        assert found.answer.watermark == 5
        followed.end()
        await task

    with_store(valkey, run)


def test_a_feed_delivers_the_last_records_of_a_deleted_job(valkey: EmbeddedValkey, job_name: str) -> None:
    """A follower that is behind gets all records before the deletion."""

    async def run(store: JobStore) -> None:
        await store.configure(job_name, JobConfig(LimitingLag(0)), {}, None)
        followed = Feed(store, job_name)
        task = asyncio.create_task(followed.run())
        steps = followed.follow(None, 60)
        assert isinstance(await anext(steps), State)
        for time in range(1, 5):
            await store.report(job_name, {"a": time})
        followed.wake()
        await until(lambda: len(followed.entries) >= 4)
        await store.delete(job_name)
        followed.wake()
        await task
        records = await anext(steps)
        assert isinstance(records, list)
        emitted = [entry.record.details["watermark"] for entry in records if entry.record.kind == "emission"]
        assert emitted == [1, 2, 3, 4]
        with pytest.raises(JobDeleted):
            await anext(steps)

    with_store(valkey, run)
