"""A primary with a replica: changes that wait for the replica, and a failover by Sentinels under load."""

import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.api import create, problem, read, report
from tests.support.load import advance, check_exact, check_monotone, load
from tests.support.redis_servers import RedisServer, running
from tests.support.waiting import until
from tidegate_spark.testing import CoordinatorProcess

SENTINELS = 3
needs_sentinels = pytest.mark.skipif(shutil.which("redis-sentinel") is None, reason="no redis-sentinel on the PATH")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    """Yield a primary and its replica, which has all data of the primary."""
    primary = RedisServer(tmp_path / "primary", "--appendonly", "yes")
    replica = RedisServer(
        tmp_path / "replica",
        "--appendonly",
        "yes",
        "--replicaof",
        primary.host,
        str(primary.port),
        "--repl-timeout",
        "5",
    )
    with running(primary, replica):
        until(lambda: replica.redis.info("replication")["master_link_status"] == "up", "the replica is connected")
        yield primary, replica


def test_a_change_waits_for_the_replica(pair: tuple[RedisServer, RedisServer], tmp_path: Path) -> None:
    """A change that the replica has not confirmed is applied and not acknowledged; the client repeats it."""
    primary, replica = pair
    url = f"redis://{primary.address}/0"
    with (
        CoordinatorProcess(
            tmp_path / "service", redis_url=url, min_replicas="1", replication_timeout_ms="200"
        ) as service,
        httpx.Client(base_url=service.url, timeout=60) as http,
    ):
        job = create(http, "job")
        report(http, job, {"HNL": 100})
        replica.send(signal.SIGSTOP)
        body = {"substreams": ["HNL"], "max_event_times": [200]}
        refused = http.post(f"/v1/jobs/{job}:report", json=body)
        problem(refused, 503, "not_replicated")
        assert int(refused.headers["Retry-After"]) >= 1
        problem(http.get(f"/v1/jobs/{job}/watermark"), 503, "not_replicated")  # a failover could lose this watermark
        replica.send(signal.SIGCONT)
        until(lambda: http.post(f"/v1/jobs/{job}:report", json=body).status_code == 200, "the replica confirms")
        assert read(http, f"/v1/jobs/{job}/watermark")["watermark"] == 190
        assert replica.redis.exists(f"tidegate:{{{job}}}")


@needs_sentinels
@pytest.mark.slow
def test_a_failover_loses_no_confirmed_change(pair: tuple[RedisServer, RedisServer], tmp_path: Path) -> None:
    """Three Sentinels replace the primary, which is killed under load. Batches go on at the replica."""
    primary, replica = pair
    sentinels = [_sentinel(tmp_path / f"sentinel-{number}", primary) for number in range(SENTINELS)]
    url = f"redis+sentinel://{','.join(sentinel.address for sentinel in sentinels)}/primary/0"
    with ExitStack() as stack:
        stack.enter_context(running(*sentinels))
        until(lambda: all(_is_ready(sentinel) for sentinel in sentinels), "the Sentinels know each other", 120)
        service = stack.enter_context(CoordinatorProcess(tmp_path / "service", redis_url=url, min_replicas="1"))
        http = stack.enter_context(httpx.Client(base_url=service.url, timeout=60))
        with load(service.url, ["one", "two"]) as clients:
            advance(clients, 5)
            primary.kill()
            until(lambda: replica.redis.info("replication")["role"] == "master", "the replica is the primary", 120)
            primary.start()  # as a replica: without one, no change is confirmed
            advance(clients, 5)
        check_monotone(clients)
        check_exact(clients, partial(read, http))
        assert any(client.problems for client in clients), "the clients noticed the failover"


def _sentinel(directory: Path, primary: RedisServer) -> RedisServer:
    """Return a Sentinel that watches a primary. Two of three Sentinels agree on a failover after two seconds."""
    directory.mkdir(parents=True)
    sentinel = RedisServer(directory, binary=shutil.which("redis-sentinel"))
    file = directory / "sentinel.conf"
    file.write_text(
        f"port {sentinel.port}\nbind 127.0.0.1\ndir {directory}\n"
        f"sentinel monitor primary 127.0.0.1 {primary.port} 2\n"
        "sentinel down-after-milliseconds primary 2000\nsentinel failover-timeout primary 10000\n"
    )
    sentinel.command = [sentinel.command[0], str(file)]
    return sentinel


def _is_ready(sentinel: RedisServer) -> bool:
    """Return whether a Sentinel knows the replica and the other Sentinels."""
    found: Any = sentinel.redis.sentinel_master("primary")
    return int(found["num-slaves"]) == 1 and int(found["num-other-sentinels"]) == SENTINELS - 1
