"""schemathesis against a coordinator: requests and answers conform to the OpenAPI document."""

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
class FuzzedCoordinator:
    process: CoordinatorProcess
    key: str

    def run(self, config: Path, *arguments: str) -> None:
        """Run all checks of schemathesis; show its output if a check fails."""
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
def fuzzed(tmp_path: Path) -> Iterator[FuzzedCoordinator]:
    """Start a coordinator with keys, to find calls that check no key, and with short long polls."""
    file = tmp_path / "keys.json"
    key = keyring.create(file, "root", Role.ADMIN, "")
    with CoordinatorProcess(tmp_path / "data", keys_file=str(file), max_wait_s="0.2") as process:
        yield FuzzedCoordinator(process, key)
        assert "Traceback" not in (tmp_path / "data" / "coordinator.log").read_text()


def test_calls_with_any_ids(fuzzed: FuzzedCoordinator) -> None:
    """schemathesis calls all operations with generated ids, alone and in linked sequences."""
    fuzzed.run(SCHEMATHESIS, "--exclude-path-regex", "watch$")


def test_calls_of_one_job(fuzzed: FuzzedCoordinator, tmp_path: Path) -> None:
    """Calls with fixed ids reach an existing job. Most calls with generated ids end in 404."""
    config = tmp_path / "schemathesis.toml"
    ids = {"job": "flights", "query": "departures", "batch": 0, "hold": "maintenance"}
    parameters = "\n".join(f'"path.{name}" = {value!r}' for name, value in ids.items())
    config.write_text(f"{SCHEMATHESIS.read_text()}\n[parameters]\n{parameters}\n")
    with httpx.Client(base_url=fuzzed.process.url, headers={"Authorization": f"Bearer {fuzzed.key}"}) as http:
        http.put("/v1/jobs/flights", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        fuzzed.run(config, "--exclude-path-regex", "watch$|livez|readyz", "--exclude-operation-id", "delete")
        assert http.get("/v1/jobs/flights").json()["incarnation"] > 1, (
            "the job must have been reset, so calls have reached it"
        )


def test_streams_of_unknown_jobs(fuzzed: FuzzedCoordinator) -> None:
    """Streams of unknown jobs are refused as documented. A stream of an existing job would not end."""
    fuzzed.run(SCHEMATHESIS, "--include-path-regex", "watch$", "--phases", "coverage,fuzzing")
