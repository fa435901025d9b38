"""A connection on which calls share round trips. Calls that arrive during a round trip belong to the next one.

A round trip costs the application and the server more than a short function does.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import RedisError, ResponseError

MAX_CALLS = 256
"""Maximum number of calls in one round trip. It limits the time until the first answer."""


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
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
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
                    lambda: _exchange(connection, calls), lambda error: connection.disconnect()
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


async def _exchange(connection: AbstractConnection, calls: list[_Call]) -> None:
    """Send the calls without an answer, and read their answers."""
    sent = _unanswered(calls)
    await connection.send_packed_command([call.packed for call in sent])
    for call in sent:
        answer: Any
        try:
            answer = await connection.read_response()
        except ResponseError as error:
            answer = error
        if call.answer.done():  # the caller was cancelled during the round trip
            continue
        if isinstance(answer, ResponseError):
            call.answer.set_exception(answer)
        else:
            call.answer.set_result(answer)
