"""The connection to Redis, and the check that the server is suitable.

The server is Redis 7.0 or later, or Valkey. The connection uses TCP (``redis://``), TLS (``rediss://``) or a Unix
socket (``unix://``). With ``redis+sentinel://`` or ``rediss+sentinel://``, Sentinels name the primary. With
``redis+cluster://`` or ``rediss+cluster://``, the store is a Redis Cluster.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.exceptions import OutOfMemoryError, ReadOnlyError, RedisError, ResponseError

from tidegate.store.cluster import Cluster
from tidegate.store.keyspace import BUCKETS, SCHEMA, SCHEMAS
from tidegate.store.pipelining import Replication
from tidegate.store.servers import OneServer, Servers, reporting_losses

log = logging.getLogger(__name__)

OLDEST = (7, 0)
CONNECTIONS = 64
WAIT_S = 5
SENTINEL_WAIT_S = 1
"""Timeout of a request to one Sentinel."""
SENTINEL_PORT = 26379
READ_ONLY = ("MISCONF ", "NOREPLICAS ")
"""Prefixes of errors from a server that accepts no writes. redis-py has no classes for these errors."""
WRONG_TYPE = "WRONGTYPE "
"""Prefix of errors about a key that has another type, because another program has written it."""
SENTINELS, CLUSTER = "+sentinel://", "+cluster://"
DEFAULT_BUCKETS = 64
ADDRESSES = (
    "redis://host:port/0, rediss://..., unix:///path/to.sock, redis+sentinel://host:port,host:port/name-of-primary/0, "
    "or redis+cluster://host:port,host:port"
)


class StoreUnavailable(Exception):
    """Raised when the store cannot be used. The message names the store and the reason, without a password."""


OPTIONS: dict[str, Any] = {
    "max_connections": CONNECTIONS,
    "timeout": WAIT_S,
    "decode_responses": True,
    "encoding_errors": "backslashreplace",
    "socket_timeout": WAIT_S,
    "socket_connect_timeout": WAIT_S,
    "health_check_interval": 15,
}
"""Options of all connections. Callers wait while all connections of a pool are busy. A name of another program that is
not UTF-8 must not fail the answers that contain it."""


def connect(url: str) -> Redis:
    """Return a client of one server.

    Raises:
        StoreUnavailable: If the address is invalid.
    """
    with _valid(url):
        if SENTINELS in url:
            pool: BlockingConnectionPool = _to_primary(url, OPTIONS)
        else:
            pool = BlockingConnectionPool.from_url(url, **OPTIONS)
    return Redis.from_pool(reporting_losses(pool))


def connect_all(url: str, buckets: int = DEFAULT_BUCKETS, replication: Replication | None = None) -> Servers:
    """Return the servers of a store.

    Args:
        url: Address of a server, of Sentinels, or of nodes of a Redis Cluster.
        buckets: Number of buckets of a Redis Cluster. A single server has no buckets.
        replication: Replicas that must have a change; None to wait for no replica.

    Raises:
        StoreUnavailable: If the address is invalid.
    """
    if CLUSTER not in url:
        return OneServer(connect(url), replication)
    with _valid(url):
        return _to_cluster(url, buckets, replication)


@contextmanager
def _valid(url: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        raise StoreUnavailable(
            f"{without_password(url)} is not a Redis address; set TIDEGATE_REDIS_URL to {ADDRESSES}."
        ) from error


class _ToPrimary(SentinelConnectionPool, BlockingConnectionPool):
    """A pool of connections to the current primary. Callers wait while all connections are busy."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        if inuse_connections:  # at shutdown, not when the primary has changed
            await self.sentinel_manager.aclose()


def _to_primary(url: str, options: dict[str, Any]) -> _ToPrimary:
    """Return a pool for a Sentinel address; raise ValueError if the address is invalid."""
    scheme, _, rest = url.partition(SENTINELS)
    parts = urlsplit(f"//{rest}")
    credentials, at, hosts = parts.netloc.rpartition("@")
    name, _, database = parts.path.removeprefix("/").partition("/")
    if not name or not hosts:
        raise ValueError("a Sentinel address must name the primary")
    given: dict[str, Any] = {**parse_url(f"{scheme}://{credentials}{at}primary/{database or 0}?{parts.query}")}
    secured = given.pop("connection_class", None) is SSLConnection
    del given["host"]
    of_sentinels: dict[str, Any] = {
        member: given.pop(f"sentinel_{member}") for member in ("username", "password") if f"sentinel_{member}" in given
    }
    of_sentinels |= {"socket_timeout": SENTINEL_WAIT_S, "socket_connect_timeout": SENTINEL_WAIT_S}
    if secured:
        of_sentinels |= {"ssl": True} | {member: value for member, value in given.items() if member.startswith("ssl_")}
    addresses = [urlsplit(f"//{host}") for host in hosts.split(",")]
    sentinels = [(address.hostname or "", address.port or SENTINEL_PORT) for address in addresses]
    kind = SentinelManagedSSLConnection if secured else SentinelManagedConnection
    manager = Sentinel(sentinels, sentinel_kwargs=of_sentinels)  # type: ignore[no-untyped-call]
    return _ToPrimary(unquote(name), manager, connection_class=kind, **options | given)  # type: ignore[no-untyped-call]


