"""Every Redis that may be configured: Redis and Valkey, over TCP with a password, TLS, and a unix socket."""

import asyncio
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidegate.domain.config import JobConfig
from tidegate.domain.policy import LimitingLag
from tidegate.store.connection import StoreUnavailable, check, connect, without_password
from tidegate.store.embedded import server_binary
from tidegate.store.redis import JobStore

REDIS = shutil.which("redis-server")
OPENSSL = shutil.which("openssl")
needs_redis = pytest.mark.skipif(
    REDIS is None and not os.environ.get("CI"), reason="no redis-server on the PATH (Debian: redis-server)"
)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@contextmanager
def running(directory: Path, *command: str) -> Iterator[None]:
    """A server of the test's own, ended with it."""
    with open(directory / "server.log", "wb") as log:
        server = subprocess.Popen([*command, "--dir", str(directory), "--save", ""], stdout=log, stderr=log)
    try:
        yield
    finally:
        server.terminate()
        server.wait()


async def report_through(url: str) -> int | None:
    """Waits for the server, checks it, and takes one report all the way."""
    redis = connect(url)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                await check(redis, url)
                break
            except StoreUnavailable:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)
        store = JobStore(redis)
        await store.put("j", JobConfig(LimitingLag(10)), {}, None)
        return (await store.report("j", {"a": 100})).answer.watermark
    finally:
        await redis.aclose()


def test_valkey_over_tcp_with_a_password(tmp_path: Path) -> None:
    """How a shared server is reached."""
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
    """The other brand, in the oldest version that Debian has."""
    assert REDIS is not None, "CI installs redis-server"
    with running(tmp_path, REDIS, "--port", "0", "--unixsocket", "r.sock"):
        assert asyncio.run(report_through(f"unix://{tmp_path}/r.sock")) == 90


@needs_redis
def test_redis_over_tls(tmp_path: Path) -> None:
    """Between machines; the certificate is checked, so an unknown one is refused."""
    assert REDIS is not None, "CI installs redis-server"
    assert OPENSSL is not None, "CI installs openssl"
    key, certificate, port = tmp_path / "key.pem", tmp_path / "cert.pem", free_port()
    subprocess.run(
        [OPENSSL, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    tls = ["--tls-port", port, "--port", "0", "--bind", "127.0.0.1", "--tls-auth-clients", "no"]
    files = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-ca-cert-file", str(certificate)]
    with running(tmp_path, REDIS, *tls, *files):
        assert asyncio.run(report_through(f"rediss://localhost:{port}/0?ssl_ca_certs={certificate}")) == 90
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
            asyncio.run(check_once(f"rediss://localhost:{port}/0"))


def test_a_password_never_shows() -> None:
    """Addresses go into logs and error messages."""
    for url in ("redis://user:p@ss@host:1/0", "redis://u:p/ss@host:1/0", "redis://host:1/0?password=pass"):
        assert without_password(url) == "redis://host:1/0"
    assert without_password("unix:///run/redis.sock") == "unix:///run/redis.sock"
