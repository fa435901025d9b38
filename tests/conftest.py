"""Markers of each folder, and what several folders share: a Valkey, a coordinator over HTTP, a Spark session."""

import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

from tidegate.store.embedded import EmbeddedValkey
from tidegate_spark.testing import ensure_java

TESTS = Path(__file__).parent
pytest_plugins = ["tests.support.fixtures", "tidegate_spark.testing.fixtures"]

MARKERS = {
    "clusters": ("cluster",),
    "faults": ("spark", "slow"),
    "fuzz": ("fuzz",),
    "guarantees": ("spark",),
    "images": ("image",),
    "page": ("browser",),
    "scale": ("slow",),
    "spark": ("spark", "slow"),
}
"""Markers of the tests of a folder; a folder that is not named has none."""

# No test may depend on a fast machine; and new cases are looked for at the desk, not by a build.
settings.register_profile("project", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("project")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test by its folder, and group it with those that share something expensive.

    pytest-xdist runs a group in one process: all tests on Spark, which share the session, and those of any other file,
    which share the fixtures of that file.
    """
    for marker in MARKERS.get(item.path.relative_to(TESTS).parts[0], ()):
        item.add_marker(marker)
    item.add_marker(pytest.mark.xdist_group("spark" if _on_spark(item) else str(item.path)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the tests on Spark first: as one group, they take longest."""
    items.sort(key=lambda item: not _on_spark(item))


def _on_spark(item: pytest.Item) -> bool:
    return item.get_closest_marker("spark") is not None


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
