"""Answers that replicas must confirm: WAIT after each round trip, with a replica that is paused."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from tests.support.api import CONFIG, problem
from tests.support.redis_servers import RedisServer
from tests.support.sentinels import with_replicas
from tests.support.store import JobStore
from tidegate.domain.config import JobConfig
from tidegate.domain.history import FINE_MS
from tidegate.domain.job import Run
from tidegate.domain.policies import LimitingLag
from tidegate.store.connection import connect
from tidegate.store.pipelining import NotReplicated, Replication
from tidegate.store.replies import JobPageRequest
from tidegate.store.servers import OneServer
from tidegate_spark.testing import CoordinatorProcess

JOBS = [f"job-{number}" for number in range(40)]
IN_TIME = Replication(1, 4000)
SOON = Replication(1, 100)

Servers = tuple[RedisServer, RedisServer]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Yield a primary and its replica."""
    with with_replicas(tmp_path_factory.mktemp("replicated"), 1) as (primary, [replica]):
        yield primary, replica


def url_of(server: RedisServer) -> str:
    return f"redis://{server.address}/0"


async def calls_of_wait(redis: Redis) -> int:
    stats: Any = await redis.info("commandstats")
    return int(stats.get("cmdstat_wait", {"calls": 0})["calls"])


def test_calls_of_a_round_trip_share_one_wait(servers: Servers) -> None:
    """A WAIT for each call would cost a round trip to the replica for each call."""

    async def run() -> None:
        redis = connect(url_of(servers[0]))
        store = JobStore(OneServer(redis, IN_TIME))
        for job in JOBS:
            await store.configure(job, JobConfig(LimitingLag(10)), {}, None)
        before = await calls_of_wait(redis)
        await asyncio.gather(*(store.report(job, {"a": 100}) for job in JOBS))
        assert 1 <= await calls_of_wait(redis) - before <= len(JOBS) / 4
        before = await calls_of_wait(redis)
        await JobStore(redis).report(JOBS[0], {"a": 200})
        assert await calls_of_wait(redis) == before, "a store without min_replicas waits"
        await redis.aclose()

    asyncio.run(run())
    for job in JOBS:
        assert servers[1].redis.exists(f"tidegate:{{{job}}}:active")


def test_a_change_that_no_replica_has_is_not_confirmed(servers: Servers, job_name: str) -> None:
    """Each caller of the round trip gets the error, also for a repetition, until the replica has the change."""

    async def run() -> None:
        redis = connect(url_of(servers[0]))
        store = JobStore(OneServer(redis, SOON))
        await JobStore(OneServer(redis, IN_TIME)).configure(job_name, JobConfig(LimitingLag(10)), {}, None)
        servers[1].send(signal.SIGSTOP)
        try:
            for _ in range(2):
                found = await asyncio.gather(
                    *(store.report(job_name, {name: 100}) for name in "abc"), return_exceptions=True
                )
                assert [type(error) for error in found] == [NotReplicated] * 3
            with pytest.raises(NotReplicated, match="0 of 1 replicas confirmed the state of the job within 100 ms"):
                await store.actions.hold(job_name, "night", 1000)
            # The changes were applied. Sweeps without a client do not wait.
            await store.sweep_due(job_name)
            assert len((await JobStore(redis).reads.substreams(job_name)).rows) == 3
        finally:
            servers[1].send(signal.SIGCONT)
        again = await JobStore(OneServer(redis, IN_TIME)).report(job_name, {"a": 100})
        assert again.state.watermark == 90
        await redis.aclose()

    asyncio.run(run())


PAGE = JobPageRequest(3, 10, None, 10, None, FINE_MS, 10, [1000], 10, 10)
READS: dict[str, Callable[[JobStore, str], Awaitable[Any]]] = {
    "sweep": lambda store, job: store.sweep(job),
    "read_watermark": lambda store, job: store.read_watermark(job),
    "watch": lambda store, job: store.watch(job, None, 10),
    "status": lambda store, job: store.reads.status(job),
    "statuses": lambda store, job: store.reads.statuses([job]),
    "held": lambda store, job: store.reads.held(job, 3),
    "substreams": lambda store, job: store.reads.substreams(job),
    "queries": lambda store, job: store.reads.queries(job),
    "pinned_watermark": lambda store, job: store.reads.pinned_watermark(job, "q", 0),
    "delays": lambda store, job: store.reads.delays(job),
    "history": lambda store, job: store.reads.history(job),
    "late": lambda store, job: store.reads.late(job),
    "page": lambda store, job: store.reads.page(job, PAGE),
    "samples": lambda store, job: store.reads.samples(job, FINE_MS, 10),
    "repeated create": lambda store, job: store.configure(job, JobConfig(LimitingLag(10)), {}, None),
}


