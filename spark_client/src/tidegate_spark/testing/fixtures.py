"""Fixtures for pytest.

In a project's ``conftest.py``::

    pytest_plugins = ["tidegate_spark.testing.fixtures"]

The fixture ``tidegate`` is a coordinator with an embedded Valkey, shared by all tests of the run. It needs the
distribution ``tidegate``. ``tidegate.job(config=...)`` connects to a new job.
"""

from collections.abc import Iterator, Mapping

import pytest

from tidegate_spark.testing.server import CoordinatorProcess


@pytest.fixture(scope="session")
def tidegate_settings() -> Mapping[str, str]:
    """Return the coordinator's settings: ``name`` sets ``TIDEGATE_<NAME>``. Override this fixture to change them."""
    return {"sweep_interval_ms": "50"}


@pytest.fixture(scope="session")
def tidegate(
    tmp_path_factory: pytest.TempPathFactory, tidegate_settings: Mapping[str, str]
) -> Iterator[CoordinatorProcess]:
    """Yield a coordinator for the whole run; each test connects to its own jobs."""
    with CoordinatorProcess(tmp_path_factory.mktemp("tidegate"), 0, **tidegate_settings) as coordinator:
        yield coordinator
