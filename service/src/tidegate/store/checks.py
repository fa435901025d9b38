"""Checks of Redis servers: whether they can serve a coordinator, and whether their configuration can lose state.

A function writes several keys, so the append-only file has its writes as a transaction (``MULTI`` … ``EXEC``). At a
restart, Redis and older versions of Valkey check the permissions of the user ``default`` when they replay transactions.
They skip each write that this user may not run, without an error. A user that is merely ``off`` has no permissions.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from redis.asyncio import Redis
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    InvalidResponse,
    NoPermissionError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from tidegate.store.connection import CLUSTER, StoreUnavailable, replicas, without_password
from tidegate.store.functions import Functions, unobserved
from tidegate.store.keyspace import BUCKETS, PREFIX, SCHEMA, SCHEMAS, WAKE
from tidegate.store.pipelining import Words
from tidegate.store.servers import Servers

log = logging.getLogger(__name__)

OLDEST = (7, 0)
REPLAYS_WITHOUT_PERMISSIONS = (9, 1, 2)
"""First version of Valkey that replays transactions without a check of permissions."""

KEY = PREFIX + "{check}"
WRITES: tuple[Words, ...] = (
    ("HDEL", KEY, "field"),
    ("HINCRBY", KEY, "field", 1),
    ("HSET", KEY, "field", "value"),
    ("LTRIM", KEY, 0, 1),
    ("PERSIST", KEY),
    ("PEXPIRE", KEY, 1000),
    ("RENAME", KEY, KEY),
    ("RPUSH", KEY, "value"),
    ("SADD", KEY, "member"),
    ("SET", KEY, "value"),
    ("SREM", KEY, "member"),
    ("UNLINK", KEY),
    ("XADD", KEY, "*", "field", "value"),
    ("XTRIM", KEY, "MAXLEN", 1),
    ("ZADD", KEY, 1, "member"),
    ("ZREM", KEY, "member"),
    ("ZREMRANGEBYRANK", KEY, 0, 1),
)
"""A call of each command that functions write with. The append-only file has them in transactions."""
OTHERS: tuple[Words, ...] = (
    ("EXISTS", KEY),
    ("FCALL", "function", 1, KEY),
    ("FUNCTION", "DELETE", "library"),
    ("FUNCTION", "LIST"),
    ("FUNCTION", "LOAD", "library"),
    ("GET", KEY),
    ("HEXISTS", KEY, "field"),
    ("HGET", KEY, "field"),
    ("HGETALL", KEY),
    ("HLEN", KEY),
    ("HMGET", KEY, "field"),
    ("HSCAN", KEY, 0),
    ("HVALS", KEY),
    ("INFO",),
    ("LRANGE", KEY, 0, 1),
    ("PING",),
    ("PSUBSCRIBE", WAKE + "*"),
    ("PUBLISH", WAKE + "check", "record"),
    ("PUNSUBSCRIBE",),
    ("SCARD", KEY),
    ("SISMEMBER", KEY, "member"),
    ("SMEMBERS", KEY),
    ("SMISMEMBER", KEY, "member"),
    ("TIME",),
    ("XRANGE", KEY, "-", "+"),
    ("XREVRANGE", KEY, "+", "-"),
    ("ZCARD", KEY),
    ("ZCOUNT", KEY, 0, 1),
    ("ZMSCORE", KEY, "member"),
    ("ZRANGE", KEY, 0, 1),
    ("ZSCAN", KEY, 0),
    ("ZSCORE", KEY, "member"),
)
"""A call of each other command that coordinators and functions use with every configuration."""

NAMED = 8
"""Number of commands to name in a message."""
RISKS = ("replay", "no_append_only_file", "eviction", "unverified")


@dataclass(frozen=True, slots=True)
class Risk:
    """A way in which the configuration of a server loses state.

    Attributes:
        name: The kind of risk, a member of :data:`RISKS`.
        is_certain: Whether the next restart of the server loses the state.
        text: One line that says what happens, what was expected, and what to do.
    """

    name: Literal["replay", "no_append_only_file", "eviction", "unverified"]
    is_certain: bool
    text: str


async def check(redis: Redis, url: str) -> None:
    """Raise StoreUnavailable if a server cannot be reached, refuses access, or cannot run the functions."""
    with reachable(url):
        info = await redis.info("server")
    place, version = without_password(url), str(info.get("redis_version"))
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        raise StoreUnavailable(f"The Redis at {place} is version {version}; upgrade it to 7.0 or later.")
    modes = (info.get("redis_mode"), info.get("server_mode"))  # the second name is Valkey's
    if "sentinel" in modes:
        raise StoreUnavailable(
            f"The server at {place} is a Sentinel; set TIDEGATE_REDIS_URL to "
            "redis+sentinel://host:port/name-of-primary/0."
        )
    if "cluster" in modes and CLUSTER not in url:
        raise StoreUnavailable(
            f"The Redis at {place} is a Redis Cluster; set TIDEGATE_REDIS_URL to "
            "redis+cluster://host:port,host:port with the addresses of some nodes."
        )
    with reachable(url):
        lacking = await _lacking(redis, _user(redis), WRITES + OTHERS)
    if lacking:
        raise StoreUnavailable(
            f"The user {_user(redis)} of the Redis at {place} may not run {_some(lacking)} on keys {PREFIX}* and "
            f"channels {WAKE}*; allow all that the line `user tidegate` in deploy/compose/users.acl allows."
        )


async def check_all(servers: Servers, url: str) -> None:
    """Check each server, the schema of the state, and the number of buckets of a Redis Cluster.

    Raises:
        StoreUnavailable: If a server is not suitable, if its next restart would lose the state, if a newer version has
            used the store, or if the coordinators of a Redis Cluster use another number of buckets.
    """
    with reachable(url):
        each = await servers.all()
    for server in each:
        await check(server.redis, url)
        with reachable(url):
            found = await risks(server.redis, server.name or without_password(url))
        for risk in found:
            if risk.is_certain:
                raise StoreUnavailable(risk.text)
    await _check_schema(servers, url)
    if CLUSTER in url:
        await _check_buckets(servers, url)
    try:
        errors = await Functions(servers, None, None, unobserved, None).check_each()
    except RedisError as error:
        errors = [error]
    for refused in errors:
        if isinstance(refused, NoPermissionError):  # a server that is full or read-only may accept writes again
            raise _unusable(url, refused)


async def all_risks(servers: Servers, url: str) -> list[Risk]:
    """Return the risks of each server, and of the replicas that Sentinels name. A replica's restart loses no state.

    Raises:
        RedisError: If a server does not answer. A replica that does not answer is left out.
    """
    found: list[Risk] = []
    for server in await servers.all():
        found += await risks(server.redis, server.name or without_password(url))
        for place, replica in await replicas(server.redis):
            try:
                found += await risks(replica, place)
            except (RedisError, OSError):  # the Sentinels watch the replicas
                continue
            finally:
                await replica.aclose()
    return found


async def risks(redis: Redis, place: str) -> list[Risk]:
    """Return the ways in which a server's configuration loses state. ``place`` is the address for messages.

    A server that hides a value in ``INFO`` has no risk that depends on the value.

    Raises:
        RedisError: If the server does not answer.
    """
    info: Mapping[str, Any] = await redis.info()
    found = []
    if info.get("aof_enabled") == 1 and not _replays_all(info):
        found += await _risk_of_replay(redis, place, f"{_brand(info)} {_version(info)}")
    if info.get("aof_enabled") == 0 and info.get("role") == "master" and info.get("connected_slaves") == 0:
        text = (
            f"The Redis at {place} has no append-only file and no replica, so a restart loses all changes since its "
            "last snapshot; set `appendonly yes` (CONFIG SET appendonly yes, and in its configuration file)."
        )
        found.append(Risk("no_append_only_file", False, text))
    if info.get("maxmemory_policy", "noeviction") != "noeviction":
        text = (
            f"The Redis at {place} evicts keys when it reaches maxmemory ({info['maxmemory_policy']}), "
            "and a key may be the state of a substream; set `maxmemory-policy noeviction`."
        )
        found.append(Risk("eviction", False, text))
    return found


async def _risk_of_replay(redis: Redis, place: str, version: str) -> list[Risk]:
    database = redis.connection_pool.connection_kwargs.get("db") or 0
    is_in_cluster = (await redis.info("cluster")).get("cluster_enabled") == 1
    # The append-only file selects the database inside the first transaction.
    selects: tuple[Words, ...] = () if is_in_cluster else (("SELECT", database),)
    cause = f"{version} replays its append-only file with the permissions of the user default, also if this user is off"
    remedy = (
        "run ACL SETUSER default ~* &* +@all, and write the permissions into its configuration or ACL file "
        "(user default off ~* &* +@all), or upgrade to Valkey 9.1.2 or later"
    )
    try:
        lacking = await _dry_run(redis, "default", WRITES + selects)
    except ResponseError as error:
        text = (
            f"Cannot check whether a restart of the Redis at {place} loses all jobs ({error}): {cause}. Allow "
            f"+acl|dryrun, or check that the answer to ACL GETUSER default has the commands +@all and the keys ~*; if "
            f"not, {remedy}."
        )
        return [Risk("unverified", False, text)]
    if not lacking:
        return []
    text = f"A restart of the Redis at {place} loses all jobs: {cause}, and this user may not run {_some(lacking)}"
    return [Risk("replay", True, f"{text}; {remedy}.")]


def _brand(info: Mapping[str, Any]) -> str:
    return "Valkey" if info.get("server_name") == "valkey" else "Redis"


def _version(info: Mapping[str, Any]) -> str:
    return str(info.get("valkey_version") or info.get("redis_version"))


def _replays_all(info: Mapping[str, Any]) -> bool:
    """Return whether a version is known to replay transactions without a check of permissions."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", _version(info))[:3])
    return _brand(info) == "Valkey" and numbers >= REPLAYS_WITHOUT_PERMISSIONS