def test_no_read_shows_what_no_replica_has(servers: Servers, job_name: str) -> None:
    """Another coordinator has made the change, so WAIT alone would not wait: this connection has not written."""

    async def run() -> dict[str, Any]:
        changing, reading = connect(url_of(servers[0])), connect(url_of(servers[0]))
        other, store = JobStore(changing), JobStore(OneServer(reading, SOON))
        await other.configure(job_name, JobConfig(LimitingLag(10)), {"policy": {}}, None)
        await JobStore(OneServer(reading, IN_TIME)).report(job_name, {"a": 100})
        servers[1].send(signal.SIGSTOP)
        try:
            await other.begin(job_name, Run("q", "c", "r"), 0)
            await other.report(job_name, {"a": 200})
            found = await asyncio.gather(*(read(store, job_name) for read in READS.values()), return_exceptions=True)
            assert await store.reads.timelines([job_name], FINE_MS, 10) == {job_name: []}
        finally:
            servers[1].send(signal.SIGCONT)
        await JobStore(OneServer(reading, IN_TIME)).reads.status(job_name)
        await changing.aclose()
        await reading.aclose()
        return dict(zip(READS, found, strict=True))

    found = asyncio.run(run())
    assert {name: type(answer) for name, answer in found.items()} == dict.fromkeys(READS, NotReplicated)


def test_a_full_server_still_confirms_reads(tmp_path: Path) -> None:
    """Operators read the state of a full server, and then delete jobs."""

    async def run(primary: RedisServer) -> None:
        redis = connect(url_of(primary))
        store = JobStore(OneServer(redis, IN_TIME))
        await store.configure("full", JobConfig(LimitingLag(10)), {}, None)
        await redis.config_set("maxmemory", 1)
        try:
            assert (await store.reads.status("full")).state.watermark is None
            await store.delete("full")
        finally:
            await redis.config_set("maxmemory", 0)
            await redis.aclose()

    with with_replicas(tmp_path, 1) as (primary, _):
        asyncio.run(run(primary))


def test_the_api_answers_not_replicated(servers: Servers, tmp_path: Path) -> None:
    url, directory = url_of(servers[0]), tmp_path / "coordinator"
    body = {"substreams": ["a"], "max_event_times": [100]}
    with (
        CoordinatorProcess(directory, redis_url=url, min_replicas="1", replication_timeout_ms="1000") as process,
        httpx.Client(base_url=process.url, timeout=60) as http,
    ):
        while http.put("/v1/jobs/api", json=CONFIG, headers={"If-None-Match": "*"}).status_code == 503:
            pass  # the replica may be slow; the repetition finds the job
        servers[1].send(signal.SIGSTOP)
        try:
            refused = http.post("/v1/jobs/api:report", json=body)
            assert "If the call is a change, it was applied." in problem(refused, 503, "not_replicated")["detail"]
            assert refused.headers["Retry-After"] == "1"
            problem(http.get("/v1/jobs/api/watermark"), 503, "not_replicated")
            problem(http.get("/v1/jobs/api"), 503, "not_replicated")
            metrics = http.get("/metrics").text
            assert "tidegate_store_up 0" in metrics
            assert "tidegate_job_watermark" not in metrics
            assert http.get("/readyz").status_code == 200
        finally:
            servers[1].send(signal.SIGCONT)
        while (answer := http.post("/v1/jobs/api:report", json=body)).status_code == 503:
            problem(answer, 503, "not_replicated")
        assert answer.json()["watermark"] == 90
    assert "Traceback" not in (directory / "coordinator.log").read_text()
