"""The servers of a store: one Redis, or the primaries of a Redis Cluster."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import RedisError, ResponseError

from tidegate.store.keyspace import ONE_SERVER, Bucket, Keyspace
from tidegate.store.library import library
from tidegate.store.pipelining import Keys, Pipelining, Replication, Words

Answer = TypeVar("Answer")
Command = tuple[str, Words]
"""A key, and a command on the server of that key."""


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


def reporting_losses(pool: BlockingConnectionPool) -> BlockingConnectionPool:
    """Return the pool, whose connections raise an error of Redis if they are lost."""
    pool.connection_class = type("Connection", (_ReportsLoss, pool.connection_class), {})
    return pool


class Server:
    """A Redis server. It loads the functions into the server when they are missing there.

    Changes share the round trips of one connection. Other commands use connections of their own, so that a long read
    does not delay changes by other callers. With ``replication``, reads share the round trips of a second
    connection, so that they do not use up the connections while they wait for replicas.
    """

    def __init__(self, redis: Redis, replication: Replication | None = None, name: str = "") -> None:
        self.redis, self.name = redis, name
        self._changes = Pipelining(redis.connection_pool, replication)
        self._reads = Pipelining(redis.connection_pool, replication) if replication is not None else None

    async def change(self, keys: Keys, words: Callable[[], Words]) -> Any:
        """Run a function that may change a job. ``words`` is called when the function is sent.

        Raises:
            NotReplicated: If too few replicas have what the answer shows.
        """
        return await self._loaded(lambda: self._changes.call(keys, words))

    async def read(self, keys: Keys, words: Words) -> Any:
        """Run a command or a function that reads a job.

        Raises:
            NotReplicated: If too few replicas have what the answer shows.
        """
        reads = self._reads
        if reads is None:
            return await self.execute(words)
        return await self._loaded(lambda: reads.call(keys, lambda: words))

    async def execute(self, words: Words) -> Any:
        """Run a command or a function, without waiting for replicas."""

        async def send() -> Any:
            return await self.redis.execute_command(*words)  # type: ignore[no-untyped-call]

        return await self._loaded(send)

    async def execute_all(self, commands: Sequence[Words]) -> list[Any]:
        """Run commands in one round trip, without waiting for replicas.

        Returns:
            The answers, and errors in place of failed answers.
        """

        async def send() -> list[Any]:
            pipeline = self.redis.pipeline(transaction=False)
            for words in commands:
                pipeline.execute_command(*words)
            answers: list[Any] = await pipeline.execute(raise_on_error=False)
            for answer in answers:
                if _is_missing(answer):
                    raise answer
            return answers

        return await self._loaded(send)

    async def _loaded(self, send: Callable[[], Awaitable[Answer]]) -> Answer:
        """Send calls. If the server does not have the library, load it and send them again."""
        try:
            return await send()
        except ResponseError as error:
            if not _is_missing(error):
                raise
        await self.redis.function_load(library().text, replace=True)
        return await send()


def _is_missing(answer: object) -> bool:
    """Return whether the server does not have the library, for instance because it is new or was emptied."""
    return isinstance(answer, ResponseError) and str(answer) == "Function not found"


class Servers(ABC):
    """The servers of a store, each of which has the keys of some buckets.

    Attributes:
        keys: The names of all keys.
        replication: Replicas that must have what an answer shows; None to wait for no replica.
    """

    keys: Keyspace
    replication: Replication | None

    @abstractmethod
    async def at(self, key: str, do: Callable[[Server], Awaitable[Answer]]) -> Answer:
        """Return the result of ``do`` for the server that has a key. ``do`` may be called several times.

        Raises:
            RedisError: If the server refuses the call or does not answer.
        """

    @abstractmethod
    async def each(self, commands: Sequence[Command], patience_s: float | None = None) -> list[Any]:
        """Run commands in one round trip to each server, in any order, without waiting for replicas.

        Args:
            commands: The commands with their keys.
            patience_s: Longest time to wait for keys that move to another server. None: the default.

        Returns:
            The answers in the order of the commands, and errors in place of failed answers.
        """

    async def read_each(self, reads: Sequence[tuple[Keys, Words]]) -> list[Any]:
        """Run commands that read jobs with these keys; see :meth:`Server.read`.

        Returns:
            The answers in the order of the commands, and errors in place of failed answers.
        """
        if self.replication is None:
            return await self.each([(keys[0], words) for keys, words in reads])
        return await asyncio.gather(
            *(self.at(keys[0], partial(Server.read, keys=keys, words=words)) for keys, words in reads),
            return_exceptions=True,
        )

    @abstractmethod
    def any(self) -> Server:
        """Return a server: the only one, or any primary that the store knows."""

    @abstractmethod
    async def all(self) -> list[Server]:
        """Return all servers."""

    @abstractmethod
    def server_of(self, bucket: Bucket) -> str:
        """Return the address of the server that has a bucket; "" if it is the only server or unknown."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close all connections."""


class OneServer(Servers):
    """A single server, or the current primary of replicas."""

    def __init__(self, redis: Redis, replication: Replication | None = None) -> None:
        self.keys, self.replication = ONE_SERVER, replication
        self._server = Server(redis, replication)

    async def at(self, key: str, do: Callable[[Server], Awaitable[Answer]]) -> Answer:
        """Return the result of ``do`` for the server."""
        return await do(self._server)

    async def each(self, commands: Sequence[Command], patience_s: float | None = None) -> list[Any]:
        """Run commands in one round trip; raise RedisError if the server does not answer."""
        return await self._server.execute_all([words for _, words in commands])

    def any(self) -> Server:
        """Return the server."""
        return self._server

    async def all(self) -> list[Server]:
        """Return the server."""
        return [self._server]

    def server_of(self, bucket: Bucket) -> str:
        """Return an empty name."""
        return ""

    async def aclose(self) -> None:
        """Close all connections."""
        await self._server.redis.aclose()


def raise_first(answers: Sequence[Any]) -> None:
    """Raise the first error among answers."""
    for answer in answers:
        if isinstance(answer, RedisError | OSError):
            raise answer
