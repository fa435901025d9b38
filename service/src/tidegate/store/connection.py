"""The way to Redis: which server, and whether it will do.

Any Redis from 7.0 on or Valkey, over TCP (``redis://``), TLS (``rediss://``) or a unix socket (``unix://``).
"""

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import RedisError, ResponseError

OLDEST = (7, 0)
CONNECTIONS = 64
WAIT_S = 5


class StoreUnavailable(Exception):
    """The store cannot be used; the message says which and why, and holds no password."""


def connect(url: str) -> Redis:
    """A client on a pool that makes its callers wait rather than fail when all connections are busy.

    :raises StoreUnavailable: for an address that is none.
    """
    try:
        pool: BlockingConnectionPool = BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=WAIT_S,
            decode_responses=True,
            socket_timeout=WAIT_S,
            socket_connect_timeout=WAIT_S,
            health_check_interval=15,
        )
    except (ValueError, TypeError) as error:
        raise StoreUnavailable(
            f"{without_password(url)} is no Redis address; "
            "TIDEGATE_REDIS_URL takes redis://host:port/0, rediss://... or unix:///path/to.sock."
        ) from error
    return Redis.from_pool(pool)


async def check(redis: Redis, url: str) -> None:
    """:raises StoreUnavailable: when the server cannot be reached, refuses, or is too old for the scripts."""
    try:
        info = await redis.info("server")
    except (RedisError, OSError) as error:
        raise StoreUnavailable(
            f"Cannot use the Redis at {without_password(url)}: {str(error).rstrip('.') or type(error).__name__}. "
            "Start it, or correct TIDEGATE_REDIS_URL (unset, an embedded Valkey is used)."
        ) from error
    version = str(info["redis_version"])
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise StoreUnavailable(
            f"The Redis at {without_password(url)} is version {version}; Tidegate needs 7.0 or later."
        )


def without_password(url: str) -> str:
    """The address without user, password and parameters, fit for a log."""
    scheme, colon, rest = url.partition("://")
    if not colon:
        return "the given address"
    place = rest.partition("?")[0].rpartition("@")[2]
    return f"{scheme}://{place}"


def is_failed_script(error: Exception) -> bool:
    """Whether it is a script that failed, by itself, and would again; rather than the server, at this moment.

    Errors of the server are subclasses, but for that of one which has been at some other script for long.
    """
    return type(error) is ResponseError and not str(error).startswith("BUSY ")
