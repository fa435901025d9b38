"""The calls of the functions in Redis, by the names of their commands."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from msgspec import msgpack
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from tidegate.domain import errors
from tidegate.store.clock import ClockGuard
from tidegate.store.keyspace import JOBS, SWEEPS, job_key
from tidegate.store.library import PREFIX, READS, READS_TOGETHER, TOGETHER, library
from tidegate.store.pipelining import Pipelining, Words

Reply = dict[str, Any]
AroundCommand = Callable[[str], AbstractContextManager[object]]
unobserved: AroundCommand = nullcontext
Answer = TypeVar("Answer")


class Functions:
    """The functions of one Redis, called by the names of their commands.

    ``unattended_after_ms``: see :class:`~tidegate.domain.state.JobState`. ``guard`` rejects times of a Redis clock that
    jumped ahead. ``around`` is called with the name of each command, and returns the context in which the command runs.
    ``clock`` replaces the time of Redis in tests and returns Unix milliseconds.
    """

    def __init__(
        self,
        redis: Redis,
        unattended_after_ms: int | None,
        guard: ClockGuard | None,
        around: AroundCommand,
        clock: Callable[[], int] | None,
    ) -> None:
        self.redis, self.around, self.clock = redis, around, clock
        self.unattended_after_ms, self.guard = unattended_after_ms, guard
        self._pipelining = Pipelining(redis.connection_pool)

    async def run(self, command: str, job: str, now_ms: int | None = None, **arguments: Any) -> Reply:
        """Run a command and return its reply; raise DomainError if the command was refused."""
        with self.around(command):
            return await self.send(command, job, lambda: arguments, now_ms)

    async def send(
        self, command: str, job: str, arguments: Callable[[], Mapping[str, Any]], now_ms: int | None = None
    ) -> Reply:
        """Run a command, and call ``arguments`` when the command is sent. No metric counts the command.

        Raises:
            DomainError: If the command was refused.
        """

        def words() -> Words:
            return _call(command, job, self._argument(command, now_ms, arguments()))

        if command in READS:  # on a separate connection, so that a long read does not delay changes by other callers
            return reply_of(await self._loaded(lambda: self._execute(words())))
        return reply_of(await self._loaded(lambda: self._pipelining.call(words)))

    async def run_together(
        self, name: str, job: str, now_ms: int | None, *commands: tuple[str, Mapping[str, Any]]
    ) -> list[Reply]:
        """Run commands of one job in one call and return their replies; ``name`` is for metrics.

        Raises:
            DomainError: If a command was refused.
        """
        named = [(command, self._argument(command, now_ms, arguments)) for command, arguments in commands]
        together = READS_TOGETHER if all(command in READS for command, _ in commands) else TOGETHER
        call = _call(together, job, *(part for pair in named for part in pair))
        with self.around(name):
            replies = await self._loaded(lambda: self._execute(call))
        return [reply_of(reply) for reply in replies]

    async def run_for_each(self, name: str, command: str, jobs: Collection[str]) -> list[Any]:
        """Run a command without arguments for each job; return the replies, and errors in place of failed replies."""
        argument = self._argument(command, None, {})

        async def send() -> list[Any]:
            pipeline = self.redis.pipeline(transaction=False)
            for job in jobs:
                pipeline.execute_command(*_call(command, job, argument))
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
            for reply in replies:
                if _is_missing(reply):
                    raise reply
            return replies

        with self.around(name):
            return await self._loaded(send)

    def _argument(self, command: str, now_ms: int | None, arguments: Mapping[str, Any]) -> bytes:
        """Return the arguments of a command as MessagePack, without those that are None."""
        if now_ms is None and self.clock is not None:
            now_ms = self.clock()
        given = {
            **arguments,
            "now_ms": now_ms,
            "latest_now_ms": None if self.guard is None else self.guard.latest_ms(),
            # A read changes nothing, so it must not record an outage.
            "unattended_after_ms": None if command in READS else self.unattended_after_ms,
        }
        return msgpack.encode({name: value for name, value in given.items() if value is not None})

    async def _execute(self, words: Words) -> Any:
        return await self.redis.execute_command(*words)  # type: ignore[no-untyped-call]

    async def _loaded(self, send: Callable[[], Awaitable[Answer]]) -> Answer:
        """Send calls. If the server does not have the library, load it and send them again."""
        try:
            return await send()
        except ResponseError as error:
            if not _is_missing(error):
                raise
        await self.redis.function_load(library().text, replace=True)
        return await send()

    async def time_ms(self) -> int:
        """Return the processing time of Redis."""
        if self.clock is not None:
            return self.clock()
        seconds, micros = await self.redis.time()
        return int(seconds) * 1000 + int(micros) // 1000


def _call(command: str, job: str, *arguments: str | bytes) -> Words:
    """Return the words that call the function of a command in Redis."""
    return "FCALL", library().function(command), 3, job_key(job), SWEEPS, JOBS, *arguments


def _is_missing(answer: object) -> bool:
    """Return whether the server does not have the library, for instance because it is new or was emptied."""
    return isinstance(answer, ResponseError) and str(answer) == "Function not found"


async def delete_other_versions(redis: Redis) -> None:
    """Delete the libraries of other versions. A coordinator that still needs one loads it again."""
    for found in await redis.function_list(library=f"{PREFIX}*"):
        name = str(record(found)["library_name"])
        if name != library().name:
            await redis.function_delete(name)


def reply_of(flat: Any) -> Reply:
    """Return a reply as a dictionary; raise DomainError if the command was refused."""
    reply = record(flat)
    if "error" in reply:
        kind = errors.BY_CODE[reply["error"]]
        raise kind(*(_detail(name, reply.get(name)) for name in kind.fields))
    return reply


def record(flat: Any) -> dict[str, Any]:
    """Return a map in a reply as a dictionary. In RESP2, a map is a list of alternating names and values."""
    return flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))


def _detail(name: str, value: Any) -> Any:
    return [member.partition("/")[2] for member in value] if name == "substreams" else value