def _some(commands: Sequence[str]) -> str:
    """Return the first of some commands, and the number of the others."""
    others = len(commands) - NAMED
    return ", ".join(commands[:NAMED]) + (f" and {others} other commands" if others > 0 else "")


def _user(redis: Redis) -> str:
    return str(redis.connection_pool.connection_kwargs.get("username") or "default")


async def _lacking(redis: Redis, user: str, calls: Sequence[Words]) -> list[str]:
    """Return the commands that a user may not run; an empty list if the server does not tell."""
    try:
        return await _dry_run(redis, user, calls)
    except ResponseError:  # check_all() then calls a function
        return []


async def _dry_run(redis: Redis, user: str, calls: Sequence[Words]) -> list[str]:
    """Return the commands that a user may not run.

    Raises:
        ResponseError: If this connection may not ask, or the server has no such command.
    """
    pipeline = redis.pipeline(transaction=False)
    for words in calls:
        pipeline.execute_command("ACL", "DRYRUN", user, *words)
    answers = await pipeline.execute()
    named = (f"FUNCTION {words[1]!s}" if words[0] == "FUNCTION" else str(words[0]) for words in calls)
    return [name for name, answer in zip(named, answers, strict=True) if answer != "OK"]


async def _check_schema(servers: Servers, url: str) -> None:
    with reachable(url):
        newest = await servers.at(SCHEMAS, lambda server: server.execute(("ZSCORE", SCHEMAS, "newest")))
    if newest is not None and float(newest) > SCHEMA:
        raise StoreUnavailable(
            f"A newer version of Tidegate has used the Redis at {without_password(url)}: its state has schema "
            f"{float(newest):.0f}, and this version reads schemas up to {SCHEMA}. Start the newer version again, or "
            "restore a back-up from before the upgrade."
        )
    try:
        # GT, because coordinators of two versions may start at the same time.
        await servers.at(SCHEMAS, lambda server: server.execute(("ZADD", SCHEMAS, "GT", SCHEMA, "newest")))
    except RedisError as error:  # a server that is full or read-only; the functions still check the schema of each job
        log.warning("Cannot store the schema of the state in Redis: %s", error)


