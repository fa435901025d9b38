"""The commands in docs/how-to/schedulers.md are valid, and its Makefile works with a follower."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer

from tests.support.api import BASE, CONFIG, HOUR, HOURS, commit_frames
from tests.support.programs import tool
from tidegate.__main__ import cli
from tidegate_spark.testing import CoordinatorProcess

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "schedulers.md").read_text()
BLOCKS = "".join(re.findall(r"^```(?:console|text|ini)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(
    r"^(?:\$ |ExecStart=/opt/tidegate/bin/|[*/0-9 ]+)tidegate ((?:[^\n']|'[^']*')+)$", BLOCKS, re.MULTILINE
)
[(MAKEFILE)] = re.findall(r'^```make title="Makefile"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)


def test_the_commands_are_found() -> None:
    assert len(COMMANDS) == BLOCKS.count("tidegate frames") + BLOCKS.count("tidegate notify") + 2
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("text", COMMANDS)
def test_a_command_is_valid(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that does not exist would stop a reader at the first try."""
    monkeypatch.delenv("AIRFLOW_URL", raising=False)
    command: Any = typer.main.get_command(cli)
    words = shlex.split(text)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    context = command.make_context("tidegate", words)
    assert context.params["job"] == "flights"


def test_the_makefile_makes_an_hour(tidegate: CoordinatorProcess, job_name: str, tmp_path: Path) -> None:
    tool("make", "make")
    [called] = re.findall(r"--exec '(make[^']*)'", MAKEFILE)
    (tmp_path / "Makefile").write_text(MAKEFILE)
    with httpx.Client(base_url=tidegate.url, timeout=30) as http:
        path = f"/v1/jobs/{job_name}"
        http.put(path, json=CONFIG | HOURS, headers={"If-None-Match": "*"}).raise_for_status()
        commit_frames(http, path, 0, {"a": BASE})
        commit_frames(http, path, 1, {"a": BASE + HOUR + 11})
    follow = [sys.executable, "-m", "tidegate", "frames", job_name, "--once", "--exec", called]
    subprocess.run(follow, cwd=tmp_path, env=os.environ | {"TIDEGATE_URL": tidegate.url}, check=True, timeout=60)
    assert (tmp_path / "hours" / str(BASE)).read_text() == "2013-01-07T10:00:00Z generation 1: complete\n"
