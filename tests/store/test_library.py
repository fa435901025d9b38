"""Composition of the library: missing files and cycles of includes are refused before the library reaches Redis."""

import re
from pathlib import Path

import pytest

from tidegate import store
from tidegate.store import library as library_module
from tidegate.store.keyspace import JOB_KEYS, ONE_SERVER, job_key, lua_keys
from tidegate.store.library import CALL, LibraryError, command_names, compose, library, tables

LUA = Path(store.__file__).parent / "lua"
COMMANDS = command_names(LUA)
TABLES = {path.stem: tables(path.read_text()) for path in sorted(LUA.glob("*.lua"))}
MAX_LOCALS = 100


def write(root: Path, name: str, text: str) -> None:
    (root / f"{name}.lua").write_text(text)


def test_a_file_is_included_once_and_before_its_users(tmp_path: Path) -> None:
    """A file included twice would have two states. A file included too late would be nil."""
    write(tmp_path, "base", "local base, other = {}, {}\nreturn base, other\n")
    write(tmp_path, "a_user", "-- @include more\n-- @include base\nfunction commands.b() end\n")
    write(tmp_path, "more", "-- @include base\nlocal more = {base}\nfunction commands.a() end\nreturn more\n")
    write(tmp_path, "call", "register()\n")
    lines = compose(tmp_path).splitlines()
    assert lines[lines.index("local function create()") :] == [
        "local function create()", "local commands = {}",
        "local base, other = (function()", "local base, other = {}, {}", "return base, other", "end)()",
        "local more = (function()", "local more = {base}", "function commands.a() end", "return more", "end)()",
        "local _ = (function()", "function commands.b() end", "end)()",
        "return state, commands", "end", "register()",
    ]  # fmt: skip
    assert command_names(tmp_path) == ["a", "b"]


def test_a_cycle_of_includes_is_refused_with_its_path(tmp_path: Path) -> None:
    """The error names the includes of the cycle."""
    write(tmp_path, "a", "-- @include b\n")
    write(tmp_path, "b", "-- @include c\n")
    write(tmp_path, "c", "-- @include b\n")
    with pytest.raises(LibraryError, match="a -> b -> c -> b"):
        compose(tmp_path)


def test_a_missing_file_is_refused_with_the_path_to_it(tmp_path: Path) -> None:
    """A misspelt include must not become an empty file."""
    write(tmp_path, "a", "-- @include none\n")
    with pytest.raises(LibraryError, match="a -> none"):
        compose(tmp_path)


def test_no_name_is_defined_twice() -> None:
    """A second table or command of a name would replace the first one without an error."""
    names = [name for of_file in TABLES.values() for name in of_file]
    assert len(names) == len(set(names))
    assert len(COMMANDS) == len(set(COMMANDS))


def declared(lines: list[str]) -> int:
    """Return the number of locals that lines of Lua declare."""
    found = [re.match(r" *local (?:function \w+|([\w, ]+))", line) for line in lines]
    return sum(1 + (match[1] or "").count(",") for match in found if match)


@pytest.mark.parametrize("name", TABLES)
def test_no_function_is_near_the_limit_of_locals(name: str) -> None:
    """Lua allows 200 locals in a function, and a file is a function. At the limit it cannot be extended."""
    text = (LUA / f"{name}.lua").read_text()
    assert declared([line for line in text.splitlines() if line.startswith("local ")]) <= MAX_LOCALS
    for function in re.split(r"^(?=local function|function)", text, flags=re.MULTILINE)[1:]:
        assert declared(function.splitlines()[1:]) <= MAX_LOCALS


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


def included(name: str) -> set[str]:
    """Return all files that a file includes, directly or indirectly."""
    direct = re.findall(r"^-- @include (\S+)$", (LUA / f"{name}.lua").read_text(), re.MULTILINE)
    return set(direct).union(*map(included, direct))


@pytest.mark.parametrize("name", [name for name in TABLES if name != CALL])
def test_a_file_includes_the_files_that_it_uses(name: str) -> None:
    """Without its own includes, a file would depend on the includes of other files."""
    file_of = {table: file for file, of_file in TABLES.items() for table in of_file}
    code = "\n".join(line.partition("--")[0] for line in (LUA / f"{name}.lua").read_text().splitlines())
    used = {file_of[table] for table in re.findall(r"(?<![\w.'])(\w+)[.]\w+", code) if table in file_of}
    assert used - {name} <= included(name)


def test_each_command_is_a_function_whose_name_depends_on_the_code() -> None:
    """Coordinators of two versions share one Redis, and each calls its own functions."""
    current = library()
    assert current.text.startswith(f"#!lua name={current.name}\n")
    for command in COMMANDS:
        assert f"register('{current.function(command)}', " in current.text
    assert re.fullmatch(r"tidegate_[0-9a-f]{16}", current.name)


def test_the_name_of_the_library_depends_on_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same name, a server would keep the functions of an earlier version and their flags."""
    before = library().name
    monkeypatch.setattr(library_module, "FLAGS", library_module.FLAGS | {"report": "'allow-oom'"})
    assert library.__wrapped__().name != before
