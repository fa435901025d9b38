"""A connection on which calls share round trips. Calls that arrive during a round trip belong to the next one.

A round trip costs the application and the server more than a short function does.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any

import hiredis
from msgspec import msgpack
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import AskError, MovedError, RedisError, ResponseError, TryAgainError

from tidegate.store.library import library

MAX_CALLS = 256
"""Maximum number of calls in one round trip. It limits the time until the first answer."""


@dataclass(frozen=True, slots=True)
class Replication:
    """The number of replicas that must have what an answer shows, and the time to wait for them."""

    min_replicas: int
    timeout_ms: int


class NotReplicated(RedisError):
    """Raised when a call was executed, and too few replicas have confirmed in time what its answer shows."""


Words = tuple[str | bytes | int, ...]
"""A command of Redis and its arguments."""
Keys = tuple[str, ...]
"""The keys of the function calls for a job."""
NO_ARGUMENTS = msgpack.encode({})


class _Pending:
    """A command on a job with these keys, whose words are computed when it is sent."""

    def __init__(self, keys: Keys, words: Callable[[], Words]) -> None:
        self.keys, self._words = keys, words
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
    retry repeats calls that the server may already have executed; see :data:`tidegate.store.library.ACTIONS`.

    With ``replication``, each round trip ends with a call of ``confirm`` and one WAIT. Replicas then have all that the
    answers show, also the changes of other connections. Otherwise, the calls fail with :class:`NotReplicated`.
    """

    def __init__(self, pool: ConnectionPool, replication: Replication | None = None) -> None:
        self._pool, self._replication = pool, replication
        self._waiting: list[_Pending] = []
        self._sending: asyncio.Task[None] | None = None

    async def call(self, keys: Keys, words: Callable[[], Words]) -> Any:
        """Send a command with the next round trip, and return its answer.

        ``words`` returns a command on the job with these keys. It is called once, when the round trip begins.

        Raises:
            RedisError: If the server refuses the command, or does not answer.
        """
        call = _Pending(keys, words)
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

    async def _round_trip(self, calls: list[_Pending]) -> None:
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


def _unanswered(calls: list[_Pending]) -> list[_Pending]:
    """Return the calls without an answer, except those whose callers were cancelled."""
    return [call for call in calls if not call.answer.done()]


async def _exchange(connection: AbstractConnection, calls: list[_Pending], replication: Replication | None) -> None:
    """Send the calls without an answer, and read their answers."""
    sent = _unanswered(calls)
    packed = [call.packed for call in sent]
    if replication is not None and sent:
        for words in _confirmation(sent[-1].keys, replication):
            packed.append(hiredis.pack_command(words))  # type: ignore[arg-type]  # as above
    await connection.send_packed_command(packed)
    if replication is None:
        for call in sent:
            _answer(call, await _read(connection))
        return
    answers = [await _read(connection) for _ in sent]
    lacking = _lacking(await _read(connection), await _read(connection), replication) if sent else None
    for call, answer in zip(sent, answers, strict=True):
        _answer(call, answer if isinstance(answer, ResponseError) or lacking is None else lacking)


async def _read(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _confirmation(keys: Keys, replication: Replication) -> tuple[Words, Words]:
    """Return the end of a round trip.

    Since Redis 7.2, WAIT waits for the last write of its own connection only. ``confirm`` writes, so WAIT also waits
    for the earlier writes of all other connections.
    """
    confirm: Words = ("FCALL", library().function("confirm"), len(keys), *keys, NO_ARGUMENTS)
    return confirm, ("WAIT", replication.min_replicas, replication.timeout_ms)


def _lacking(written: Any, confirmed: Any, replication: Replication) -> RedisError | None:
    """Return the error for a round trip that too few replicas have confirmed."""
    if isinstance(written, MovedError | AskError):
        return TryAgainError(f"another call of the round trip was redirected: {written}")
    for answer in (written, confirmed):
        if isinstance(answer, ResponseError):
            return answer
    if confirmed >= replication.min_replicas:
        return None
    return NotReplicated(
        f"{confirmed} of {replication.min_replicas} replicas confirmed the state of the job within "
        f"{replication.timeout_ms} ms"
    )


def _answer(call: _Pending, answer: Any) -> None:
    if call.answer.done():  # the caller was cancelled during the round trip
        return
    if isinstance(answer, RedisError):
        call.answer.set_exception(answer)
    else:
        call.answer.set_result(answer)
