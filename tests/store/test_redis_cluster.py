"""A Redis Cluster of three primaries: jobs in buckets, missing functions, and slots that move to another node."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import ResponseError, TryAgainError

from tests.support.redis_servers import RedisCluster, RedisServer, begin_move, binaries, redis_cluster, running
from tests.support.store import JobStore
from tidegate.domain.config import JobConfig
from tidegate.domain.errors import TooManyJobs
from tidegate.domain.job import ConsumerPosition, Run
from tidegate.domain.policies import LimitingLag
from tidegate.runtime.background import Sweeper
from tidegate.runtime.feed import Goal
from tidegate.runtime.metrics import Metrics
from tidegate.runtime.wakeups import WakeUps
from tidegate.store.checks import check_all
from tidegate.store.connection import StoreUnavailable, connect_all
from tidegate.store.jobs import Capacity, JobQuota

# With a timeout, the job is in the set of due jobs, so all keys of its function calls exist.
CONFIG = JobConfig(LimitingLag(10), idle_timeout_ms=600_000)
MANY = 100


@pytest.fixture(scope="module", params=binaries())
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with redis_cluster(tmp_path_factory.mktemp("cluster"), request.param) as running_cluster:
        yield running_cluster


@pytest.fixture
def empty(cluster: RedisCluster) -> RedisCluster:
    """Return the cluster without keys."""
    for node in cluster.nodes:
        node.redis.flushall()
    return cluster


@asynccontextmanager
async def store_of(cluster: RedisCluster, capacity: Capacity | None = None) -> AsyncIterator[JobStore]:
    async with aclosing(connect_all(cluster.url)) as servers:
        await check_all(servers, cluster.url)
        yield JobStore(servers, capacity=capacity)


def with_store(cluster: RedisCluster, what: Callable[[JobStore], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with store_of(cluster) as store:
            return await what(store)

    return asyncio.run(run())


async def create(store: JobStore, number: int = MANY) -> list[str]:
    names = [f"job-{one}" for one in range(number)]
    for name in names:
        await store.configure(name, CONFIG, {}, None)
        assert (await store.report(name, {"a": 100, "b": 200})).state.watermark == 90
    return names


def slot_of(store: JobStore, job: str) -> int:
    return key_slot(store.servers.keys.job_key(job).encode())


def test_jobs_are_on_all_primaries_and_reads_find_all_of_them(empty: RedisCluster) -> None:
    async def run(store: JobStore) -> None:
        names = await create(store)
        assert {empty.owner(slot_of(store, name)).port for name in names} == {node.port for node in empty.nodes}
        assert await store.reads.jobs() == sorted(names)
        statuses = await store.reads.statuses(names)
        assert [of.state.watermark for of in statuses.values() if not isinstance(of, Exception)] == [90] * MANY
        timelines = await store.reads.timelines(names, 15_000, 10)
        assert all(timelines[name] for name in names)
        assert await store.reads.count_substreams("job-7") == 2
        assert [row.substream for row in (await store.reads.substreams("job-7")).rows] == ["a", "b"]
        await store.begin("job-7", Run("q", "c", "r"), 0)
        pinned = await store.reads.pinned_watermark("job-7", "q", 0)
        assert pinned is not None and pinned.value == 90
        for name in names:
            await store.consume(name, "c", "one", 1000, ConsumerPosition(5, 0, 1))
        assert [len((await store.reads.consumers(name)).consumers) for name in names] == [1] * MANY
        states = await store.states()
        assert sum(state.buckets for state in states) == 64
        assert {state.server for state in states} == {node.address for node in empty.nodes}
        await store.delete("job-7")
        assert "job-7" not in await store.reads.jobs()

    with_store(empty, run)


def test_a_job_uses_the_keys_of_one_slot(empty: RedisCluster) -> None:
    """A function that needs keys of two slots fails on a cluster."""

    async def run(store: JobStore) -> None:
        await create(store)
        keys = [str(key) for node in empty.nodes for key in node.redis.scan_iter("tidegate:*", count=1000)]
        for name in ("job-1", "job-77"):
            own = [key for key in keys if f"/{name}:" in key or key.endswith(f"/{name}")]
            bucket = store.servers.keys.bucket(name)
            assert len(own) > 3
            assert {key_slot(key.encode()) for key in (*own, bucket.jobs, bucket.sweeps)} == {slot_of(store, name)}

    with_store(empty, run)


def test_another_number_of_buckets_is_refused(empty: RedisCluster) -> None:
    """With another number, the coordinator would not find the jobs."""

    async def run() -> None:
        async with aclosing(connect_all(empty.url, buckets=32)) as first:
            await check_all(first, empty.url)
        async with aclosing(connect_all(empty.url, buckets=64)) as second:
            with pytest.raises(StoreUnavailable, match=r"in 32 buckets, but TIDEGATE_BUCKETS is 64; set TIDEGATE_BUC"):
                await check_all(second, empty.url)

    asyncio.run(run())


def test_limits_on_jobs_count_the_jobs_of_all_buckets(empty: RedisCluster) -> None:
    async def run() -> None:
        async with store_of(empty, Capacity(jobs=5)) as store:
            await create(store, 4)
            with pytest.raises(TooManyJobs):
                await store.configure("job-of-team", CONFIG, {}, None, quota=JobQuota("job-", 4))
            await store.configure("other", CONFIG, {}, None, quota=JobQuota("oth", 1))
            with pytest.raises(TooManyJobs):
                await store.configure("one-too-many", CONFIG, {}, None)

    asyncio.run(run())


def test_functions_that_one_primary_lacks_are_loaded_there(empty: RedisCluster) -> None:
    """A node that joins the cluster, or was restored, has no functions."""

    async def run(store: JobStore) -> None:
        names = await create(store)
        for node in empty.nodes:
            node.redis.function_flush()
            for name in names:
                assert (await store.report(name, {"a": 200})).state.watermark == 190
            node.redis.function_flush()
            assert len(await store.reads.statuses(names)) == MANY
            node.redis.function_flush()
            await store.check()

    with_store(empty, run)


def test_the_sweeper_sweeps_all_buckets(empty: RedisCluster) -> None:
    async def run(store: JobStore) -> None:
        names = [f"timed-{one}" for one in range(MANY)]
        for name in names:
            await store.configure(name, JobConfig(LimitingLag(0), idle_timeout_ms=20), {}, None)
            await store.report(name, {"a": 5})
        sweeper = Sweeper(store, 50, Metrics())
        for _ in range(200):
            await sweeper.sweep()
            states = [row.state for name in names for row in (await store.reads.substreams(name)).rows]
            if states == ["idle"] * MANY:
                return
            await asyncio.sleep(0.05)
        pytest.fail(f"not idle after 200 sweeps: {states}")

    with_store(empty, run)


def test_a_waiting_client_is_woken_by_a_change_on_any_primary(empty: RedisCluster) -> None:
    """One subscription has the announcements of all primaries. Without it, feeds would read after five seconds."""

    async def run(store: JobStore) -> None:
        names = await create(store, 12)
        assert len({empty.owner(slot_of(store, name)).port for name in names}) == 3
        wakeups = WakeUps(store, 100, 300)
        task = asyncio.create_task(wakeups.run())
        while not any(node.redis.pubsub_numpat() for node in empty.nodes):
            await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(wakeups.wait(name, Goal(500), 120)) for name in names]
        while wakeups.waiting < len(names):
            await asyncio.sleep(0.05)
        for name in names:
            await store.report(name, {"a": 510, "b": 510})
        assert [answer.watermark for answer in await asyncio.gather(*waiting)] == [500] * len(names)
        task.cancel()

    with_store(empty, run)


def test_a_node_with_a_moving_slot_starts_no_function(empty: RedisCluster) -> None:
    """A function would otherwise begin, and fail in the middle at a key that the node no longer has."""

    async def run(store: JobStore) -> None:
        await create(store)
        slot = slot_of(store, "job-3")
        source = empty.owner(slot)
        target = next(node for node in empty.nodes if node is not source)
        begin_move(slot, source, target)
        before = {key: source.redis.dump(key) for key in keys_of(source, "job-3")}
        assert await refusal(store.report("job-3", {"a": 300, "b": 300})) is TryAgainError
        assert before == {key: source.redis.dump(key) for key in keys_of(source, "job-3")}
        source.redis.migrate(target.host, int(target.port), keys_of(source, "job-3")[:2], 0, 30_000)
        reported = asyncio.create_task(store.report("job-3", {"a": 300, "b": 300}))
        assert await refusal(store.report("job-3", {"a": 301})) is TryAgainError
        assert len(keys_of(target, "job-3")) == 2
        assert await refusal(reported) is TryAgainError
        assert (await store.report("job-4", {"a": 300, "b": 300})).state.watermark == 290
        again = asyncio.create_task(store.report("job-3", {"a": 300, "b": 300}))
        await asyncio.to_thread(empty.finish_move, slot, source, target)
        assert (await again).state.watermark == 290
        assert store.servers.server_of(store.servers.keys.bucket("job-3")) == target.address

    with_store(empty, run)


async def refusal(call: Awaitable[object]) -> type[ResponseError] | None:
    """Return the type of the error of a call."""
    try:
        await call
    except ResponseError as error:
        return type(error)
    return None


def keys_of(node: RedisServer, job: str) -> list[str]:
    return sorted(key for key in node.redis.scan_iter("tidegate:*", count=1000) if f"/{job}:" in f"{key}:")


def test_addresses_of_the_wrong_kind_are_refused_with_advice(empty: RedisCluster, tmp_path: Path) -> None:
    async def check(url: str) -> None:
        async with aclosing(connect_all(url)) as servers:
            await check_all(servers, url)

    with pytest.raises(StoreUnavailable, match=r"is a Redis Cluster; set TIDEGATE_REDIS_URL to redis\+cluster://"):
        asyncio.run(check(f"redis://{empty.nodes[0].address}/0"))
    single = RedisServer(tmp_path)
    with running(single), pytest.raises(StoreUnavailable, match="cluster support disabled"):
        asyncio.run(check(f"redis+cluster://{single.address}"))


def test_a_node_that_does_not_answer_is_skipped(empty: RedisCluster) -> None:
    """A coordinator starts if any of the nodes in the address answers."""

    async def run() -> None:
        url = empty.url.replace("redis+cluster://", "redis+cluster://127.0.0.1:1,")
        async with aclosing(connect_all(url)) as servers:
            await check_all(servers, url)
            await create(JobStore(servers), 5)

    asyncio.run(run())
