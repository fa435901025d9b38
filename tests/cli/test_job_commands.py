"""The commands that configure, restore, reset and delete a job, its history in pages, and shell completion."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import Run
from tests.support.api import CONFIG, create, report
from tidegate_spark.testing import CoordinatorProcess


def test_configure_creates_and_changes_a_job(run: Run, http: httpx.Client, job_name: str, tmp_path: Path) -> None:
    """`configure` replaces the configuration, and creates a job only with `--create`."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    assert "[job_not_found]" in run("configure", job_name, str(file), status=1).stderr
    run("configure", job_name, str(file), "--create")
    assert "[job_exists]" in run("configure", job_name, str(file), "--create", status=1).stderr
    changed = json.dumps({"policy": {"type": "limiting_lag", "lag_ms": 20}})
    assert json.loads(run("configure", job_name, "-", "--json", input=changed).stdout)["revision"] == 2
    assert http.get(f"/v1/jobs/{job_name}").json()["config"]["policy"]["lag_ms"] == 20
    assert "is not JSON" in run("configure", job_name, "-", input="lag: 20", status=2).output


def test_restore_imports_watermarks(run: Run, http: httpx.Client, job_name: str) -> None:
    job = create(http, job_name)
    run("declare", job, "HNL", "BOS", "--query", "departures", "--reason", "one")
    run("restore", job, "HNL", "BOS", "--watermarks", "2013-01-07", "--watermarks", "5", "--reason", "two")
    rows = http.get(f"/v1/jobs/{job}/substreams").json()["substreams"]
    assert {row["substream"]: row["watermark"] for row in rows} == {"HNL": 1_357_516_800_000, "BOS": 5}
    unequal = run("restore", job, "HNL", "BOS", "--watermarks", "5", "--reason", "two", status=1)
    assert "[invalid_request]" in unequal.stderr


@pytest.mark.parametrize("command", [("reset", "--reason", "wrong clock"), ("delete",)])
def test_a_destructive_command_is_confirmed(
    run: Run, http: httpx.Client, job_name: str, command: tuple[str, ...]
) -> None:
    """The command needs the name of the job again, as an option or at the prompt."""
    job = create(http, job_name)
    report(http, job, {"a": 100})
    verb, *options = command
    refused = run(verb, job, *options, input="yes\n", status=2)
    assert "type the name of the job" in refused.output
    assert http.get(f"/v1/jobs/{job}").json()["watermark"] == 90
    assert "to confirm" in run(verb, job, *options, input=f"{job}\n").stdout
    answer = http.get(f"/v1/jobs/{job}")
    assert answer.status_code == 410 or answer.json()["watermark"] is None
    create(http, f"{job}-2")
    run(verb, f"{job}-2", *options, "--confirm", f"{job}-2")


@pytest.mark.parametrize("name", [".", ".."])
def test_a_dot_segment_is_never_sent(run: Run, http: httpx.Client, job_name: str, name: str) -> None:
    """httpx removes dot segments from a path, so that ``release JOB ..`` would delete the job."""
    job = create(http, job_name)
    for arguments, role in (
        (("release", job, name, "--reason", "x"), "hold"),
        (("retire", job, name, "--reason", "x"), "query"),
        (("hand-over", job, name, "q", "--reason", "x"), "query"),
        (("delete", name, "--confirm", name), "job"),
        (("status", name), "job"),
        (("watch", name), "job"),
    ):
        assert f"the name of the {role} must be 1 to 128" in " ".join(run(*arguments, status=2).output.split())
    assert http.get(f"/v1/jobs/{job}").status_code == 200


def test_the_history_in_pages(run: Run, http: httpx.Client, job_name: str) -> None:
    """`--before` continues after the last record of a page, and `--since` ends the list."""
    job = create(http, job_name)
    for number in range(3):
        run("declare", job, f"s{number}", "--reason", f"number {number}")
    first = json.loads(run("history", job, "--kind", "action", "--limit", "2", "--json").stdout)
    rest = json.loads(run("history", job, "--kind", "action", "--before", first["next"], "--json").stdout)
    assert [record["reason"] for record in first["records"] + rest["records"]] == ["number 2", "number 1", "number 0"]
    assert "number 0" not in run("history", job, "--since", str(first["records"][0]["at_ms"] + 1)).stdout


def completed(*words: str, **settings: str) -> list[str]:
    """Return what the shell proposes for the last word of a command line."""
    asked = {"_TIDEGATE_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    answered = subprocess.run(
        [sys.executable, "-c", "from tidegate.__main__ import cli; cli(prog_name='tidegate')"],
        env=os.environ | asked | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answered.stderr == ""
    return answered.stdout.split()


def test_the_shell_completes_commands_and_jobs(tidegate: CoordinatorProcess, http: httpx.Client, job_name: str) -> None:
    """Names of jobs come from the coordinator. If it does not answer, the shell proposes none."""
    create(http, job_name)
    assert completed("tidegate", "hand") == ["hand-over"]
    for typed in (job_name, job_name[:-3]):
        assert completed("tidegate", "status", typed, TIDEGATE_URL=tidegate.url) == [job_name]
    assert completed("tidegate", "status", job_name, TIDEGATE_URL="http://127.0.0.1:9") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell: str, tmp_path: Path) -> None:
    """`--show-completion` prints the script, and `--install-completion` installs it for the user."""
    environment = os.environ | {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    program = "from tidegate.__main__ import cli; cli(prog_name='tidegate')"
    for option in ("--show-completion", "--install-completion"):
        ended = subprocess.run(
            [sys.executable, "-c", program, option, shell], env=environment, capture_output=True, text=True, check=True
        )
        assert ("_TIDEGATE_COMPLETE" if option == "--show-completion" else str(tmp_path)) in ended.stdout
