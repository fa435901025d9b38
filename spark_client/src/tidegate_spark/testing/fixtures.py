"""Fixtures for pytest. In a project's ``conftest.py``::

    pytest_plugins = ["tidegate_spark.testing.fixtures"]

``tidegate`` is a coordinator with an embedded Valkey, one for the whole run; ``tidegate.job(rules=...)`` connects to
a new job of it. It needs the distribution ``tidegate`` beside this one.
"""

from collections.abc import Iterator, Mapping

import pytest

from tidegate_spark.testing.server import CoordinatorProcess


@pytest.fixture(scope="session")
def tidegate_settings() -> Mapping[str, str]:
    """The coordinator's settings, ``TIDEGATE_<NAME>`` by name; to be overridden by a project that wants others."""
    return {"sweep_interval_ms": "50"}


@pytest.fixture(scope="session")
def tidegate(
    tmp_path_factory: pytest.TempPathFactory, tidegate_settings: Mapping[str, str]
) -> Iterator[CoordinatorProcess]:
    """A coordinator for the whole run. Tests do not see one another's jobs: each connects to new ones."""
    with CoordinatorProcess(tmp_path_factory.mktemp("tidegate"), 0, **tidegate_settings) as coordinator:
        yield coordinator
