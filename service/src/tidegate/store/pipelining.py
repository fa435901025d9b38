"""A connection on which calls share round trips. Calls that arrive during a round trip belong to the next one.

A round trip costs the application and the server more than a short function does.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import RedisError, ResponseError

MAX_CALLS = 256
"""Maximum number of calls in one round trip. It limits the time until the first answer."""


@dataclass(frozen=True, slots=True)
class Replication:
    """The number of replicas that must have a change before it is answered, and the time to wait for them."""

    min_replicas: int
    timeout_ms: int


class NotReplicated(RedisError):
    """Raised when a change was applied, and too few replicas have confirmed it in time."""


Words = tuple[str | bytes | int, ...]
"""A command of Redis and its arguments."""


class _Call:
    """A command whose words are computed when it is sent."""

    def __init__(self, words: Callable[[], Words]) -> None:
        self._words = words
        self.packed = b""
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def pack(self) -> bool:
        """Compute the words, and return whether that succeeded. An error is the answer to this call only."""
        try:
            self.packed = hiredis.pack_command(self._words())  # type: ignore[arg-type]  # declared for one argument
        except Exception as error:  # noqa: BLE001  # the caller gets it
            self.answer.set_exception(error)
            return False
        return True


class Pipelining:
    """One connection of a pool at a time, shared by all callers.

    Reconnects and retries follow the settings of the pool, as for single calls. After a lost connection, a
    retry repeats calls that the server may already have executed.

    With ``replication``, each round trip ends with one WAIT. The calls of a round trip that too few replicas have
    confirmed fail with :class:`NotReplicated`.
    """

    def __init__(self, pool: ConnectionPool, replication: Replication | None = None) -> None:
        self._pool, self._replication = pool, replication
        self._waiting: list[_Call] = []
        self._sending: asyncio.Task[None] | None = None

    async def call(self, words: Callable[[], Words]) -> Any:
        """Send a command with the next round trip, and return its answer.

        ``words`` returns the command. It is called once, when the round trip begins.

        Raises:
            RedisError: If the server refuses the command, or does not answer.
        """
        call = _Call(words)
        self._waiting.append(call)
        if self._sending is None:
            # An empty context, because the logs and traces of this caller do not apply to the other callers.
            self._sending = asyncio.create_task(self._send(), name="pipelining", context=Context())
        return await call.answer

    async def _send(self) -> None:
        try:
            while self._waiting:
                calls, self._waiting = self._waiting[:MAX_CALLS], self._waiting[MAX_CALLS:]
                await self._round_trip([call for call in calls if not call.answer.done() and call.pack()])
        finally:
            self._sending = None

    async def _round_trip(self, calls: list[_Call]) -> None:
        """Answer each call. If the connection fails, the calls without an answer fail with its error.

        Calls that have arrived in the meantime fail, too: each would wait for the same server once more.
        """
        try:
            connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
            try:
                await connection.retry.call_with_retry(
                    lambda: _exchange(connection, calls, self._replication), lambda error: connection.disconnect()
                )
            finally:
                await self._pool.release(connection)
        except BaseException as error:
            failed, self._waiting = calls + self._waiting, []
            for call in _unanswered(failed):
                call.answer.set_exception(error)
            if not isinstance(error, RedisError | OSError):
                raise


def _unanswered(calls: list[_Call]) -> list[_Call]:
    """Return the calls without an answer, except those whose callers were cancelled."""
    return [call for call in calls if not call.answer.done()]


async def _exchange(connection: AbstractConnection, calls: list[_Call], replication: Replication | None) -> None:
    """Send the calls without an answer, and read their answers."""
    sent = _unanswered(calls)
    packed = [call.packed for call in sent]
    if replication is not None and sent:
        packed.append(hiredis.pack_command(("WAIT", replication.min_replicas, replication.timeout_ms)))  # type: ignore[arg-type]  # as above
    await connection.send_packed_command(packed)
    if replication is None:
        for call in sent:
            _answer(call, await _read(connection))
        return
    answers = [await _read(connection) for _ in sent]
    lacking = _lacking(await _read(connection), replication) if sent else None
    for call, answer in zip(sent, answers, strict=True):
        _answer(call, answer if isinstance(answer, ResponseError) or lacking is None else lacking)


async def _read(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _lacking(confirmed: Any, replication: Replication) -> RedisError | None:
    """Return the error for a round trip that too few replicas have confirmed."""
    if isinstance(confirmed, ResponseError):
        return confirmed
    if confirmed >= replication.min_replicas:
        return None
    return NotReplicated(
        f"{confirmed} of {replication.min_replicas} replicas confirmed the change within {replication.timeout_ms} ms"
    )


def _answer(call: _Call, answer: Any) -> None:
    if call.answer.done():  # the caller was cancelled during the round trip
        return
    if isinstance(answer, RedisError):
        call.answer.set_exception(answer)
    else:
        call.answer.set_result(answer)