def _to_cluster(url: str, buckets: int, replication: Replication | None) -> Cluster:
    """Return the servers for the address of a Redis Cluster; raise ValueError if the address is invalid."""
    scheme, _, rest = url.partition(CLUSTER)
    parts = urlsplit(f"//{rest}")
    credentials, at, hosts = parts.netloc.rpartition("@")
    if not hosts or parts.path not in ("", "/", "/0"):  # a Redis Cluster has only the database 0
        raise ValueError("an address of a Redis Cluster must name nodes, and no database")
    given: dict[str, Any] = {**parse_url(f"{scheme}://{credentials}{at}node?{parts.query}")}
    del given["host"]
    return Cluster(hosts, OPTIONS | given, buckets, replication)


async def check(redis: Redis, url: str) -> None:
    """Raise StoreUnavailable if a server cannot be reached, refuses access, or cannot run the functions."""
    with _reachable(url):
        info = await redis.info("server")
    version = str(info["redis_version"])
    in_cluster = "cluster" in (info.get("redis_mode"), info.get("server_mode"))  # the second name is Valkey's
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise StoreUnavailable(
            f"The Redis at {without_password(url)} is version {version}; upgrade it to 7.0 or later."
        )
    if in_cluster and CLUSTER not in url:
        raise StoreUnavailable(
            f"The Redis at {without_password(url)} is a Redis Cluster; set TIDEGATE_REDIS_URL to "
            "redis+cluster://host:port,host:port with the addresses of some nodes."
        )


async def check_all(servers: Servers, url: str) -> None:
    """Check each server, the schema of the state, and the number of buckets of a Redis Cluster.

    Raises:
        StoreUnavailable: If a server is not suitable, if a newer version has used the store, or if the coordinators of
            a Redis Cluster use another number of buckets.
    """
    with _reachable(url):
        each = await servers.all()
    for server in each:
        await check(server.redis, url)
    await _check_schema(servers, url)
    if CLUSTER in url:
        await _check_buckets(servers, url)


async def _check_schema(servers: Servers, url: str) -> None:
    with _reachable(url):
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
    with _reachable(url):
        await servers.at(BUCKETS, lambda server: server.execute(("SET", BUCKETS, buckets, "NX")))
        stored = int(await servers.at(BUCKETS, lambda server: server.execute(("GET", BUCKETS))))
    if stored != buckets:
        raise StoreUnavailable(
            f"The Redis Cluster at {without_password(url)} has its jobs in {stored} buckets, but TIDEGATE_BUCKETS is "
            f"{buckets}; set TIDEGATE_BUCKETS to {stored}. The number cannot change while the cluster has jobs."
        )


@contextmanager
def _reachable(url: str) -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        raise StoreUnavailable(
            f"Cannot use the Redis at {without_password(url)}: {str(error).rstrip('.') or type(error).__name__}. "
            "Start Redis, or correct TIDEGATE_REDIS_URL; without TIDEGATE_REDIS_URL, Tidegate uses an embedded Valkey."
        ) from error


def without_password(url: str) -> str:
    """Return the address without user, password and parameters, for logs."""
    scheme, colon, rest = url.partition("://")
    if not colon:
        return "the given address"
    place = rest.partition("?")[0].rpartition("@")[2]
    return f"{scheme}://{place}"


def is_failed_function(error: Exception) -> bool:
    """Return whether the function itself failed, so that a repeated call would fail again.

    Errors of the server are subclasses of ``ResponseError``, or their texts start with a known code.
    """
    return type(error) is ResponseError and not str(error).startswith(("BUSY ", *READ_ONLY))


def is_full(error: Exception) -> bool:
    """Return whether the server refuses writes because it has reached ``maxmemory``."""
    return isinstance(error, OutOfMemoryError)


def is_read_only(error: Exception) -> bool:
    """Return whether the server refuses writes because it is a replica, lacks replicas, or cannot write to its disk."""
    return isinstance(error, ReadOnlyError) or str(error).startswith(READ_ONLY)
