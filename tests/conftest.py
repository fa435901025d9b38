"""Markers, scheduling and shared fixtures: a Valkey, a coordinator over HTTP and a Spark session."""

import os
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession
from xdist.scheduler import LoadScopeScheduling

from tests.support.sessions import local_session
from tidegate.store.embedded import EmbeddedValkey

pytest_plugins = ["tests.support.fixtures", "tidegate_spark.testing.fixtures"]

MARKERS = {
    "airflow": ("airflow",),
    "clusters": ("cluster",),
    "faults": ("spark", "slow"),
    "faults/suite": (),
    "fuzz": ("fuzz",),
    "guarantees": ("spark",),
    "images": ("image",),
    "kafka": ("spark", "kafka"),
    "packages": ("spark", "slow"),
    "page": ("browser",),
    "programs": ("spark", "slow"),
    "scale": ("slow",),
    "spark": ("spark", "slow"),
    "tables": ("spark", "tables"),
    "versions": ("spark", "slow"),
}
"""Markers by folder. Other folders have none."""
TOGETHER = {
    "airflow": "airflow",
    "clusters": "clusters",
    "faults": "session",
    "guarantees": "session",
    "kafka": "kafka",
    "packages": "packages",
    "spark": "session",
    "tables": "tables",
    "versions": "session",
}
"""Group by folder. The tests of a group run in one process."""

# Tests have no deadlines, because machines may be slow. In CI, every run generates the same cases.
settings.register_profile("project", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("project")
# Java's best compiler and its parallel collector take a third of the processor time of a test's short Spark session.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test by its folder."""
    for marker in markers(item.nodeid):
        item.add_marker(marker)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the long groups first; see :class:`Scheduling`."""
    items.sort(key=lambda item: folder(item.nodeid) not in TOGETHER)


def markers(test: str) -> tuple[str, ...]:
    """Return the markers of a test by its id."""
    return MARKERS.get(folder(test), ())


def folder(test: str) -> str:
    """Return the innermost listed folder of a test by its id, ``tests/folder/file.py::name``."""
    parts = test.partition("::")[0].split("/")[1:-1]
    inner = "/".join(parts)
    return inner if inner in MARKERS else parts[0] if parts else ""


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """A scheduler that runs each group in one process. In other folders, it runs each file in one process.

    The tests of a group share a Spark session, or would exhaust the machine if they ran in parallel.
    """

    def _split_scope(self, nodeid: str) -> str:
        return TOGETHER.get(folder(nodeid), nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Distribute tests over processes (``--numprocesses``)."""
    return Scheduling(config, log)


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """Yield a Valkey server for the whole run. Each test uses its own job name."""
    with EmbeddedValkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="session")
def tidegate_settings() -> Mapping[str, str]:
    """Return the coordinator's settings, with a body limit that a test can exceed."""
    return {"sweep_interval_ms": "50", "max_body_bytes": "65536"}


@pytest.fixture
def job_name() -> str:
    """Return a job name that no other test uses."""
    return f"job-{secrets.token_hex(6)}"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with local_session() as session:
        yield session
