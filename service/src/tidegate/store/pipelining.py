"""A connection on which calls share round trips: calls that arrive during a round trip are sent with the next one.

A round trip costs the application and the server more than a short script does.
"""

import asyncio
from contextvars import Context
from dataclasses import dataclass
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import RedisError, ResponseError

MAX_CALLS = 256
"""Maximum number of calls in one round trip. It limits the time until the first answer."""


@dataclass(frozen=True, slots=True)
class _Call:
    command: bytes
    answer: "asyncio.Future[Any]"


class Pipelining:
    """One connection of a pool at a time, shared by all callers.

    Reconnects and retries follow the settings of the pool, as for single calls. A call that the server may already have
    executed is repeated after a lost connection.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._waiting: list[_Call] = []
        self._sending: asyncio.Task[None] | None = None

    async def call(self, *command: str | int) -> Any:
        """Send a command with the next round trip, and return its answer.

        Raises:
            RedisError: If the server refuses the command, or does not answer.
        """
        answer = asyncio.get_running_loop().create_future()
        packed = hiredis.pack_command(command)  # type: ignore[arg-type]  # declared for a single argument
        self._waiting.append(_Call(packed, answer))
        if self._sending is None:
            # Without the context of this caller: its logs and traces are not those of the other callers.
            self._sending = asyncio.create_task(self._send(), name="pipelining", context=Context())
        return await answer

    async def _send(self) -> None:
        try:
            while self._waiting:
                calls, self._waiting = self._waiting[:MAX_CALLS], self._waiting[MAX_CALLS:]
                await self._round_trip([call for call in calls if not call.answer.done()])
        finally:
            self._sending = None

    async def _round_trip(self, calls: list[_Call]) -> None:
        """Answer each call; a connection that fails answers those that have no answer yet with its error."""
        try:
            connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
            try:
                await connection.retry.call_with_retry(
                    lambda: _exchange(connection, calls), lambda error: connection.disconnect()
                )
            finally:
                await self._pool.release(connection)
        except (RedisError, OSError) as error:
            _fail(calls, error)
        except BaseException as error:
            _fail(calls, error)
            raise


async def _exchange(connection: AbstractConnection, calls: list[_Call]) -> None:
    """Send the calls that have no answer yet, and read their answers."""
    unanswered = [call for call in calls if not call.answer.done()]
    await connection.send_packed_command([call.command for call in unanswered])
    for call in unanswered:
        try:
            answer = await connection.read_response()
        except ResponseError as error:
            if not call.answer.done():
                call.answer.set_exception(error)
            continue
        if not call.answer.done():  # the caller may have been cancelled
            call.answer.set_result(answer)


def _fail(calls: list[_Call], error: BaseException) -> None:
    for call in calls:
        if not call.answer.done():
            call.answer.set_exception(error)
