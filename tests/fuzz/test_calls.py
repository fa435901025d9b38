"""The real coordinator against its own document: what the one calls valid the other takes, and answers as it says."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.support.api import CONFIG
from tidegate.auth import keyring
from tidegate.auth.roles import Role
from tidegate_spark.testing import CoordinatorProcess

ROOT = Path(__file__).parents[2]
SCHEMATHESIS = Path(__file__).with_name("schemathesis.toml")
EXAMPLES = 40


@dataclass
class Tried:
    process: CoordinatorProcess
    key: str

    def run(self, config: Path, *arguments: str) -> None:
        """All checks of schemathesis; what it found is shown."""
        environment = os.environ | {"SCHEMATHESIS_HOOKS": "tests.fuzz.hooks"}
        command = [
            str(Path(sys.executable).with_name("schemathesis")),
            "--config-file",
            str(config),
            "run",
            f"{self.process.url}/v1/openapi.json",
            "--checks",
            "all",
            "--max-examples",
            str(EXAMPLES),
            "--request-timeout",
            "60",
            "--header",
            f"Authorization: Bearer {self.key}",
            "--no-color",
        ]
        if os.environ.get("CI"):
            command += ["--generation-deterministic"]
        ended = subprocess.run(
            [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900
        )
        assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-2000:]
        assert "generated" in ended.stdout


@pytest.fixture
def tried(tmp_path: Path) -> Iterator[Tried]:
    """With keys, so that a call which forgets to ask for one is found; nobody waits for long."""
    file = tmp_path / "keys.json"
    key = keyring.create(file, "root", Role.ADMIN, "")
    with CoordinatorProcess(tmp_path / "data", keys_file=str(file), max_wait_s="0.2") as process:
        yield Tried(process, key)
        assert "Traceback" not in (tmp_path / "data" / "coordinator.log").read_text()


def test_calls_with_any_ids(tried: Tried) -> None:
    """Also one after the other, as the document links them."""
    tried.run(SCHEMATHESIS, "--exclude-path-regex", "watch$")


def test_calls_of_one_job(tried: Tried, tmp_path: Path) -> None:
    """One that is there, with a query and a batch: most calls of any ids end at a job that is not."""
    config = tmp_path / "schemathesis.toml"
    ids = {"job": "flights", "query": "departures", "batch": 0, "hold": "maintenance"}
    parameters = "\n".join(f'"path.{name}" = {value!r}' for name, value in ids.items())
    config.write_text(f"{SCHEMATHESIS.read_text()}\n[parameters]\n{parameters}\n")
    with httpx.Client(base_url=tried.process.url, headers={"Authorization": f"Bearer {tried.key}"}) as http:
        http.put("/v1/jobs/flights", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        tried.run(config, "--exclude-path-regex", "watch$|livez|readyz", "--exclude-operation-id", "delete_job")
        assert http.get("/v1/jobs/flights").json()["incarnation"] > 1, "it was reset, among other things"


def test_the_stream_of_events(tried: Tried) -> None:
    """Of a job that is there it would not end; those of others are refused as the document says."""
    tried.run(SCHEMATHESIS, "--include-path-regex", "watch$", "--phases", "coverage,fuzzing")
