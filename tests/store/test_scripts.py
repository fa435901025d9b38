"""Composing scripts: a part that is missing, or goes in a circle, must fail at once and not in Redis."""

from pathlib import Path

import pytest

from tidegate.store.keys import JOB_KEYS, job_key, lua_names
from tidegate.store.scripts import ScriptError, compose


def test_a_part_is_taken_once_and_before_what_needs_it(tmp_path: Path) -> None:
    """Twice would define its locals twice; later would leave them nil."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "base.lua").write_text("local base = 1\n")
    (tmp_path / "parts" / "more.lua").write_text("-- @include parts/base\nlocal more = base\n")
    (tmp_path / "command.lua").write_text("-- @include parts/base\n-- @include parts/more\nreturn more\n")
    lines = [line for line in compose("command", tmp_path).splitlines() if line]
    assert lines == ["local base = 1", "local more = base", "return more"]


def test_a_circle_is_refused_with_the_way_round_it(tmp_path: Path) -> None:
    """Whoever edits a part learns which include closes the circle."""
    (tmp_path / "a.lua").write_text("-- @include b\n")
    (tmp_path / "b.lua").write_text("-- @include a\n")
    with pytest.raises(ScriptError, match="a -> b -> a"):
        compose("a", tmp_path)


def test_a_missing_part_is_refused_with_the_way_to_it(tmp_path: Path) -> None:
    """A misspelt include must not become an empty one."""
    (tmp_path / "a.lua").write_text("-- @include parts/none\n")
    with pytest.raises(ScriptError, match="a -> parts/none"):
        compose("a", tmp_path)


def test_all_keys_of_a_job_share_its_hash_tag() -> None:
    """What belongs to a job is found, moved and counted together; one key beside it says which jobs are due."""
    assert job_key("flights") == "tidegate:{flights}"
    for key in JOB_KEYS:
        assert f"K.{key.name}" in lua_names()
    assert lua_names().count("KEYS[2]") == 1
