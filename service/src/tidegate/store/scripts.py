"""The scripts. Each command is a script that is composed from parts and called with one record of arguments.

``-- @include parts/name`` makes the table that the part returns available as ``name``. Each part is a separate
function, so that the Lua limit of 200 locals applies to each part, not to their sum.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from redis.asyncio import Redis
from redis.commands.core import AsyncScript
from redis.exceptions import NoScriptError

from tidegate.domain import batches, errors, journal, ledger, sketch
from tidegate.domain.config import LIMITS, POLICY_LIMITS
from tidegate.domain.policy import target_completeness
from tidegate.store.clock import ClockGuard
from tidegate.store.keyspace import JOBS, SWEEPS, TOUCH_MS, job_key, lua_keys
from tidegate.store.pipelining import Pipelining

Reply = dict[str, Any]
AroundCommand = Callable[[str], AbstractContextManager[object]]
unobserved: AroundCommand = nullcontext
READS = ("status", "substreams", "queries", "completeness", "late", "history")

_INCLUDE = re.compile(r"^-- @include parts/(\S+)\n", re.MULTILINE)
_BODY = """local ok, result = pcall(function()
{body}
end)
if ok then return result end
if type(result) == 'table' and result.refused then return {{map = result.refused}} end
if type(result) == 'string' and string.find(result, '^%u+ ') then result = {{err = result}} end  -- keeps its code
error(result, 0)
"""
CONSTANTS = {
    "RECORDS_KEPT": journal.RECORDS_KEPT,
    "RECORDS_KEPT_MS": journal.RECORDS_KEPT_MS,
    "NAMES_KEPT": journal.NAMES_KEPT,
    "HOUR": ledger.HOUR,
    "HOURS_KEPT": ledger.HOURS_KEPT,
    "ENTRIES_KEPT": ledger.ENTRIES_KEPT,
    "PINNED_WATERMARKS_KEPT": batches.PINNED_WATERMARKS_KEPT,
    "TOUCH_MS": TOUCH_MS,
    "LIMITS": tuple(LIMITS),
    "POLICY_LIMITS": tuple(POLICY_LIMITS),
    **{
        name: getattr(sketch, name)
        for name in ("ROW", "MAX_WEIGHT", "MAX_BUCKETS", "STEPS", "HIGHEST_BUCKET", "GAMMA", "DECAY")
    },
    **{
        name: getattr(target_completeness, name)
        for name in ("ROWS_BEYOND", "SURPRISE", "MARGIN", "MAX_WIDENING", "NARROWING", "MAX_STEPS")
    },
}
"""Numbers and lists of the domain that the scripts use under the same names."""


class ScriptError(Exception):
    """A script cannot be composed, because a part is missing or includes itself."""


def compose(command: str, root: Traversable) -> str:
    """Return the text of a command: each part once, before the parts that include it, then the command.

    Raises:
        ScriptError: If a part is missing or includes itself. The message has the chain of includes.
    """
    modules: dict[str, str] = {}
    body = _expand(f"commands/{command}", root, [], modules)
    return "".join(modules.values()) + _BODY.format(body=body.strip())


def _expand(name: str, root: Traversable, path: list[str], modules: dict[str, str]) -> str:
    """Return the text of a file without its includes; add their parts to ``modules``."""
    if name in path:
        raise ScriptError("A part includes itself: " + " -> ".join([*path, name]))
    source = root.joinpath(name + ".lua")
    if not source.is_file():
        raise ScriptError("An included part does not exist: " + " -> ".join([*path, name]))
    text = source.read_text(encoding="utf-8")
    for part in _INCLUDE.findall(text):
        if part not in modules:
            body = _expand(f"parts/{part}", root, [*path, name], modules)
            modules[part] = f"local {part} = (function()\n{body.strip()}\nend)()\n"
    return _INCLUDE.sub("", text)


@cache
def script(command: str) -> str:
    """Return the complete script of a command, ready for ``EVAL``."""
    constants = ", ".join(f"{name} = {_lua(value)}" for name, value in CONSTANTS.items())
    head = lua_keys() + f"local constants = {{{constants}}}\nlocal args = cjson.decode(ARGV[1])\n"
    return head + compose(command, files("tidegate.store").joinpath("lua"))


def _lua(value: object) -> str:
    if isinstance(value, tuple):
        return "{" + ", ".join(map(_lua, value)) + "}"
    return repr(value)


class Scripts:
    """The scripts of one Redis, called by the name of their command.

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
        self._scripts: dict[str, AsyncScript] = {}
        self._pipelining = Pipelining(redis.connection_pool)

    async def run(self, command: str, job: str, now_ms: int | None = None, **arguments: Any) -> Reply:
        """Run a command and return its reply; raise DomainError if the command was refused."""
        script_, keys, argument = self.call(command, job, now_ms, **arguments)
        with self.around(command):
            if command in READS:
                flat = await script_(keys=keys, args=[argument])
            else:
                flat = await self._pipelined(script_, keys, argument)
        return reply_of(flat)

    async def _pipelined(self, script_: AsyncScript, keys: list[str], argument: str) -> Any:
        try:
            return await self._pipelining.call("EVALSHA", script_.sha, len(keys), *keys, argument)
        except NoScriptError:  # the server has restarted, or its scripts were flushed
            await self.redis.script_load(script_.script)
            return await self._pipelining.call("EVALSHA", script_.sha, len(keys), *keys, argument)

    def call(
        self, command: str, job: str, now_ms: int | None = None, **arguments: Any
    ) -> tuple[AsyncScript, list[str], str]:
        """Return the script of a command, its keys and its argument, without arguments that are None."""
        if now_ms is None and self.clock is not None:
            now_ms = self.clock()
        if command not in self._scripts:
            self._scripts[command] = self.redis.register_script(script(command))
        arguments |= {
            "now_ms": now_ms,
            "latest_now_ms": None if self.guard is None else self.guard.latest_ms(),
            # A read changes nothing, so it must not record an outage.
            "unattended_after_ms": None if command in READS else self.unattended_after_ms,
        }
        given = {name: value for name, value in arguments.items() if value is not None}
        return self._scripts[command], [job_key(job), SWEEPS, JOBS], json.dumps(given)

    async def run_together(
        self, name: str, job: str, now_ms: int | None, *calls: tuple[str, Mapping[str, Any]]
    ) -> list[Reply]:
        """Run commands of one job in one transaction and return their replies; ``name`` is for metrics.

        Raises:
            DomainError: If a command was refused.
        """
        scripts = [self.call(command, job, now_ms, **arguments) for command, arguments in calls]

        async def execute() -> list[Any]:
            async with self.redis.pipeline() as pipeline:
                for script_, keys, argument in scripts:
                    pipeline.evalsha(script_.sha, len(keys), *keys, argument)
                answers: list[Any] = await pipeline.execute(raise_on_error=False)
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer  # with raise_on_error, redis-py adds text before the error code
            return answers

        with self.around(name):
            try:
                answers = await execute()
            except NoScriptError:  # the server has restarted, or its scripts were flushed
                for script_, _, _ in scripts:
                    await self.redis.script_load(script_.script)
                answers = await execute()
        return [reply_of(flat) for flat in answers]

    async def time_ms(self) -> int:
        """Return the processing time of Redis."""
        if self.clock is not None:
            return self.clock()
        seconds, micros = await self.redis.time()
        return int(seconds) * 1000 + int(micros) // 1000


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
