"""The library of Redis functions: each command is a function that is composed from parts.

``-- @include parts/name`` makes the table that the part returns available as ``name``. Each part is a separate Lua
function, so that the Lua limit of 200 locals applies to each part, not to their sum.

Redis keeps a library, its functions and their variables between calls. All variables of a single call are therefore in
``args``, in ``key``, and in the tables that ``state.forget`` empties before each command.
"""

import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable

from tidegate.domain import batches, completeness, history, policies
from tidegate.domain.config import LIMITS, POLICY_LIMITS
from tidegate.store.keyspace import SCHEMA, SCHEMA_IN_STEPS, TOMBSTONE_KEPT_MS, lua_keys

READS = ("status", "substreams", "queries", "completeness", "late", "history", "timeline", "distribution", "staged")
PREFIX = "tidegate_"

_INCLUDE = re.compile(r"^-- @include parts/(\S+)\n", re.MULTILINE)
# The standard functions of Lua do not exist while Redis loads a library, so the first call creates the parts.
_LIBRARY = """{head}
local function create()
{parts}local commands = {{}}
{commands}return function(command, argument)
state.forget(command, argument)
return commands[command]()
end
end
-- Return the kept reply of an earlier attempt of this call.
local function known_reply()
for _, kept in ipairs(redis.call('LRANGE', key.replies, 0, -1)) do
local id, reply = unpack(cmsgpack.unpack(kept))
if id == args.call then return reply end
end
end
local function keep_reply(reply)
redis.call('RPUSH', key.replies, cmsgpack.pack({{args.call, reply}}))
redis.call('LTRIM', key.replies, -constants.REPLIES_KEPT, -1)
redis.call('PEXPIRE', key.replies, constants.REPLIES_KEPT_MS)
end
local run
local function call(command, keys, argument)
run = run or create()
key.enter(keys)
args = cmsgpack.unpack(argument)
local known = args.call and known_reply()
if known then return known end
local ok, result = pcall(run, command, argument)
if ok then
if args.call then keep_reply(result) end
return result
end
if type(result) == 'table' and result.refused then return {{map = result.refused}} end
if type(result) == 'string' and string.find(result, '^%u+ ') then result = {{err = result}} end  -- keeps its code
error(result, 0)
end
"""
_REGISTER = """redis.register_function{{function_name = '{function}', flags = {{{flags}}},
callback = function(keys, arguments) return call('{command}', keys, arguments[1]) end}}
"""
# Run commands of one job. The arguments are alternating commands and their arguments.
_TOGETHER = """redis.register_function{{function_name = '{function}', flags = {{{flags}}},
callback = function(keys, arguments)
local replies = {{}}
for i = 1, #arguments, 2 do replies[#replies + 1] = call(arguments[i], keys, arguments[i + 1]) end
return replies
end}}
"""
TOGETHER, READS_TOGETHER = "together", "reads_together"
STEP = 250
"""Number of substreams that a function call visits at most, if its command visits all substreams of the job."""
ENTRIES = 1000
"""Maximum number of entries of the columns in the arguments of a function. Longer columns are stored in pieces."""
PIECE = 500
"""Maximum number of entries of a piece. Each piece takes a function call, and other clients wait for it."""
PIECES_KEPT_MS = 600_000
"""Time for which the pieces of a command stay, if the coordinator stops before it sends the command."""
REPLIES_KEPT, REPLIES_KEPT_MS = 16, 60_000
"""Number of replies to calls in ``ACTIONS`` that stay for each job, and for how many milliseconds after the last call.
All attempts of a coordinator together take less time."""
ACTIONS = (
    *("complete", "configure", "declare", "done", "evict", "hold", "idle", "release", "reopen", "reset", "restore"),
    "retire",
)
"""Commands that have another effect or another reply if they are repeated. Each call has an id, ``args.call``.

If the answer to a call is lost, the coordinator may send the call again. It then gets the reply of the first attempt.
"""
# A server that is full still runs reads and deletes, records that coordinators run, and ends commands in steps.
FLAGS = dict.fromkeys((*READS, READS_TOGETHER), "'no-writes'")
FLAGS |= dict.fromkeys(("confirm", "delete", "due", "resume"), "'allow-oom'")
CONSTANTS = {
    "SCHEMA": SCHEMA,
    "SCHEMA_IN_STEPS": SCHEMA_IN_STEPS,
    "STEP": STEP,
    "ENTRIES": ENTRIES,
    "PIECE": PIECE,
    "PIECES_KEPT_MS": PIECES_KEPT_MS,
    "REPLIES_KEPT": REPLIES_KEPT,
    "REPLIES_KEPT_MS": REPLIES_KEPT_MS,
    "RECORDS_KEPT": history.RECORDS_KEPT,
    "RECORDS_KEPT_MS": history.RECORDS_KEPT_MS,
    "NAMES_KEPT": history.NAMES_KEPT,
    "HOUR": completeness.HOUR,
    "HOURS_KEPT": completeness.HOURS_KEPT,
    "ENTRIES_KEPT": completeness.ENTRIES_KEPT,
    "PINNED_WATERMARKS_KEPT": batches.PINNED_WATERMARKS_KEPT,
    "TOMBSTONE_KEPT_MS": TOMBSTONE_KEPT_MS,
    "SAMPLE_INTERVALS_MS": tuple(history.SAMPLES_KEPT),
    "SAMPLES_KEPT": tuple(history.SAMPLES_KEPT.values()),
    "LIMITS": tuple(LIMITS),
    "POLICY_LIMITS": tuple(POLICY_LIMITS),
    **{
        name: getattr(completeness, name)
        for name in ("ROW", "MAX_WEIGHT", "MAX_BUCKETS", "STEPS", "HIGHEST_BUCKET", "GAMMA", "DECAY")
    },
    **{
        name: getattr(policies, name)
        for name in ("ROWS_BEYOND", "SURPRISE", "MARGIN", "MAX_WIDENING", "NARROWING", "MAX_STEPS")
    },
}
"""Numbers and lists of the domain that the functions use under the same names."""


