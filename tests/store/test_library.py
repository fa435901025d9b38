"""Composition of the library: missing parts and cycles of includes are refused before the library reaches Redis."""

import re
from pathlib import Path

import pytest

from tidegate import store
from tidegate.store import library as library_module
from tidegate.store.keyspace import JOB_KEYS, ONE_SERVER, job_key, lua_keys
from tidegate.store.library import LibraryError, compose, library

LUA = Path(store.__file__).parent / "lua"
COMMANDS = sorted(path.stem for path in (LUA / "commands").glob("*.lua"))
MAX_LOCALS = 100


def write(root: Path, name: str, text: str) -> None:
    path = root / f"{name}.lua"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def test_a_part_is_included_once_and_before_its_users(tmp_path: Path) -> None:
    """A part included twice would have two states. A part included too late would be nil."""
    write(tmp_path, "parts/base", "local base = {}\nreturn base\n")
    write(tmp_path, "parts/more", "-- @include parts/base\nreturn {base}\n")
    write(tmp_path, "commands/command", "-- @include parts/base\n-- @include parts/more\nreturn more\n")
    write(tmp_path, "commands/other", "-- @include parts/more\nreturn {more}\n")
    lines = compose(tmp_path).splitlines()
    start = lines.index("local base = (function()")
    assert lines[start : start + 13] == [
        "local base = (function()", "local base = {}", "return base", "end)()",
        "local more = (function()", "return {base}", "end)()",
        "local commands = {}",
        "commands.command = function()", "return more", "end",
        "commands.other = function()", "return {more}",
    ]  # fmt: skip


def test_a_cycle_of_includes_is_refused_with_its_path(tmp_path: Path) -> None:
    """The error names the includes of the cycle."""
    write(tmp_path, "commands/a", "-- @include parts/b\n")
    write(tmp_path, "parts/b", "-- @include parts/c\n")
    write(tmp_path, "parts/c", "-- @include parts/b\n")
    with pytest.raises(LibraryError, match="parts/b -> parts/c -> parts/b"):
        compose(tmp_path)


def test_a_missing_part_is_refused_with_the_path_to_it(tmp_path: Path) -> None:
    """A misspelt include must not become an empty part."""
    write(tmp_path, "commands/a", "-- @include parts/none\n")
    with pytest.raises(LibraryError, match="commands/a -> parts/none"):
        compose(tmp_path)


def test_no_function_is_near_the_limit_of_locals() -> None:
    """Lua allows 200 locals in a function; a function at the limit cannot be extended."""
    functions = re.split(r"(?:\(|= )function\(\)$", library().text, flags=re.MULTILINE)
    assert len(functions) > len(COMMANDS)
    for text in functions:
        declared = re.findall(r"^ *local (?:function \w+|[\w, ]+)", text, re.MULTILINE)
        assert sum(1 + declaration.count(",") for declaration in declared) <= MAX_LOCALS


def test_all_keys_of_a_job_share_its_hash_tag() -> None:
    """All keys of a job share its hash tag. The further keys belong to all jobs."""
    assert job_key("flights") == "tidegate:{flights}"
    assert ONE_SERVER.of_call("flights") == (
        "tidegate:{flights}",
        "tidegate:sweeps",
        "tidegate:jobs",
        "tidegate:deleted",
        "tidegate:incarnation",
        "tidegate:attendance",
    )
    for key in JOB_KEYS:
        assert f"key.{key.name}" in lua_keys() or f"'{key.name}'" in lua_keys()
    assert lua_keys().count("unpack(keys, 1, 6)") == 1


def included(path: Path) -> set[str]:
    """Return all parts that a file includes, directly or indirectly."""
    direct = re.findall(r"^-- @include parts/(\S+)$", path.read_text(), re.MULTILINE)
    return set(direct).union(*(included(LUA / "parts" / f"{part}.lua") for part in direct))


@pytest.mark.parametrize("path", [*LUA.rglob("*.lua")], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_file_includes_the_parts_that_it_uses(path: Path) -> None:
    """Without its own includes, a file would depend on the includes of other files."""
    parts = {part.stem for part in (LUA / "parts").glob("*.lua")}
    code = "\n".join(line.partition("--")[0] for line in path.read_text().splitlines())
    own = {path.stem} | set(re.findall(r"local (\w+)", code)) | set(re.findall(r"local \w+, (\w+)", code))
    used = {name for name in re.findall(r"(?<![\w.'])(\w+)[.]\w+", code) if name in parts}
    assert used - own <= included(path), path.stem


def test_each_command_is_a_function_whose_name_depends_on_the_code() -> None:
    """Coordinators of two versions share one Redis, and each calls its own functions."""
    current = library()
    assert current.text.startswith(f"#!lua name={current.name}\n")
    for command in COMMANDS:
        assert f"function_name = '{current.function(command)}'" in current.text
    assert re.fullmatch(r"tidegate_[0-9a-f]{16}", current.name)


def test_the_name_of_the_library_depends_on_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same name, a server would keep the functions of an earlier version and their flags."""
    before = library().name
    monkeypatch.setattr(library_module, "FLAGS", library_module.FLAGS | {"report": "'allow-oom'"})
    assert library.__wrapped__().name != before
