"""The scripts: one per command, composed from parts, and called with one record of arguments.

``-- @include parts/name`` makes the table that the part returns available as ``name``. Each part is a function of its
own, so that the limit of 200 locals in Lua applies to each part and not to the sum.
"""

import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from tidegate.domain import batches, errors, journal, ledger, sketch
from tidegate.domain.config import LIMITS
from tidegate.domain.policy import POLICY_LIMITS, target_completeness
from tidegate.store.clock import ClockGuard
from tidegate.store.keys import JOBS, SWEEPS, TOUCH_MS, job_key, lua_keys

Reply = dict[str, Any]
AroundCommand = Callable[[str], AbstractContextManager[object]]
unobserved: AroundCommand = nullcontext
READS = ("status", "substreams", "queries", "completeness")

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
    "LIMITS": LIMITS,
    "POLICY_LIMITS": POLICY_LIMITS,
    **{
        name: getattr(sketch, name)
        for name in ("ROW", "MAX_WEIGHT", "MAX_BUCKETS", "STEPS", "HIGHEST_BUCKET", "GAMMA", "DECAY")
    },
    **{
        name: getattr(target_completeness, name)
        for name in ("ROWS_BEYOND", "SURPRISE", "MARGIN", "MAX_WIDENING", "NARROWING", "MAX_STEPS")
    },
}
"""Numbers and lists of the domain that the scripts use, by the same names."""


class ScriptError(Exception):
    """A script that cannot be composed: a part is missing, or includes itself."""


def compose(command: str, root: Traversable) -> str:
    """Return the text of a command: each part once, before the parts that need it, and the command itself.

    Raises:
        ScriptError: For a missing part or a circular include, with the chain of includes.
    """
    modules: dict[str, str] = {}
    body = _expand(f"commands/{command}", root, [], modules)
    return "".join(modules.values()) + _BODY.format(body=body.strip())


def _expand(name: str, root: Traversable, path: list[str], modules: dict[str, str]) -> str:
    """Return the text of a file without its includes; add their parts to ``modules``."""
    if name in path:
        raise ScriptError("Includes form a circle: " + " -> ".join([*path, name]))
    source = root.joinpath(name + ".lua")
    if not source.is_file():
        raise ScriptError("Missing part: " + " -> ".join([*path, name]))
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
    """Scripts of one Redis, to call by the name of their command.

    ``unattended_after_ms``: see :class:`~tidegate.domain.state.JobState`. ``guard`` rejects times of a Redis clock that
    jumped ahead. ``around`` wraps every command, by its name. ``clock`` replaces Redis's time in tests; it returns Unix
    milliseconds.
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

    async def run(self, command: str, job: str, now_ms: int | None = None, **arguments: Any) -> Reply:
        """Run a command and return its reply; raise DomainError if the command was refused."""
        script_, keys, argument = self.call(command, job, now_ms, **arguments)
        with self.around(command):
            flat = await script_(keys=keys, args=[argument])
        return reply_of(flat)

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
            # A read changes nothing, so it must not record an outage either.
            "unattended_after_ms": None if command in READS else self.unattended_after_ms,
        }
        given = {name: value for name, value in arguments.items() if value is not None}
        return self._scripts[command], [job_key(job), SWEEPS, JOBS], json.dumps(given)

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
    """Return a map of a script as a dictionary; under RESP2 it is a list of names and values in turn."""
    return flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))


def _detail(name: str, value: Any) -> Any:
    return [member.partition("/")[2] for member in value] if name == "substreams" else value
