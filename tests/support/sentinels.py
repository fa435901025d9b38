"""A primary with replicas, under three Sentinels."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from tests.support.ports import free_port
from tests.support.redis_servers import RedisServer, running
from tests.support.waiting import until
from tidegate.store.embedded import server_binary

NAME = "tides"
DOWN_AFTER_MS = 3000
"""Time without an answer after which a Sentinel considers the primary down."""


@dataclass(frozen=True)
class Replicated:
    """A primary, its replicas, and the address for coordinators."""

    primary: RedisServer
    replicas: list[RedisServer]
    url: str


@contextmanager
def with_replicas(directory: Path, number: int) -> Iterator[tuple[RedisServer, list[RedisServer]]]:
    """Run a primary and its replicas, and wait until all replicas are connected."""
    primary = RedisServer(directory / "primary", "--repl-diskless-sync-delay", "0")
    of_primary = ("--replicaof", f"{primary.host} {primary.port}")
    replicas = [RedisServer(directory / f"replica-{one}", *of_primary) for one in range(number)]
    with running(primary, *replicas):
        until(lambda: _connected(primary) == number, "all replicas are connected")
        yield primary, replicas


@contextmanager
def under_sentinels(directory: Path, replicas: int) -> Iterator[Replicated]:
    """Run a primary and its replicas under three Sentinels, and wait until they know all servers and each other."""
    with with_replicas(directory, replicas) as (primary, others), ExitStack() as stack:
        ports = [free_port() for _ in range(3)]
        for port in ports:
            stack.enter_context(_sentinel(directory / f"sentinel-{port}", port, primary))
        for port in ports:
            with Redis(port=int(port), decode_responses=True) as sentinel:
                until(lambda: _knows(sentinel, replicas), "the Sentinel knows all servers")
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        yield Replicated(primary, others, f"redis+sentinel://{hosts}/{NAME}/0")


def _connected(primary: RedisServer) -> int:
    replication: Any = primary.redis.info("replication")
    return sum(
        value["state"] == "online"
        for name, value in replication.items()
        if name.startswith("slave") and "_" not in name
    )


@contextmanager
def _sentinel(directory: Path, port: str, primary: RedisServer) -> Iterator[None]:
    directory.mkdir()
    file = directory / "sentinel.conf"
    file.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {directory}\n"
        f"sentinel monitor {NAME} {primary.host} {primary.port} 2\n"
        f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}\nsentinel failover-timeout {NAME} 10000\n"
    )
    with open(directory / "sentinel.log", "wb") as log:
        process = subprocess.Popen([server_binary(), os.fspath(file), "--sentinel"], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _knows(sentinel: Redis, replicas: int) -> bool:
    try:
        found: Any = sentinel.execute_command("SENTINEL MASTERS")  # type: ignore[no-untyped-call]
    except RedisError:  # the Sentinel is starting
        return False
    known: Any = found[NAME] if isinstance(found, dict) else found[0]
    return int(known["num-other-sentinels"]) == 2 and int(known["num-slaves"]) == replicas
