"""What several folders of tests share: one Valkey, one coordinator over HTTP, one Spark session per run."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tidegate.store.embedded import EmbeddedValkey
from tidegate_spark.testing import CoordinatorProcess

# No test may depend on a fast machine; and new cases are looked for at the desk, not by a build.
settings.register_profile("project", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("project")


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """A real Valkey, for the whole run; jobs are told apart by their names."""
    with EmbeddedValkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="session")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    """A real coordinator behind real HTTP, with a small limit on bodies."""
    directory: Path = tmp_path_factory.mktemp("coordinator")
    with CoordinatorProcess(directory, max_body_bytes="65536", sweep_interval_ms="50") as process:
        yield process


@pytest.fixture
def job() -> str:
    """The name of a job that nobody else uses."""
    return f"job-{secrets.token_hex(6)}"
