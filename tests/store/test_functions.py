"""Functions in Redis: the store loads missing functions, and a function keeps no state between calls."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import pytest
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tests.support.driver import Driver
from tests.support.proxy import Proxies, Proxy
from tests.support.store import JobStore
from tidegate.domain.config import MAX_EXPECTED_QUERIES, JobConfig
from tidegate.domain.errors import JobNotFound, TooManySubstreams
from tidegate.domain.job import ANY_VERSION, ConfigVersion
from tidegate.domain.policies import LimitingLag, LimitingLagAndLull
from tidegate.store.connection import connect
from tidegate.store.embedded import EmbeddedValkey
from tidegate.store.functions import delete_other_versions, map_of
from tidegate.store.jobs import Capacity
from tidegate.store.library import PREFIX, library

CONFIG = {"policy": {"type": "limiting_lag", "lag_ms": 0}}


def library_names(driver: Driver) -> set[str]:
    async def names() -> set[str]:
        found: Any = await driver.store.redis.function_list(library=f"{PREFIX}*")
        return {map_of(entry)["library_name"] for entry in found}

    return driver(names())


def flush(driver: Driver) -> None:
    async def flushed() -> None:
        await driver.store.redis.execute_command("FUNCTION", "FLUSH")  # type: ignore[no-untyped-call]

    driver(flushed())


def test_functions_that_the_server_does_not_have_are_loaded(driver: Driver, job_name: str) -> None:
    """The coordinators need no restart if a server is new, or if an operator has emptied it."""
    flush(driver)
    driver(driver.store.configure(job_name, JobConfig(LimitingLag(0)), CONFIG, None))
    flush(driver)
    assert driver(driver.store.report(job_name, {"a": 5})).state.watermark == 5
    flush(driver)
    assert driver(driver.store.reads.status(job_name)).state.watermark == 5
    flush(driver)
    [status] = driver(driver.store.reads.statuses([job_name])).values()
    assert not isinstance(status, Exception) and status.state.watermark == 5


def test_other_versions_are_deleted_and_other_libraries_stay(driver: Driver, job_name: str) -> None:
    """Redis keeps libraries across restarts, so each upgrade would leave an old library behind."""
    other = library().text.replace(library().name, f"{PREFIX}0123456789abcdef")
    foreign = "#!lua name=foreign\nredis.register_function('foreign_one', function() return 1 end)"

    async def load() -> None:
        for text in (other, foreign):
            await driver.store.redis.function_load(text, replace=True)

    flush(driver)  # libraries of other tests
    driver(load())
    with pytest.raises(JobNotFound):
        driver(driver.store.reads.status(job_name))
    assert library_names(driver) == {library().name, f"{PREFIX}0123456789abcdef"}
    driver(delete_other_versions(driver.store.redis))
    assert library_names(driver) == {library().name}

    async def delete_foreign() -> None:
        await driver.store.redis.function_delete("foreign")  # fails if it was deleted before

    driver(delete_foreign())


def test_a_call_keeps_nothing_for_the_next_call(driver: Driver, job_name: str) -> None:
    """A call must not use variables of an earlier call: for another job, a refused command or a missing job."""
    lull, other = LimitingLagAndLull(10, 5), f"{job_name}-other"
    document = {"policy": {"type": "limiting_lag_and_lull", "lag_ms": 10, "max_lull_ms": 5}}
    driver.store.capacity = Capacity(substreams=2)
    driver(driver.store.configure(job_name, JobConfig(lull), document, None, now_ms=0))
    driver(driver.store.configure(other, JobConfig(LimitingLag(0)), CONFIG, None, now_ms=100))
    driver(driver.store.report(job_name, {"a": 50}, now_ms=0))
    with pytest.raises(TooManySubstreams):
        driver(driver.store.report(job_name, {"b": 70, "c": 80}, now_ms=3))
    assert driver(driver.store.report(other, {"z": 1000}, now_ms=100)).state.watermark == 1000
    holder = driver(driver.store.reads.status(job_name, now_ms=4)).state.held_by
    assert holder is not None and holder.substream == "a"
    with pytest.raises(JobNotFound):
        driver(driver.store.report(f"{job_name}-none", {"a": 1}, now_ms=100))
    # The deadline of the lull was 5. Since then, the watermark of the job advances with the clock.
    assert driver(driver.store.sweep(job_name, now_ms=25)).watermark == 60
    assert driver(driver.store.sweep(other, now_ms=200)).watermark == 1000


@pytest.mark.slow
def test_the_memory_of_decoded_configurations_is_bounded(driver: Driver, job_name: str) -> None:
    """Redis does not count this memory against maxmemory, and a client that may configure one job can send many."""

    async def used() -> int:
        return int((await driver.store.redis.info("memory"))["used_memory_vm_functions"])

    async def configure_often() -> int:
        highest = 0
        for revision in range(100):
            config = JobConfig(LimitingLag(revision), expected_queries=queries)
            await driver.store.configure(job_name, config, CONFIG, ANY_VERSION if revision else None)
            highest = max(highest, await used())
        return highest

    queries = tuple(f"{number}".ljust(128, "x") for number in range(MAX_EXPECTED_QUERIES))
    flush(driver)
    driver(driver.store.configure(f"{job_name}-first", JobConfig(LimitingLag(0)), CONFIG, None))
    before = driver(used())
    # All configurations together take 13 MB as text and 17 MB as tables.
    assert driver(configure_often()) - before < 9_000_000


def test_an_outage_of_one_job_is_not_one_of_the_next(driver: Driver, job_name: str) -> None:
    """Only the job that was not swept for too long has an outage."""
    store = JobStore(driver.store.redis, unattended_after_ms=1000)
    lull = LimitingLagAndLull(10, 5)
    document = {"policy": {"type": "limiting_lag_and_lull", "lag_ms": 10, "max_lull_ms": 5}}
    for job, begin in ((job_name, 0), (f"{job_name}-other", 5000)):
        driver(store.configure(job, JobConfig(lull), document, None, now_ms=begin))
        driver(store.report(job, {"a": 50}, now_ms=begin))
    driver(store.sweep(job_name, now_ms=5000))
    driver(store.sweep(f"{job_name}-other", now_ms=5001))
    kinds = {
        job: [record.kind for _, record in driver(store.reads.history(job, most=10)).records]
        for job in (job_name, f"{job_name}-other")
    }
    assert "unattended" in kinds[job_name]
    assert "unattended" not in kinds[f"{job_name}-other"]


LAG = JobConfig(LimitingLag(10))
ACTIONS: dict[str, Callable[[JobStore, str], Awaitable[Any]]] = {
    "create": lambda store, job: store.configure(f"{job}-new", LAG, CONFIG, None),
    "configure": lambda store, job: store.configure(job, LAG, CONFIG, ConfigVersion(None, 1)),
    "release": lambda store, job: store.actions.release(job, "night"),
    "reset": lambda store, job: store.actions.reset(job),
    "hold": lambda store, job: store.actions.hold(job, "day", 5),
    "declare": lambda store, job: store.actions.declare(job, "", ["b"]),
    "evict": lambda store, job: store.actions.evict(job, "", ["a"]),
    "delete": lambda store, job: store.delete(job),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_whose_answer_was_lost_has_one_effect(valkey: EmbeddedValkey, job_name: str, action: str) -> None:
    """The coordinator sends it again: the repetition was refused, changed nothing, or reset the job a second time."""

    async def prepared(store: JobStore, suffix: str) -> str:
        job = job_name + suffix
        await store.configure(job, LAG, CONFIG, None)
        await store.report(job, {"a": 100})
        await store.actions.hold(job, "night", 1000)
        return job

    async def calls(store: JobStore) -> int:
        stats: Any = await store.redis.info("commandstats")
        return int(stats["cmdstat_fcall"]["calls"])

    def comparable(answer: Any) -> dict[str, Any]:
        found = {} if answer is None else asdict(answer)
        found |= found.pop("state", {})
        return {name: value for name, value in found.items() if name not in ("state_epoch", "now_ms", "held_by")}

    async def run(proxies: Proxies, proxy: Proxy) -> None:
        redis, proxied = connect(valkey.url), connect(f"redis://127.0.0.1:{proxy.port}/0")
        proxied.connection_pool.connection_kwargs["retry"] = Retry(NoBackoff(), 1)  # as those of a Redis Cluster
        store, losing = JobStore(redis), JobStore(proxied)
        expected = await ACTIONS[action](store, await prepared(store, ".1"))
        job = await prepared(losing, ".2")
        before = await calls(store)
        proxies.call(lambda: setattr(proxy.to_client, "drops", True))
        answer = asyncio.ensure_future(ACTIONS[action](losing, job))
        while await calls(store) == before:
            await asyncio.sleep(0.01)
        proxies.call(proxy.heal)
        assert comparable(await answer) == comparable(expected)
        assert await calls(store) == before + 2, "the coordinator sent the call once, so this test proves nothing"
        await redis.aclose()
        await proxied.aclose()

    with Proxies(1) as proxies:
        asyncio.run(run(proxies, proxies.to(lambda: valkey.socket)))
