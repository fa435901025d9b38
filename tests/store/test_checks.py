"""Checks of servers: refused servers with one line each, and configurations that can lose state."""

import asyncio
import logging
import re
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

import pytest
from redis import Redis

from tests.support.ports import free_port, listens
from tests.support.redis_servers import RedisServer, program, redis_cluster, running
from tests.support.sentinels import under_sentinels, with_replicas
from tests.support.waiting import until
from tidegate.runtime import background
from tidegate.runtime.metrics import Metrics
from tidegate.store.checks import OTHERS, RISKS, WRITES, Risk, all_risks, check_all
from tidegate.store.connection import StoreUnavailable, connect_all
from tidegate.store.embedded import EmbeddedValkey
from tidegate.store.servers import Servers

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "service" / "src" / "tidegate" / "store" / "lua"
Result = TypeVar("Result")
OPTIONAL = {"wait", "acl|dryrun", "cluster|slots"}
"""Commands that coordinators use with some settings, or do without."""


def with_servers(url: str, do: Callable[[Servers], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        async with aclosing(connect_all(url)) as servers:
            return await do(servers)

    return asyncio.run(run())


def refusal(url: str) -> str:
    """Return the line with which a coordinator refuses an address."""
    with pytest.raises(StoreUnavailable) as refused:
        with_servers(url, lambda servers: check_all(servers, url))
    line = str(refused.value)
    assert "\n" not in line
    return line


def risks_of(url: str) -> list[Risk]:
    return with_servers(url, lambda servers: all_risks(servers, url))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Yield a server whose users lack permissions."""
    users = {
        "reader": "~* &* -@all +ping +info +get +zscore",
        "partial": "~tidegate:* &* +@all -zadd -function",
        "elsewhere": "~other:* &* +@all",
        "deaf": "~* resetchannels +@all",
    }
    made = RedisServer(tmp_path_factory.mktemp("server"), "--appendonly", "yes")
    with running(made):
        for name, permissions in users.items():
            made.redis.execute_command("ACL SETUSER", name, "on", ">secret", *permissions.split())  # type: ignore[no-untyped-call]
        yield made


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("redis://{at}/0?foo=1", "has the parameter foo; expected any of client_name, db"),
        ("redis://{at}/0?decode_responses=no", "has the parameter decode_responses"),
        ("redis://{at}/0?ssl_ca_certs=/ca.pem", "has the parameter ssl_ca_certs"),
        ("redis://{at}/0?sentinel_password=x", "has the parameter sentinel_password"),
        ("redis+sentinel://{at}/tides/0?foo=1", "has the parameter foo"),
        ("redis+cluster://{at}?foo=1", "has the parameter foo"),
        ("rediss://{at}/0?ssl_ca_certs=/no/ca.pem", "the file /no/ca.pem of its parameter ssl_ca_certs cannot be read"),
        ("redis://{at}/0?timeout=soon", "its parameter timeout has an invalid value"),
        ("redis://{at}/0?protocol=9", "is not a Redis address; set TIDEGATE_REDIS_URL to redis://"),
        ("redis://{at}/tides", "its database is tides; expected a number"),
        ("redis://{at}?db=tides", "its parameter db has an invalid value"),
        ("redis://{at}/99", "Use a lower number of the database"),
        ("redis://u:pass/word@{at}/0", "special characters in the password percent-encoded"),
        ("redis://nobody:secret@{at}/0", "Correct the user and the password"),
        (
            "redis://reader:secret@{at}/0",
            "The user reader .* may not run|no permissions to run the 'fcall'.* Allow all",
        ),
        ("redis://partial:secret@{at}/0", "The user partial .* may not run ZADD, FUNCTION DELETE, FUNCTION LIST"),
        ("redis://elsewhere:secret@{at}/0", "The user elsewhere .* may not run HDEL, .* other commands on keys"),
        ("redis://deaf:secret@{at}/0", "The user deaf .* may not run PSUBSCRIBE, PUBLISH on"),
        ("rediss://{at}/0", "If the port does not use TLS, use redis://"),
        ("redis+cluster://{at}", "It is a single server; use redis://"),
        ("redis+sentinel://{at}/tides/0", "It is not a Sentinel; use redis://"),
        ("redis://no.such.host.invalid/0", "Start Redis, or correct TIDEGATE_REDIS_URL"),
        ("unix:///no/such/socket", "Start Redis, or correct TIDEGATE_REDIS_URL"),
    ],
)
def test_an_unsuitable_address_is_refused_with_one_line(server: RedisServer, address: str, says: str) -> None:
    """The line says what happened and what to do, without the password."""
    line = refusal(address.format(at=server.address))
    assert re.search(says, line), line
    assert "secret" not in line and "pass/word" not in line


def test_a_server_that_is_no_redis_is_named(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(tmp_path), port]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until(lambda: listens(int(port)), "the server listens")
        assert "is not a Redis; correct TIDEGATE_REDIS_URL" in refusal(f"redis://127.0.0.1:{port}/0")
    finally:
        process.kill()
        process.wait()


def test_a_server_that_does_not_answer_is_named() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        line = refusal(f"redis://127.0.0.1:{silent.getsockname()[1]}/0?socket_timeout=0.2")
    assert "Timeout" in line and "Start Redis" in line


def test_a_server_that_is_loading_is_named(tmp_path: Path) -> None:
    """A coordinator that starts beside a large Redis says that Redis is not ready yet."""
    slow = ("--key-load-delay", "20000", "--loading-process-events-interval-bytes", "1024")
    server = RedisServer(tmp_path, *slow)
    server.start()
    try:
        for number in range(3000):
            server.redis.set(f"other:{number}", "x" * 100)
        server.redis.save()
        server.kill()
        server.launch()
        until(lambda: listens(int(server.port)), "the server listens")
        line = refusal(f"redis://{server.address}/0")
        assert "loading" in line and "Start the coordinator again when Redis has loaded its data." in line
    finally:
        server.stop()


def test_the_lists_of_commands_are_complete() -> None:
    """The check of permissions covers every command of the functions, and the shipped ACL allows exactly these."""
    scripts = "\n".join(path.read_text() for path in SCRIPTS.rglob("*.lua"))
    of_scripts = set(re.findall(r"""\(["']([A-Z]{3,})["'][,)]""", scripts))
    assert len(of_scripts) > 20
    checked = {str(words[0]) for words in WRITES + OTHERS}
    assert of_scripts - checked == set()
    named = {f"{words[0]!s}|{words[1]!s}" if words[0] == "FUNCTION" else str(words[0]) for words in WRITES + OTHERS}
    *_, line = (ROOT / "deploy" / "compose" / "users.acl").read_text().splitlines()
    assert set(re.findall(r" \+(\S+)", line)) == {name.lower() for name in named} | OPTIONAL


def test_writes_are_all_commands_that_write(valkey: EmbeddedValkey) -> None:
    """The append-only file has only commands with the flag ``write``."""
    with Redis(unix_socket_path=valkey.socket, decode_responses=True) as redis:
        known = redis.command()
    flags = {name.lower(): set(known[name]["flags"]) for name in known}
    assert [words[0] for words in WRITES if "write" not in flags[str(words[0]).lower()]] == []
    assert [words[0] for words in OTHERS if "write" in flags[str(words[0]).lower()] - {"fcall"}] == []


def test_the_embedded_valkey_has_no_risk(valkey: EmbeddedValkey) -> None:
    assert risks_of(valkey.url) == []
    with_servers(valkey.url, lambda servers: check_all(servers, valkey.url))


def test_a_server_without_files_is_reported(tmp_path: Path) -> None:
    """Without an append-only file, only replicas keep the state at a restart. An evicted key is a lost substream."""
    server = RedisServer(tmp_path, "--maxmemory-policy", "allkeys-lru")
    with running(server):
        url = f"redis://{server.address}/0"
        with_servers(url, lambda servers: check_all(servers, url))
        assert {risk.name: risk.is_certain for risk in risks_of(url)} == {
            "no_append_only_file": False,
            "eviction": False,
        }
    with with_replicas(tmp_path / "replicated", 1) as (primary, _):
        assert risks_of(f"redis://{primary.address}/0") == []


def test_each_risk_is_logged_once_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The configuration can change while coordinators run. They continue, and report each change."""
    monkeypatch.setattr(background, "RISKS_EACH_S", 0.02)
    caplog.set_level(logging.WARNING, background.__name__)
    metrics, server = Metrics(), RedisServer(tmp_path, "--appendonly", "yes")

    def exported() -> dict[str, float]:
        return {name: metrics.registry.get_sample_value("tidegate_store_risk", {"risk": name}) or 0 for name in RISKS}

    async def watch() -> None:
        async def reached(*names: str) -> None:
            async with asyncio.timeout(90):
                while {name for name, value in exported().items() if value} != set(names):
                    await asyncio.sleep(0.02)

        async with aclosing(connect_all(url)) as servers:
            task = asyncio.create_task(background.watch_risks(servers, url, metrics))
            server.redis.config_set("maxmemory-policy", "allkeys-lru")
            await reached("eviction")
            server.redis.config_set("appendonly", "no")
            await reached("eviction", "no_append_only_file")
            server.redis.config_set("maxmemory-policy", "noeviction")
            await reached("no_append_only_file")
            server.redis.config_set("appendonly", "yes")
            await reached()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    url = f"redis://{server.address}/0"
    with running(server):
        asyncio.run(watch())
    logged = [record.getMessage() for record in caplog.records]
    assert [len(re.findall("evicts keys", text)) for text in logged].count(1) == 1, logged
    assert [len(re.findall("no append-only file", text)) for text in logged].count(1) == 1, logged
    assert logged[-1] == "The configuration of Redis loses no state any more."


@pytest.mark.slow
def test_each_primary_of_a_redis_cluster_is_checked(tmp_path: Path) -> None:
    """One primary that would lose its buckets is enough to refuse the cluster. The line names this primary."""
    with redis_cluster(tmp_path, program("redis-debian")) as cluster:
        for node in cluster.nodes:
            node.redis.acl_setuser(
                "own", enabled=True, passwords=["+secret"], keys=["*"], channels=["*"], categories=["+@all"]
            )
        url = cluster.url.replace("://", "://own:secret@")
        with_servers(url, lambda servers: check_all(servers, url))
        cluster.nodes[2].redis.acl_setuser("default", commands=["-zadd"])
        assert f"A restart of the Redis at {cluster.nodes[2].address} loses all jobs" in refusal(url)


@pytest.mark.slow
def test_replicas_of_sentinels_are_checked(tmp_path: Path) -> None:
    """A replica with another configuration loses state only after a failover, so it is reported before."""
    with under_sentinels(tmp_path, 1) as found:
        found.primary.redis.config_set("appendonly", "yes")
        assert risks_of(found.url) == []
        [replica] = found.replicas
        replica.redis.config_set("maxmemory-policy", "allkeys-lru")
        [risk] = risks_of(found.url)
        assert risk.name == "eviction" and replica.address in risk.text
        with_servers(found.url, lambda servers: check_all(servers, found.url))
