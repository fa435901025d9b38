"""What several folders of tests share: one Valkey, one coordinator over HTTP, one Spark session per run."""

import os
import secrets
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

from tidegate.store.embedded import EmbeddedValkey
from tidegate_spark.testing import ensure_java

pytest_plugins = ["tests.support.fixtures", "tidegate_spark.testing.fixtures"]

# No test may depend on a fast machine; and new cases are looked for at the desk, not by a build.
settings.register_profile("project", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("project")


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """A real Valkey, for the whole run; jobs are told apart by their names."""
    with EmbeddedValkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="session")
def tidegate_settings() -> Mapping[str, str]:
    """A small limit on bodies, so that a test can exceed it."""
    return {"sweep_interval_ms": "50", "max_body_bytes": "65536"}


@pytest.fixture
def job() -> str:
    """The name of a job that nobody else uses."""
    return f"job-{secrets.token_hex(6)}"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    ensure_java()
    session = (
        SparkSession.builder.appName("tests")
        .master("local[2]")
        .config("spark.sql.session.timeZone", "America/New_York")  # nothing may depend on it
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
