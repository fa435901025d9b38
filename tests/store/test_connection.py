"""Connections to Redis and Valkey: over TCP with a password, TLS, a Unix socket, and Sentinels."""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from tests.support.ports import free_port
from tests.support.store import JobStore
from tidegate.domain.config import JobConfig
from tidegate.domain.policies import LimitingLag
from tidegate.store.checks import check
from tidegate.store.connection import (
    StoreUnavailable,
    connect,
    connect_all,
    is_failed_function,
    without_password,
)
from tidegate.store.embedded import server_binary

REDIS = shutil.which("redis-server")
OPENSSL = shutil.which("openssl")
needs_redis = pytest.mark.skipif(
    REDIS is None and not os.environ.get("CI"), reason="no redis-server on the PATH (Debian: redis-server)"
)


@contextmanager
def running(directory: Path, *command: str) -> Iterator[None]:
    """Run a server until the end of the block."""
    with open(directory / "server.log", "wb") as log:
        server = subprocess.Popen([*command, "--dir", str(directory), "--save", ""], stdout=log, stderr=log)
    try:
        yield
    finally:
        server.terminate()
        server.wait()


async def report_through(url: str, patience_s: float = 30) -> int | None:
    """Wait for the server, check it, and return the watermark after a report."""
    redis = connect(url)
    try:
        deadline = time.monotonic() + patience_s
        while True:
            try:
                await check(redis, url)
                break
            except StoreUnavailable:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)
        store = JobStore(redis)
        await store.configure("j", JobConfig(LimitingLag(10)), {}, None)
        return (await store.report("j", {"a": 100})).state.watermark
    finally:
        await redis.aclose()


def test_valkey_over_tcp_with_a_password(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, server_binary(), "--port", port, "--bind", "127.0.0.1", "--requirepass", "s3cret"):
        assert asyncio.run(report_through(f"redis://:s3cret@127.0.0.1:{port}/0")) == 90
        with pytest.raises(StoreUnavailable, match=r"(?i)auth|password") as refused:
            asyncio.run(check_once(f"redis://:wr0ng@127.0.0.1:{port}/0"))
        assert "wr0ng" not in str(refused.value)


async def check_once(url: str) -> None:
    redis = connect(url)
    try:
        await check(redis, url)
    finally:
        await redis.aclose()


@needs_redis
def test_redis_over_a_unix_socket(tmp_path: Path) -> None:
    assert REDIS is not None, "CI installs redis-server"
    with running(tmp_path, REDIS, "--port", "0", "--unixsocket", "r.sock"):
        assert asyncio.run(report_through(f"unix://{tmp_path}/r.sock")) == 90


@needs_redis
def test_redis_over_tls(tmp_path: Path) -> None:
    """The store refuses a server whose certificate it does not know."""
    assert REDIS is not None, "CI installs redis-server"
    assert OPENSSL is not None, "CI installs openssl"
    key, certificate, port = tmp_path / "key.pem", tmp_path / "cert.pem", free_port()
    subprocess.run(
        [
            OPENSSL,
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
        check=True,
        capture_output=True,
    )
    tls = ["--tls-port", port, "--port", "0", "--bind", "127.0.0.1", "--tls-auth-clients", "no"]
    files = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-ca-cert-file", str(certificate)]
    with running(tmp_path, REDIS, *tls, *files):
        assert asyncio.run(report_through(f"rediss://localhost:{port}/0?ssl_ca_certs={certificate}")) == 90
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
            asyncio.run(check_once(f"rediss://localhost:{port}/0"))


def _sentinel(directory: Path, primary: str, port: str) -> list[str]:
    """Return the command of a Sentinel that decides alone, after 500 ms."""
    file = directory / "sentinel.conf"
    file.write_text(
        f"port {port}\nbind 127.0.0.1\nrequirepass of-sentinels\n"
        f"sentinel monitor the%primary 127.0.0.1 {primary} 1\nsentinel auth-pass the%primary s3cret\n"
        "sentinel down-after-milliseconds the%primary 500\nsentinel failover-timeout the%primary 5000\n"
    )
    return [server_binary(), str(file), "--sentinel"]


@pytest.mark.slow
def test_the_store_follows_a_failover_of_sentinels(tmp_path: Path) -> None:
    """When the primary dies, a replica takes its place. The store loads its functions into it and writes to it."""
    first, second, sentinel = free_port(), free_port(), free_port()
    for name in ("first", "second", "sentinel"):
        (tmp_path / name).mkdir()
    secret = ["--bind", "127.0.0.1", "--requirepass", "s3cret", "--masterauth", "s3cret"]
    replica = [*secret, "--replicaof", "127.0.0.1", first, "--port", second]
    # The first Sentinel does not answer, so the store asks the second one.
    url = f"redis+sentinel://:s3cret@127.0.0.1:1,127.0.0.1:{sentinel}/the%25primary/0?sentinel_password=of-sentinels"

    async def follow(ending: ExitStack) -> list[int | None]:
        watermarks = [await report_through(url)]
        redis = connect(url)
        store = JobStore(redis)
        try:
            while (await redis.info("replication"))["connected_slaves"] < 1:
                await asyncio.sleep(0.1)
            await redis.wait(1, 10_000)
            await asyncio.sleep(2)  # a Sentinel searches for replicas at its start and then every ten seconds
            ending.close()
            deadline = time.monotonic() + 60
            while len(watermarks) < 2:
                try:
                    watermarks.append((await store.report("j", {"a": 200})).state.watermark)
                except RedisError as away:
                    if is_failed_function(away) or time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(0.2)
            return watermarks
        finally:
            await redis.aclose()

    with (
        running(tmp_path / "second", server_binary(), *replica),
        ExitStack() as primary,
    ):
        primary.enter_context(running(tmp_path / "first", server_binary(), "--port", first, *secret))
        time.sleep(2)
        with running(tmp_path / "sentinel", *_sentinel(tmp_path / "sentinel", first, sentinel)):
            assert asyncio.run(follow(primary)) == [90, 190]


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://host:26379",
        "redis+sentinel:///name",
        "redis+sentinel://host:no/name",
        "http://host/0",
        "redis+cluster://",
        "redis+cluster://host:1/3",
        "redis+cluster://host:no",
    ],
)
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"is not a Redis address; set TIDEGATE_REDIS_URL to redis://"):
        connect_all(url)


def test_addresses_are_shown_without_passwords() -> None:
    """Addresses in logs and error messages contain no passwords."""
    for url in ("redis://user:p@ss@host:1/0", "redis://u:p/ss@host:1/0", "redis://host:1/0?password=pass"):
        assert without_password(url) == "redis://host:1/0"
    assert without_password("redis+sentinel://u:p@a:1,b:2/primary/0?sentinel_password=p") == (
        "redis+sentinel://a:1,b:2/primary/0"
    )
    assert without_password("unix:///run/redis.sock") == "unix:///run/redis.sock"