async def _check_buckets(servers: Servers, url: str) -> None:
    buckets = len(servers.keys.buckets)
    with reachable(url):
        await servers.at(BUCKETS, lambda server: server.execute(("SET", BUCKETS, buckets, "NX")))
        stored = int(await servers.at(BUCKETS, lambda server: server.execute(("GET", BUCKETS))))
    if stored != buckets:
        raise StoreUnavailable(
            f"The Redis Cluster at {without_password(url)} has its jobs in {stored} buckets, but TIDEGATE_BUCKETS is "
            f"{buckets}; set TIDEGATE_BUCKETS to {stored}. The number cannot change while the cluster has jobs."
        )


@contextmanager
def reachable(url: str) -> Iterator[None]:
    """Raise StoreUnavailable in place of the errors of Redis and of its connection."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise _unusable(url, error) from error


def _unusable(url: str, error: Exception) -> StoreUnavailable:
    reason = " ".join(str(error).split()).rstrip(" .") or type(error).__name__
    return StoreUnavailable(f"Cannot use the Redis at {without_password(url)}: {reason}. {_advice(url, error, reason)}")


def _advice(url: str, error: Exception, reason: str) -> str:
    """Return the sentence that says what to do about an error of a connection or of a first command."""
    if isinstance(error, AuthenticationError):
        return "Correct the user and the password in TIDEGATE_REDIS_URL (redis://user:password@host:port/0)."
    if isinstance(error, BusyLoadingError):
        return "Start the coordinator again when Redis has loaded its data."
    if isinstance(error, NoPermissionError):
        return "Allow all that the line `user tidegate` in deploy/compose/users.acl allows."
    if isinstance(error, MasterNotFoundError):
        return "Correct the name of the primary or the addresses of the Sentinels in TIDEGATE_REDIS_URL."
    if isinstance(error, ReadOnlyError):
        return "It is a replica; set TIDEGATE_REDIS_URL to the primary, or to Sentinels."
    if isinstance(error, InvalidResponse):
        return "The server is not a Redis; correct TIDEGATE_REDIS_URL."
    if "Timeout connecting" in reason and url.startswith("rediss"):
        return _ADVICE["SSL"]
    for text, advice in _ADVICE.items():
        if text in reason:
            return advice
    return "Start Redis, or correct TIDEGATE_REDIS_URL; without TIDEGATE_REDIS_URL, Tidegate uses an embedded Valkey."


_ADVICE = {
    "DB index is out of range": "Use a lower number of the database in TIDEGATE_REDIS_URL, such as 0.",
    "cluster support disabled": "It is a single server; use redis:// in TIDEGATE_REDIS_URL.",
    "unknown command 'SENTINEL'": "It is not a Sentinel; use redis:// in TIDEGATE_REDIS_URL, or correct the addresses.",
    "certificate": "Name the certificate authority in TIDEGATE_REDIS_URL: ?ssl_ca_certs=/path/ca.pem.",
    "SSL": "If the port does not use TLS, use redis:// in TIDEGATE_REDIS_URL.",
    "Connection closed by server": "If the port uses TLS, use rediss:// in TIDEGATE_REDIS_URL.",
    "Connection reset by peer": "If the port uses TLS, use rediss:// in TIDEGATE_REDIS_URL.",
}
