"""A coordinator with keys, and a real Airflow with the Dags of the documentation. Both run for the whole session."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.airflow.running import VENV, Airflow
from tests.support.guides import PAGES
from tests.support.programs import absent
from tidegate.auth import keyring
from tidegate.auth.roles import Role
from tidegate_spark.testing import CoordinatorProcess

OF_PAGES = {
    name: block
    for page in ("how-to/wait.md", "how-to/airflow.md")
    for name, block in re.findall(r'^```python title="([^"]+)"\n(.*?)^```$', PAGES[page], re.MULTILINE | re.DOTALL)
}
"""The Dag files of the documentation by name."""


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return a file of keys, and a key of each role."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    made = {role.value: keyring.create(file, f"key-{role}", role, "") for role in Role}
    return file, made | {"other": keyring.create(file, "other", Role.READ, "other-")}


@pytest.fixture(scope="session")
def coordinator(
    tmp_path_factory: pytest.TempPathFactory, keys: tuple[Path, dict[str, str]]
) -> Iterator[CoordinatorProcess]:
    with CoordinatorProcess(
        tmp_path_factory.mktemp("coordinator"), 0, keys_file=str(keys[0]), sweep_interval_ms="50"
    ) as process:
        yield process


@pytest.fixture(scope="session")
def http(coordinator: CoordinatorProcess, keys: tuple[Path, dict[str, str]]) -> Iterator[httpx.Client]:
    """Yield a client of the coordinator that may do everything."""
    with httpx.Client(
        base_url=coordinator.url, headers={"Authorization": f"Bearer {keys[1]['admin']}"}, timeout=30
    ) as client:
        yield client


@pytest.fixture(scope="session")
def airflow(
    tmp_path_factory: pytest.TempPathFactory, coordinator: CoordinatorProcess, keys: tuple[Path, dict[str, str]]
) -> Iterator[Airflow]:
    """Yield an Airflow with the provider, connections, and all Dags, paused."""
    if not (VENV / "bin" / "airflow").exists():
        absent("Airflow is not installed: run make test-airflow.")
    here: dict[str, Any] = {"conn_type": "tidegate", "host": "127.0.0.1", "port": coordinator.port}
    connections: dict[str, dict[str, Any]] = {
        "tidegate_default": here | {"password": keys[1]["read"]},
        "by_address": {
            "conn_type": "tidegate",
            "host": coordinator.url,
            "password": keys[1]["read"],
            "extra": {"page": "https://tidegate.example.com/"},
        },
        "wrong_key": here | {"password": "tdg_unknown"},
        "other_prefix": here | {"password": keys[1]["other"]},
        "nothing_there": here | {"port": 1},
        "no_host": {"conn_type": "tidegate"},
    }
    running = Airflow(tmp_path_factory.mktemp("airflow"), connections)
    for name, text in OF_PAGES.items():
        (running.dags / name).write_text(text)
    for file in (Path(__file__).parent / "dags").glob("*.py"):
        shutil.copy(file, running.dags)
    with running:
        yield running


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show the logs of Airflow's processes after a failed test."""
    outcome: pytest.TestReport = (yield).get_result()  # type: ignore[attr-defined]
    airflow = getattr(item, "funcargs", {}).get("airflow")
    if outcome.failed and airflow is not None:
        outcome.sections.append(("Airflow", airflow.output()))
