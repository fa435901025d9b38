"""The calls of the functions in Redis, by the names of their commands.

A command that visits all substreams of a large job runs in several calls, its *steps* (``lua/steps.lua``). Each
call of a job that another command is changing in steps first runs the remaining steps.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import msgpack
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tidegate.domain import errors
from tidegate.store.clock import ClockGuard
from tidegate.store.library import ACTIONS, PREFIX, READS, READS_TOGETHER, TOGETHER, library
from tidegate.store.pieces import Pieces, combine_reports
from tidegate.store.pipelining import Words
from tidegate.store.servers import Command, Servers

Reply = dict[str, Any]
AroundCommand = Callable[[str], AbstractContextManager[object]]
PROBE_KEPT_MS = 60_000
MAX_PAUSE_S = 0.05
"""Longest pause after a step of a command. The other calls of the job wait for the last step."""
unobserved: AroundCommand = nullcontext


class StepsLost(RedisError):
    """Raised when the record of a command in steps is gone: the job was reset, or Redis has lost its last writes."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state of a server: its address ("" for the only server), its buckets, and the error of a failed check."""

    server: str
    buckets: int
    error: RedisError | None


class Functions:
    """The functions of a store, called by the names of their commands.

    ``unattended_after_ms``: see :class:`~tidegate.domain.job.JobState`. ``sweep_interval_ms`` is the shortest time
    between two sweeps of a job. ``guard`` rejects times of a Redis clock that jumped ahead. ``around`` is called with
    the name of each command, and returns the context in which the command runs. ``clock`` replaces the time of Redis in
    tests and returns Unix milliseconds.
    """

    def __init__(
        self,
        servers: Servers,
        unattended_after_ms: int | None,
        guard: ClockGuard | None,
        around: AroundCommand,
        clock: Callable[[], int] | None,
        sweep_interval_ms: int = 0,
    ) -> None:
        self.servers, self.around, self.clock = servers, around, clock
        self.unattended_after_ms, self.sweep_interval_ms, self.guard = unattended_after_ms, sweep_interval_ms, guard
        self._stepping: dict[tuple[str, str], asyncio.Task[Reply]] = {}

    async def run(
        self, command: str, job: str, now_ms: int | None = None, pieces: Pieces | None = None, **arguments: Any
    ) -> Reply:
        """Run a command and return its reply; ``pieces`` are its columns.

        Raises:
            DomainError: If the command was refused.
            StepsLost: If the command runs in steps, and they were lost.
        """
        with self.around(command):
            if pieces is not None:
                arguments |= await self.columns(job, pieces)
            if command in ACTIONS:
                arguments["call"] = secrets.token_hex(8)
            return await self.send(command, job, lambda: arguments, now_ms)

    async def columns(self, job: str, pieces: Pieces) -> Mapping[str, Any]:
        """Return the columns of a command as its arguments. Store them before, if there are several pieces."""
        if pieces.inline is not None:
            return pieces.inline
        stored = secrets.token_hex(8)
        for number, piece in enumerate(pieces.each):
            await self.send("put", job, partial(dict, stored=stored, number=number, piece=piece))
        return {**pieces.stored, "stored": stored}

    async def run_commit(
        self, command: str, job: str, query: str, now_ms: int | None, pieces: Pieces, **arguments: Any
    ) -> Reply:
        """Run a command that commits the open batch of a query; combine its staged reports if the command requires it.

        Args:
            command: The command.
            job: The job.
            query: The query.
            now_ms: See :meth:`run`.
            pieces: The command's own columns.
            arguments: The other arguments.

        Raises:
            DomainError: If the command was refused.
        """
        reply = await self.run(command, job, now_ms, pieces, **arguments)
        while version := reply.get("join"):
            with self.around("staged"):
                count, kinds = await asyncio.to_thread(combine_reports, await self._staged(job, query))
            combined = pieces.combined_with(version, count, kinds)
            reply = await self.run(command, job, now_ms, combined, **arguments)
        return reply

    async def _staged(self, job: str, query: str) -> Iterable[Mapping[str, Any]]:
        """Return the staged reports of a query. If the version has changed since, they must be combined again."""
        found: dict[int, Mapping[str, Any]] = {}
        cursor = "0"
        while True:
            reply = await self.send("staged", job, partial(dict, query=query, cursor=cursor))
            reports = map(map_of, reply["reports"])
            found |= {report["order"]: report for report in reports}  # a scan can return a report twice
            cursor = reply["cursor"]
            if cursor == "0":
                return found.values()

    async def send(
        self, command: str, job: str, arguments: Callable[[], Mapping[str, Any]], now_ms: int | None = None
    ) -> Reply:
        """Run a command, and call ``arguments`` when the command is sent. No metric counts the command.

        Raises:
            DomainError: If the command was refused.
        """

        def words() -> Words:
            return self._call(command, job, self._argument(command, now_ms, arguments()))

        keys = self.servers.keys.of_call(job)
        if command in READS:
            return await self._to_the_end(
                job, lambda: self.servers.at(keys[0], lambda server: server.read(keys, words()))
            )
        return await self._to_the_end(job, lambda: self.servers.at(keys[0], lambda server: server.change(keys, words)))

    async def run_unconfirmed(self, command: str, job: str) -> Reply:
        """Run a command whose result no client receives, without waiting for replicas.

        Raises:
            DomainError: If the command was refused.
        """
        key, call = self.servers.keys.job_key(job), self._call(command, job, self._argument(command, None, {}))
        with self.around(command):
            return await self._to_the_end(job, lambda: self.servers.at(key, lambda server: server.execute(call)))

    async def _to_the_end(self, job: str, send: Callable[[], Awaitable[Any]]) -> Reply:
        """Send a command, and return its reply after its last step. Repeat it after the steps of another command.

        Raises:
            DomainError: If the command was refused.
            StepsLost: If the steps of the command were lost, so that its outcome is unknown.
        """
        while True:
            reply = map_of(await send())
            steps = reply.get("steps")
            if reply.get("error") == "steps_lost":
                raise StepsLost(f"the columns of a command of the job {job} are lost")
            if steps is None:
                return reply_of(reply)
            if "error" not in reply:
                return await self._last_reply(job, steps)
            await self._wait_for_steps(job, steps)

    async def _wait_for_steps(self, job: str, steps: str) -> None:
        """Run the remaining steps of another command, and ignore its outcome."""
        with suppress(errors.DomainError, StepsLost):
            await self._last_reply(job, steps)

    async def _last_reply(self, job: str, steps: str) -> Reply:
        """Run the remaining steps of a command, together with all callers that wait for it, and return its reply."""
        task = self._stepping.get((job, steps))
        if task is None:
            task = self._stepping[job, steps] = asyncio.create_task(
                self._run_steps(job, steps), name="steps", context=Context()
            )
            task.add_done_callback(lambda ended: self._end_steps(job, steps, ended))
        return await asyncio.shield(task)

    def _end_steps(self, job: str, steps: str, ended: "asyncio.Task[Reply]") -> None:
        del self._stepping[job, steps]
        if not ended.cancelled():
            ended.exception()  # if all callers were cancelled, no other code reads it

    async def _run_steps(self, job: str, steps: str) -> Reply:
        """Run steps, and leave Redis to other calls for as long as each step took."""
        keys, call = self.servers.keys.of_call(job), self._call("resume", job, msgpack.encode({"steps": steps}))
        while True:
            began = time.monotonic()
            reply = map_of(await self.servers.at(keys[0], lambda server: server.change(keys, lambda: call)))
            if reply.get("error") == "steps_lost":
                raise StepsLost(f"the steps {steps} of a command of the job {job} are lost")
            if "steps" not in reply:
                return reply_of(reply)
            await asyncio.sleep(min(time.monotonic() - began, MAX_PAUSE_S))

    async def run_together(
        self, name: str, job: str, now_ms: int | None, *commands: tuple[str, Mapping[str, Any]]
    ) -> list[Reply]:
        """Run commands of one job in one call and return their replies; ``name`` is for metrics.

        Raises:
            DomainError: If a command was refused.
        """
        named = [(command, self._argument(command, now_ms, arguments)) for command, arguments in commands]
        together = READS_TOGETHER if all(command in READS for command, _ in commands) else TOGETHER
        keys, call = (
            self.servers.keys.of_call(job),
            self._call(together, job, *(part for pair in named for part in pair)),
        )
        with self.around(name):
            while True:
                found = await self.servers.at(keys[0], lambda server: server.read(keys, call))
                replies = [*map(map_of, found)]
                if "steps" not in replies[0]:
                    return [reply_of(reply) for reply in replies]
                await self._wait_for_steps(job, replies[0]["steps"])

    async def run_for_each(self, name: str, command: str, jobs: Collection[str]) -> list[Any]:
        """Run a command without arguments for each job; return the replies, and errors in place of failed replies.

        Only reads wait for replicas.
        """
        argument = self._argument(command, None, {})
        calls = [(self.servers.keys.of_call(job), self._call(command, job, argument)) for job in jobs]
        with self.around(name):
            if command in READS:
                return await self.servers.read_each(calls)
            return await self.servers.each([(keys[0], words) for keys, words in calls], patience_s=0)

    def _argument(self, command: str, now_ms: int | None, arguments: Mapping[str, Any]) -> bytes:
        """Return the arguments of a command as MessagePack, without those that are None."""
        if now_ms is None and self.clock is not None:
            now_ms = self.clock()
        given = {
            **arguments,
            "now_ms": now_ms,
            "unscheduled": None if now_ms is None else True,  # a test's clock is not that of the sweeper
            "latest_now_ms": None if self.guard is None else self.guard.latest_ms(),
        }
        if command not in READS:  # a read changes nothing, so it must not end unattended time
            given |= {"unattended_after_ms": self.unattended_after_ms, "sweep_interval_ms": self.sweep_interval_ms}
        return msgpack.encode({name: value for name, value in given.items() if value is not None})

    def _call(self, command: str, job: str, *arguments: str | bytes) -> Words:
        """Return the words that call the function of a command in Redis."""
        return _call(command, self.servers.keys.of_call(job), *arguments)

    async def check_each(self) -> list[RedisError | None]:
        """Return, for each bucket, the error of a server that does not run functions or accept writes."""
        buckets, argument = self.servers.keys.buckets, self._argument("status", None, {})
        calls: list[Command] = [(bucket.probe, _call("status", bucket.of_no_job, argument)) for bucket in buckets]
        writes: list[Command] = [(bucket.probe, ("SET", bucket.probe, "1", "PX", PROBE_KEPT_MS)) for bucket in buckets]
        answers = await self.servers.each(calls + writes)
        failed = [answer if isinstance(answer, RedisError) else None for answer in answers]
        return [
            of_call or of_write for of_call, of_write in zip(failed[: len(calls)], failed[len(calls) :], strict=True)
        ]

    async def states(self) -> list[ServerState]:
        """Check each server, and return its state.

        Raises:
            RedisError: If the only server does not answer.
        """
        states: dict[str, ServerState] = {}
        for bucket, error in zip(self.servers.keys.buckets, await self.check_each(), strict=True):
            name = self.servers.server_of(bucket)
            state = states.get(name) or ServerState(name, 0, None)
            states[name] = ServerState(name, state.buckets + 1, state.error or error)
        return [*states.values()]

    async def due(self, by_ms: Sequence[int | RedisError], most: int, lease_ms: int) -> list[list[str] | RedisError]:
        """Record that a coordinator serves the jobs of each bucket, and take its due jobs, earliest first.

        A server that fails records nothing, so its jobs are unattended in this time.

        Args:
            by_ms: For each bucket, the processing time until which jobs are due, or the error of its server.
            most: Maximum number of jobs of a bucket.
            lease_ms: Time in milliseconds after which a taken job is due again, if it is not swept.
        """
        calls = [
            (bucket.sweeps, _call("due", bucket.of_no_job, self._argument("due", None, arguments)))
            for bucket, by in zip(self.servers.keys.buckets, by_ms, strict=True)
            if isinstance(by, int)
            for arguments in [{"by_ms": by, "most": most, "lease_ms": lease_ms}]
        ]
        answers = await self.servers.each(calls, patience_s=0)
        taken = [answer if isinstance(answer, RedisError) else reply_of(answer)["jobs"] for answer in answers]
        return [*taken, *(error for error in by_ms if isinstance(error, RedisError))]

    async def times_ms(self) -> list[int | RedisError]:
        """Return the processing time of the server of each bucket, or its error."""
        buckets = self.servers.keys.buckets
        if self.clock is not None:
            return [self.clock()] * len(buckets)
        answers = await self.servers.each([(bucket.sweeps, ("TIME",)) for bucket in buckets], patience_s=0)
        return [
            answer if isinstance(answer, RedisError) else int(answer[0]) * 1000 + int(answer[1]) // 1000
            for answer in answers
        ]


def _call(command: str, keys: tuple[str, ...], *arguments: str | bytes) -> Words:
    return "FCALL", library().function(command), len(keys), *keys, *arguments


async def delete_other_versions(redis: Redis) -> None:
    """Delete the libraries of other versions. A coordinator that still needs one loads it again."""
    for found in await redis.function_list(library=f"{PREFIX}*"):
        name = str(map_of(found)["library_name"])
        if name != library().name:
            await redis.function_delete(name)


def reply_of(flat: Any) -> Reply:
    """Return a reply as a dictionary; raise DomainError if the command was refused."""
    reply = map_of(flat)
    if "error" in reply:
        kind = errors.BY_CODE[reply["error"]]
        raise kind(*(_detail(name, reply.get(name)) for name in kind.fields))
    return reply


def map_of(flat: Any) -> dict[str, Any]:
    """Return a map in a reply as a dictionary. In RESP2, a map is a list of alternating names and values."""
    return flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))


def _detail(name: str, value: Any) -> Any:
    return [member.partition("/")[2] for member in value] if name == "substreams" else value
