"""The connection to Redis, and the check that the server is suitable.

The server is Redis 7.0 or later, or Valkey. The connection uses TCP (``redis://``), TLS (``rediss://``) or a Unix
socket (``unix://``). With ``redis+sentinel://`` or ``rediss+sentinel://``, Sentinels name the primary.
"""

from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, SSLConnection, parse_url
from redis.asyncio.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import OutOfMemoryError, ReadOnlyError, RedisError, ResponseError

OLDEST = (7, 0)
CONNECTIONS = 64
WAIT_S = 5
SENTINEL_WAIT_S = 1
"""Timeout of a request to one Sentinel."""
SENTINEL_PORT = 26379
READ_ONLY = ("MISCONF ", "NOREPLICAS ")
"""Prefixes of errors from a server that accepts no writes. redis-py has no classes for these errors."""
SENTINELS = "+sentinel://"
ADDRESSES = (
    "redis://host:port/0, rediss://..., unix:///path/to.sock, or redis+sentinel://host:port,host:port/name-of-primary/0"
)


class StoreUnavailable(Exception):
    """Raised when the store cannot be used. The message names the store and the reason, without a password."""


def connect(url: str) -> Redis:
    """Return a client whose pool makes callers wait while all connections are busy.

    Raises:
        StoreUnavailable: If the address is invalid.
    """
    options = {
        "max_connections": CONNECTIONS,
        "timeout": WAIT_S,
        "decode_responses": True,
        "socket_timeout": WAIT_S,
        "socket_connect_timeout": WAIT_S,
        "health_check_interval": 15,
    }
    try:
        if SENTINELS in url:
            pool: BlockingConnectionPool = _to_primary(url, options)
        else:
            pool = BlockingConnectionPool.from_url(url, **options)
    except (ValueError, TypeError) as error:
        raise StoreUnavailable(
            f"{without_password(url)} is not a Redis address; set TIDEGATE_REDIS_URL to {ADDRESSES}."
        ) from error
    pool.connection_class = type("Connection", (_ReportsLoss, pool.connection_class), {})
    return Redis.from_pool(pool)


class _ReportsLoss(AbstractConnection):
    """A connection that raises an error of Redis if it was lost before a command is sent.

    uvloop raises RuntimeError in this case, and redis-py does not convert it.
    """

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        """Send a command.

        Raises:
            RedisError: If the connection is lost.
        """
        try:
            await super().send_packed_command(command, check_health)
        except RuntimeError as error:
            if "closed" not in str(error):
                raise
            raise ConnectionLost(f"The connection was lost ({error}).") from error


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


async def check(redis: Redis, url: str) -> None:
    """Raise StoreUnavailable if the server cannot be reached, refuses access, or cannot run the functions."""
    try:
        info = await redis.info("server")
    except (RedisError, OSError) as error:
        raise StoreUnavailable(
            f"Cannot use the Redis at {without_password(url)}: {str(error).rstrip('.') or type(error).__name__}. "
            "Start Redis, or correct TIDEGATE_REDIS_URL; without TIDEGATE_REDIS_URL, Tidegate uses an embedded Valkey."
        ) from error
    version = str(info["redis_version"])
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise StoreUnavailable(
            f"The Redis at {without_password(url)} is version {version}; upgrade it to 7.0 or later."
        )
    if info.get("redis_mode") == "cluster":
        raise StoreUnavailable(
            f"The Redis at {without_password(url)} is a Redis Cluster. A function cannot update two nodes atomically: "
            "use one server, or a primary with replicas and Sentinels."
        )


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
