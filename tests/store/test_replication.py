"""Changes that replicas must confirm: WAIT after each round trip, with a replica that is paused."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from tests.support.api import CONFIG, problem, read
from tests.support.redis_servers import RedisServer
from tests.support.sentinels import with_replicas
from tests.support.store import JobStore
from tidegate.domain.config import JobConfig
from tidegate.domain.policy import LimitingLag
from tidegate.store.connection import connect
from tidegate.store.pipelining import NotReplicated, Replication
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
            with pytest.raises(NotReplicated, match="0 of 1 replicas confirmed the change within 100 ms"):
                await store.actions.hold(job_name, "night", 1000)
            with pytest.raises(NotReplicated):  # a failover could lose this watermark
                await store.sweep(job_name)
            # The changes were applied. Sweeps without a client, and lists, do not wait.
            await store.sweep_due(job_name)
            assert len((await store.reads.substreams(job_name)).rows) == 3
        finally:
            servers[1].send(signal.SIGCONT)
        again = await JobStore(OneServer(redis, IN_TIME)).report(job_name, {"a": 100})
        assert again.state.watermark == 90
        await redis.aclose()

    asyncio.run(run())


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
            assert "The change was applied" in problem(refused, 503, "not_replicated")["detail"]
            assert refused.headers["Retry-After"] == "1"
            problem(http.get("/v1/jobs/api/watermark"), 503, "not_replicated")
            assert read(http, "/v1/jobs/api")["watermark"] == 90
            assert http.get("/readyz").status_code == 200
        finally:
            servers[1].send(signal.SIGCONT)
        while (answer := http.post("/v1/jobs/api:report", json=body)).status_code == 503:
            problem(answer, 503, "not_replicated")
        assert answer.json()["watermark"] == 90
    assert "Traceback" not in (directory / "coordinator.log").read_text()
