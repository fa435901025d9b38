"""A Redis Cluster: the primaries, and the routing of calls to the primary that has the slot of a key.

The client of redis-py for clusters does not suit function calls. It follows ASK, so it would run a function on a node
that has only some keys of a slot, and it raises an error when all connections are busy. This module sends no ASKING.
While a slot moves to another node, calls for the slot wait, with a bound.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, RedisError, TryAgainError
from redis.exceptions import ConnectionError as NotReachable
from redis.exceptions import TimeoutError as NoReply

from tidegate.store.keyspace import Bucket, Keyspace
from tidegate.store.pipelining import Replication
from tidegate.store.servers import Answer, Command, Server, Servers, reporting_losses

PATIENCE_S = 3.0
"""Longest time for which a call waits for a slot that moves to another node or has no primary."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.2
PORT = 6379
REDIRECTED = (MovedError, AskError, TryAgainError, ClusterDownError)
"""Errors of a node that has not run the command, because it does not have all keys of the slot."""

Address = tuple[str, int]


class _Patience:
    """Growing pauses between attempts, up to a limit of time."""

    def __init__(self, limit_s: float) -> None:
        self._deadline, self._pause_s = time.monotonic() + limit_s, FIRST_PAUSE_S

    async def pause(self) -> bool:
        """Wait before the next attempt; return False without a wait if the time is over."""
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            return False
        await asyncio.sleep(min(left_s, self._pause_s * random.uniform(0.5, 1)))  # noqa: S311
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)
        return True


class Cluster(Servers):
    """The primaries of a Redis Cluster.

    Args:
        hosts: Addresses of some nodes, ``host:port``, separated by commas.
        options: Options of all connections.
        buckets: Number of buckets.
        replication: See :class:`~tidegate.store.pipelining.Replication`.
    """

    def __init__(self, hosts: str, options: dict[str, Any], buckets: int, replication: Replication | None) -> None:
        self.keys, self.replication = Keyspace(buckets), replication
        self._seeds = [_address(host) for host in hosts.split(",")]
        # A repeated attempt at the same node is useful only if the node has closed an idle connection.
        self._options = options | {"retry": Retry(NoBackoff(), 1)}
        self._servers: dict[Address, Server] = {}
        self._owners: dict[int, Address] = {}
        self._suspects: set[Address] = set()
        self._is_current = False
        self._refreshing = asyncio.Lock()

    async def at(self, key: str, do: Callable[[Server], Awaitable[Answer]]) -> Answer:
        """Return the result of ``do`` for the primary that has a key."""
        slot, patience = key_slot(key.encode()), _Patience(PATIENCE_S)
        while True:
            address = await self._owner(slot)
            try:
                return await do(self._server(address))
            except REDIRECTED as error:
                self._learn(slot, address, error)
                if not await patience.pause():
                    raise
            except (NotReachable, NoReply, OSError):
                self._suspect(address)
                raise

    async def each(self, commands: Sequence[Command], patience_s: float | None = None) -> list[Any]:
        """Run commands in one round trip to each primary."""
        answers: list[Any] = [None] * len(commands)
        slots = [key_slot(key.encode()) for key, _ in commands]
        left, patience = [*range(len(commands))], _Patience(PATIENCE_S if patience_s is None else patience_s)
        while True:
            places: dict[Address, list[int]] = {}
            for place in left:
                try:
                    places.setdefault(await self._owner(slots[place]), []).append(place)
                except RedisError as error:
                    answers[place] = error
            found = await asyncio.gather(
                *(self._execute(address, [commands[place] for place in of]) for address, of in places.items())
            )
            left = []
            for (address, of), part in zip(places.items(), found, strict=True):
                for place, answer in zip(of, part, strict=True):
                    answers[place] = answer
                    if isinstance(answer, REDIRECTED):
                        self._learn(slots[place], address, answer)
                        left.append(place)
            if not left or not await patience.pause():
                return answers

    def any(self) -> Server:
        """Return any primary that the store knows. A node that failed is the last choice."""
        known = set(self._owners.values()) or set(self._seeds)
        return self._server(random.choice([*(known - self._suspects or known)]))  # noqa: S311

    async def all(self) -> list[Server]:
        """Return all primaries.

        Raises:
            RedisError: If no node answers.
        """
        await self.refresh()
        return [self._server(address) for address in sorted(set(self._owners.values()))]

    def server_of(self, bucket: Bucket) -> str:
        """Return the address of the primary that has a bucket; "" if it is unknown."""
        address = self._owners.get(key_slot(bucket.sweeps.encode()))
        return "" if address is None else _name(address)

    async def refresh(self) -> None:
        """Read from any node which primary has which slots.

        Raises:
            RedisError: If no node answers.
        """
        candidates = dict.fromkeys([*set(self._owners.values()), *self._seeds])
        error: Exception = NotReachable("no node of the Redis Cluster is known")
        for address in sorted(candidates, key=lambda candidate: candidate in self._suspects):
            try:
                found = await self._server(address).redis.execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]
            except (RedisError, OSError) as failure:
                self._suspects.add(address)
                error = failure
                continue
            self._owners = _owners(found, address)
            self._suspects.clear()
            self._is_current = True
            return
        raise error if isinstance(error, RedisError) else NotReachable(str(error))

    async def aclose(self) -> None:
        """Close all connections."""
        for server in self._servers.values():
            await server.redis.aclose()

    async def _execute(self, address: Address, commands: list[Command]) -> list[Any]:
        """Run commands on a node. If the node does not answer, return its error for each command."""
        try:
            return await self._server(address).execute_all([words for _, words in commands])
        except (NotReachable, NoReply, OSError) as error:
            self._suspect(address)
            return [error if isinstance(error, RedisError) else NotReachable(str(error))] * len(commands)
        except RedisError as error:
            return [error] * len(commands)

    async def _owner(self, slot: int) -> Address:
        """Return the primary of a slot."""
        if not self._is_current:
            async with self._refreshing:
                if not self._is_current:
                    await self.refresh()
        try:
            return self._owners[slot]
        except KeyError:
            self._is_current = False
            raise ClusterDownError(f"the Redis Cluster has no primary for slot {slot}") from None

    def _learn(self, slot: int, asked: Address, error: RedisError) -> None:
        """Note the new primary of a slot that has moved."""
        if isinstance(error, MovedError):
            self._owners[slot] = (error.host or asked[0], error.port)
        elif isinstance(error, ClusterDownError):
            self._suspect(asked)  # the node may be cut off from the others, and know only old primaries

    def _suspect(self, address: Address) -> None:
        """Ask other nodes for the primaries before the next call, because a node has failed."""
        self._suspects.add(address)
        self._is_current = False

    def _server(self, address: Address) -> Server:
        server = self._servers.get(address)
        if server is None:
            pool = BlockingConnectionPool(host=address[0], port=address[1], **self._options)
            server = self._servers[address] = Server(
                Redis.from_pool(reporting_losses(pool)), self.replication, _name(address)
            )
        return server


def _address(host: str) -> Address:
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError("an address of a Redis Cluster must name a node")
    return parts.hostname, parts.port or PORT


def _name(address: Address) -> str:
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"


def _owners(slots: Any, asked: Address) -> dict[int, Address]:
    """Return the primary of each slot, from the answer of a node to ``CLUSTER SLOTS``."""
    owners: dict[int, Address] = {}
    for first, last, (host, port, *_), *_ in slots:
        # A node that does not know its own address, or its own name, leaves it out.
        address = (str(host) if host and host != "?" else asked[0], int(port))
        owners |= dict.fromkeys(range(int(first), int(last) + 1), address)
    return owners