class LibraryError(Exception):
    """Raised when the library cannot be composed, because a part is missing or includes itself."""


@dataclass(frozen=True, slots=True)
class Library:
    """A library, ready for ``FUNCTION LOAD``.

    Its name contains a hash of its text, so that coordinators of several versions can share one Redis.
    """

    name: str
    text: str

    def function(self, command: str) -> str:
        """Return the name of the function of a command."""
        return f"{self.name}_{command}"


def compose(root: Traversable) -> str:
    """Return the code of all commands: each part once, before the parts that include it, then the commands.

    Raises:
        LibraryError: If a part is missing or includes itself. The message shows the chain of includes.
    """
    parts: dict[str, str] = {}
    commands = {name: _expand(f"commands/{name}", root, [], parts) for name in command_names(root)}
    constants = ", ".join(f"{name} = {_lua(value)}" for name, value in CONSTANTS.items())
    return _LIBRARY.format(
        head=f"{lua_keys()}local constants = {{{constants}}}\nlocal args",
        parts="".join(parts.values()),
        commands="".join(f"commands.{name} = function()\n{body.strip()}\nend\n" for name, body in commands.items()),
    )


def command_names(root: Traversable) -> list[str]:
    """Return the names of all commands, sorted."""
    return sorted(file.name.removesuffix(".lua") for file in root.joinpath("commands").iterdir())


def _expand(name: str, root: Traversable, path: list[str], parts: dict[str, str]) -> str:
    """Return the text of a file without its includes; add their parts to ``parts``."""
    if name in path:
        raise LibraryError("A part includes itself: " + " -> ".join([*path, name]))
    source = root.joinpath(name + ".lua")
    if not source.is_file():
        raise LibraryError("An included part does not exist: " + " -> ".join([*path, name]))
    text = source.read_text(encoding="utf-8")
    for part in _INCLUDE.findall(text):
        if part not in parts:
            body = _expand(f"parts/{part}", root, [*path, name], parts)
            parts[part] = f"local {part} = (function()\n{body.strip()}\nend)()\n"
    return _INCLUDE.sub("", text)


@cache
def library() -> Library:
    """Return the library of this version."""
    root = files("tidegate.store").joinpath("lua")
    code = compose(root)
    commands = command_names(root)
    name = PREFIX + sha256((code + _registrations("", commands)).encode()).hexdigest()[:16]
    return Library(name, f"#!lua name={name}\n{code}{_registrations(name, commands)}")


def _registrations(library_name: str, commands: list[str]) -> str:
    """Return the code that registers the functions of a library."""
    forms = dict.fromkeys(commands, _REGISTER) | dict.fromkeys((TOGETHER, READS_TOGETHER), _TOGETHER)
    return "".join(
        form.format(function=f"{library_name}_{command}", flags=FLAGS.get(command, ""), command=command)
        for command, form in forms.items()
    )


def _lua(value: object) -> str:
    if isinstance(value, tuple):
        return "{" + ", ".join(map(_lua, value)) + "}"
    return repr(value)
