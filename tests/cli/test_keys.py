"""``tidegate keys``, and a coordinator that requires keys."""

import json
import time
from contextlib import chdir
from pathlib import Path

import httpx
from typer.testing import CliRunner, Result

from tests.support.serve import fails
from tidegate.__main__ import cli
from tidegate_spark.testing import CoordinatorProcess


def keys(directory: Path, *arguments: str, **environment: str) -> Result:
    with chdir(directory):
        return CliRunner(env=environment).invoke(cli, ["keys", *arguments])


def test_the_life_of_a_key(tmp_path: Path) -> None:
    """A key is created, used, listed, rotated and revoked. No list contains a secret."""
    file = str(tmp_path / "keys.json")
    made = keys(tmp_path, "create", "spark", "--role", "report", "--prefix", "flights", TIDEGATE_KEYS_FILE=file)
    assert made.exit_code == 0, made.stderr
    [key] = made.stdout.splitlines()
    assert "spark with the role report for jobs flights*" in made.stderr
    listed = keys(tmp_path, "list", "--file", file)
    name, role, jobs, _, *rest = listed.stdout.splitlines()[1].split()
    assert (name, role, jobs, rest) == ("spark", "report", "flights*", ["never", "none"])
    [listed_key] = json.loads(keys(tmp_path, "list", "--file", file, "--json").stdout)
    assert listed_key.keys() == {"name", "role", "prefix", "id", "created"}
    assert key.split("_", 2)[2] not in listed.stdout + made.stderr
    # A coordinator at 127.0.0.2 does not start without keys.
    with CoordinatorProcess(tmp_path / "data", keys_file=file, host="127.0.0.2") as process:
        headers = {"Authorization": f"Bearer {key}"}
        assert httpx.get(f"{process.url}/v1/jobs", headers=headers).json()["jobs"] == []
        assert httpx.get(f"{process.url}/v1/jobs").status_code == 401
        assert httpx.get(f"{process.url}/readyz").status_code == 200
        rotated = keys(tmp_path, "rotate", "spark", "--keep", "0s", "--file", file)
        [new] = rotated.stdout.splitlines()
        assert (new.split("_")[0], new == key, len(json.loads(Path(file).read_text())["keys"])) == ("tdg", False, 1)
        limits = ("--lasts", "90d", "--max-requests", "50", "--burst", "200", "--max-jobs", "3")
        [admin] = keys(tmp_path, "create", "boss", "--role", "admin", *limits, "--file", file).stdout.splitlines()
        time.sleep(2)
        used = keys(tmp_path, "list", "--used", "--url", process.url, TIDEGATE_TOKEN=admin)
        assert used.exit_code == 0, used.stderr
        [boss] = [line for line in used.stdout.splitlines() if line.startswith("boss")]
        assert "requests_per_s 50, burst 200, jobs 3" in boss and boss.split()[-1] == "never"
        refused = keys(tmp_path, "list", "--used", "--url", process.url, TIDEGATE_TOKEN="")
        assert (refused.exit_code, "Set TIDEGATE_TOKEN" in refused.stderr) == (1, True)
    assert keys(tmp_path, "revoke", "boss", "--file", file).exit_code == 0
    assert keys(tmp_path, "revoke", "spark", "--file", file).exit_code == 0
    assert "has no keys" in fails(tmp_path, TIDEGATE_KEYS_FILE=file)


def test_an_error_is_one_line(tmp_path: Path) -> None:
    """The line names the setting, argument or file to change."""
    for arguments, expected in (
        (("create", "spark", "--role", "report"), "TIDEGATE_KEYS_FILE"),
        (("create", "a b", "--role", "report", "--file", "keys.json"), "letters, digits"),
        (("revoke", "spark", "--file", "keys.json"), "has no key spark"),
        (("list", "--file", "keys.json"), "Cannot read keys.json"),
    ):
        ended = keys(tmp_path, *arguments)
        assert ended.exit_code == 1
        [line] = ended.stderr.splitlines()
        assert expected in line
    assert keys(tmp_path, "create", "spark", "--role", "king", "--file", "keys.json").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_coordinator_without_its_keys_does_not_start(tmp_path: Path) -> None:
    """A coordinator does not start if its key file is missing or broken, or if its address requires keys."""
    assert "keys create" in fails(tmp_path, TIDEGATE_KEYS_FILE=str(tmp_path / "keys.json"))
    (tmp_path / "keys.json").write_text("{}")
    assert "is not a valid keys file" in fails(tmp_path, TIDEGATE_KEYS_FILE=str(tmp_path / "keys.json"))
    assert "TIDEGATE_KEYS_FILE" in fails(tmp_path, TIDEGATE_HOST="127.0.0.2")
