"""The library of Redis functions, composed from the files in ``lua``.

A file begins with ``-- @include name`` for each file that it uses. It defines its commands as ``function
commands.<name>()``, and its last line returns the tables that other files use, such as ``return values, bulk``.
Each file is a separate Lua function, so that the Lua limit of 200 locals applies to each file, not to their sum.
``call.lua`` calls and registers the commands.
"""

import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable

from tidegate.domain import batches, completeness, frames, history, job, policies
from tidegate.domain.config import LIMITS, POLICY_LIMITS
from tidegate.store.keyspace import SCHEMA, SCHEMA_IN_STEPS, TOMBSTONE_KEPT_MS, lua_keys

READS = (
    *("status", "substreams", "queries", "completeness", "late", "history", "timeline", "distribution", "staged"),
    *("frames", "learned", "consumers"),
)
PREFIX = "tidegate_"

CALL = "call"
"""The file around all others. No file includes it."""

_INCLUDE = re.compile(r"^-- @include (\S+)\n", re.MULTILINE)
_COMMAND = re.compile(r"^function commands\.(\w+)\(", re.MULTILINE)
_TABLES = re.compile(r"^return ([\w, ]+)$", re.MULTILINE)
_LIBRARY = """{head}
local function create()
local commands = {{}}
{files}return state, commands
end
{call}"""
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
    *("retire", "forget_consumer"),
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
    "OUTPUTS_KEPT": batches.OUTPUTS_KEPT,
    "MAX_CONSUMERS": job.MAX_CONSUMERS,
    **{
        name: getattr(frames, name)
        for name in (
            *("FRAME_RECORDS_KEPT", "FRAME_RECORDS_KEPT_MS", "FRAMES_COUNTED", "GENERATIONS_KEPT"),
            *("FINISHED_AT_ONCE", "LOSSES_KEPT", "DELAYS_MS", "MOST_MEASURED", "WRITING_KEPT"),
            *("CONFIRMED_MS", "RESTORED", "COMPLETIONS_KEPT"),
        )
    },
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
    """Return the code of all files: each file once, after the files that it includes, and ``call.lua`` around them.

    Raises:
        LibraryError: If a file is missing or includes itself. The message shows the chain of includes.
    """
    code: dict[str, str] = {}
    for name in _file_names(root):
        if name != CALL:
            _add(name, root, [], code)
    constants = ", ".join(f"{name} = {_lua(value)}" for name, value in CONSTANTS.items())
    return _LIBRARY.format(
        head=f"{lua_keys()}local constants = {{{constants}}}\nlocal args",
        files="".join(code.values()),
        call=_read(CALL, root, []),
    )


def command_names(root: Traversable) -> list[str]:
    """Return the names of all commands, sorted."""
    return sorted(name for file in _file_names(root) for name in _COMMAND.findall(_read(file, root, [])))


def tables(text: str) -> list[str]:
    """Return the names of the tables that a file returns."""
    found = _TABLES.search(text)
    return found[1].split(", ") if found else []


def _file_names(root: Traversable) -> list[str]:
    return sorted(file.name.removesuffix(".lua") for file in root.iterdir())


def _read(name: str, root: Traversable, path: list[str]) -> str:
    source = root.joinpath(name + ".lua")
    if not source.is_file():
        raise LibraryError("An included file does not exist: " + " -> ".join([*path, name]))
    return source.read_text(encoding="utf-8")


def _add(name: str, root: Traversable, path: list[str], code: dict[str, str]) -> None:
    """Add the code of a file to ``code``, after the files that it includes."""
    if name in path:
        raise LibraryError("A file includes itself: " + " -> ".join([*path, name]))
    if name in code:
        return
    text = _read(name, root, path)
    for included in _INCLUDE.findall(text):
        _add(included, root, [*path, name], code)
    declared = ", ".join(tables(text)) or "_"
    code[name] = f"local {declared} = (function()\n{_INCLUDE.sub('', text).strip()}\nend)()\n"


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
    lines = [f"register('{library_name}_{name}', {{{FLAGS.get(name, '')}}}, '{name}')" for name in commands]
    lines += [
        f"register_together('{library_name}_{name}', {{{FLAGS.get(name, '')}}})" for name in (TOGETHER, READS_TOGETHER)
    ]
    return "\n".join(lines) + "\n"


def _lua(value: object) -> str:
    if isinstance(value, tuple):
        return "{" + ", ".join(map(_lua, value)) + "}"
    return repr(value)
