"""The connection to Redis.

The server is Redis 7.0 or later, or Valkey. The connection uses TCP (``redis://``), TLS (``rediss://``) or a Unix
socket (``unix://``). With ``redis+sentinel://`` or ``rediss+sentinel://``, Sentinels name the primary. With
``redis+cluster://`` or ``rediss+cluster://``, the store is a Redis Cluster.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.connection import Connection, SSLConnection, parse_url
from redis.asyncio.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.exceptions import OutOfMemoryError, ReadOnlyError, RedisError, ResponseError

from tidegate.store.cluster import Cluster
from tidegate.store.pipelining import Replication
from tidegate.store.servers import OneServer, Servers, reporting_losses

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
    "redis://user:password@host:port/0, rediss://..., unix:///path/to.sock, "
    "redis+sentinel://host:port,host:port/name-of-primary/0, or redis+cluster://host:port,host:port"
)
PARAMETERS = (
    "client_name",
    "db",
    "health_check_interval",
    "max_connections",
    "password",
    "protocol",
    "socket_connect_timeout",
    "socket_keepalive",
    "socket_timeout",
    "timeout",
    "username",
)
"""Parameters of every address. The other options of redis-py would change how this package uses the connection."""
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
TLS_PARAMETERS = (*TLS_FILES, "ssl_ca_path", "ssl_cert_reqs", "ssl_check_hostname", "ssl_ciphers", "ssl_password")
SENTINEL_PARAMETERS = ("sentinel_password", "sentinel_username")


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
    # Redis 7.0 has no CLIENT SETINFO, so an ACL that every supported server loads cannot allow it.
    "driver_info": None,
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
            pool = BlockingConnectionPool(**OPTIONS | _options(url))
        _check_options(pool)
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


async def replicas(redis: Redis) -> list[tuple[str, Redis]]:
    """Return the addresses and clients of the replicas that Sentinels name, which the caller closes; none otherwise."""
    pool = redis.connection_pool
    return await pool.replicas() if isinstance(pool, _ToPrimary) else []


class _InvalidAddress(ValueError):
    """Raised for an invalid part of an address. The message has no password."""


@contextmanager
def _valid(url: str) -> Iterator[None]:
    """Raise StoreUnavailable in place of the errors of an invalid address, which may contain a part of a password."""
    try:
        yield
    except _InvalidAddress as error:
        raise StoreUnavailable(
            f"{without_password(url)} is not a Redis address, because {error}; correct TIDEGATE_REDIS_URL."
        ) from error
    except (ValueError, TypeError, RedisError) as error:
        raise StoreUnavailable(
            f"{without_password(url)} is not a Redis address; set TIDEGATE_REDIS_URL to {ADDRESSES}, with special "
            "characters in the password percent-encoded."
        ) from error


def _options(url: str, *others: str) -> dict[str, Any]:
    """Return the options in the address of a server; raise ValueError if it is invalid.

    Args:
        url: Address of a server.
        others: Names of further parameters that the address may have.
    """
    parts = urlsplit(url)
    known = (*PARAMETERS, *others, *(TLS_PARAMETERS if parts.scheme == "rediss" else ()))
    for name, values in parse_qs(parts.query, keep_blank_values=True).items():
        if name not in known:
            raise _InvalidAddress(f"it has the parameter {name}; expected any of {', '.join(sorted(known))}")
        if name in TLS_FILES and not os.access(values[0], os.R_OK):
            raise _InvalidAddress(f"the file {values[0]} of its parameter {name} cannot be read")
        try:
            parse_url(f"redis://host?{urlencode({name: values[0]})}")
        except ValueError:
            raise _InvalidAddress(f"its parameter {name} has an invalid value") from None
    database = parts.path.removeprefix("/")
    if parts.scheme != "unix" and database and not database.isdecimal():
        if "@" in database:  # a slash in the password, which must not be shown
            raise ValueError("the path of an address has an @")
        raise _InvalidAddress(f"its database is {database}; expected a number")
    return {**parse_url(url)}


def _check_options(pool: ConnectionPool) -> None:
    """Raise ValueError, TypeError or RedisError if an option of a pool's connections has an invalid value."""
    pool.make_connection()  # type: ignore[no-untyped-call]  # it would connect at its first command


class _ToPrimary(SentinelConnectionPool, BlockingConnectionPool):
    """A pool of connections to the current primary. Callers wait while all connections are busy."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        if inuse_connections:  # at shutdown, not when the primary has changed
            await self.sentinel_manager.aclose()

    async def replicas(self) -> list[tuple[str, Redis]]:
        """Return the addresses and clients of the replicas that the Sentinels name."""
        kind = SSLConnection if issubclass(self.connection_class, SSLConnection) else Connection
        options = {name: value for name, value in self.connection_kwargs.items() if name != "connection_pool"}
        return [
            (f"{host}:{port}", Redis.from_pool(ConnectionPool(kind, host=host, port=port, **options)))
            for host, port in await self.sentinel_manager.discover_slaves(self.service_name)
        ]


def _to_primary(url: str, options: dict[str, Any]) -> _ToPrimary:
    """Return a pool for a Sentinel address; raise ValueError if the address is invalid."""
    scheme, _, rest = url.partition(SENTINELS)
    parts = urlsplit(f"//{rest}")
    credentials, at, hosts = parts.netloc.rpartition("@")
    name, _, database = parts.path.removeprefix("/").partition("/")
    if not name or not hosts:
        raise ValueError("a Sentinel address must name the primary")
    given = _options(f"{scheme}://{credentials}{at}primary/{database or 0}?{parts.query}", *SENTINEL_PARAMETERS)
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
    given = _options(f"{scheme}://{credentials}{at}node?{parts.query}")
    del given["host"]
    _check_options(BlockingConnectionPool(**OPTIONS | given))
    return Cluster(hosts, OPTIONS | given, buckets, replication)


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
