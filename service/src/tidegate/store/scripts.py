"""Scripts composed from parts: ``-- @include parts/name`` stands for the text of that part, once per script."""

import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from tidegate.store.keys import lua_names

_INCLUDE = re.compile(r"^-- @include (\S+)$", re.MULTILINE)


class ScriptError(Exception):
    """A script that cannot be composed: a part that is missing, or includes itself."""


def compose(name: str, root: Traversable) -> str:
    """The text of ``name`` (without ``.lua``) with its includes, each part once, before whatever needs it.

    :raises ScriptError: for a missing part or a cycle, naming the way to it.
    """
    return _compose(name, root, [], set())


def _compose(name: str, root: Traversable, path: list[str], included: set[str]) -> str:
    if name in path:
        raise ScriptError("Includes go in a circle: " + " -> ".join([*path, name]))
    source = root.joinpath(name + ".lua")
    if not source.is_file():
        raise ScriptError("No such part: " + " -> ".join([*path, name]))

    def replace(match: re.Match[str]) -> str:
        part = match.group(1)
        if part in included:
            return ""
        text = _compose(part, root, [*path, name], included)
        included.add(part)
        return text

    return _INCLUDE.sub(replace, source.read_text(encoding="utf-8"))


@cache
def script(command: str) -> str:
    """The complete script of a command, ready for ``EVAL``."""
    return lua_names() + compose(command, files("tidegate.store").joinpath("lua"))
