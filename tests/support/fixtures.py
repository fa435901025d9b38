"""Fixtures of queries: a stream that a test writes, a job, a checkpoint, and a separate coordinator."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.driver import Driver
from tests.support.local import LocalCoordinator
from tests.support.streams import LAG
from tidegate.store.embedded import EmbeddedValkey
from tidegate_spark import Job, limiting_lag
from tidegate_spark.testing import CoordinatorProcess, FileBatches


@pytest.fixture
def source(tmp_path: Path) -> FileBatches:
    """Return an empty source whose rows have a substream ``k`` and an event time ``t``."""
    return FileBatches(tmp_path / "input", "k string, t long")


@pytest.fixture
def job(tidegate: CoordinatorProcess) -> Job:
    """Return a new job with a lag of ten seconds."""
    return tidegate.job(config=limiting_lag(LAG))


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture
def own(valkey: EmbeddedValkey) -> Iterator[LocalCoordinator]:
    """Yield a coordinator that the test can stop, empty and restore."""
    with LocalCoordinator(valkey) as coordinator:
        yield coordinator


@pytest.fixture
def orders(tmp_path_factory: pytest.TempPathFactory) -> FileBatches:
    return FileBatches(tmp_path_factory.mktemp("orders"), "k string, t long")


@pytest.fixture
def payments(tmp_path_factory: pytest.TempPathFactory) -> FileBatches:
    return FileBatches(tmp_path_factory.mktemp("payments"), "k string, t long")


@pytest.fixture
def driver(valkey: EmbeddedValkey) -> Iterator[Driver]:
    made = Driver(valkey.url)
    yield made
    made.close()


@pytest.fixture(scope="session")
def make_driver(valkey: EmbeddedValkey) -> Callable[[], Driver]:
    return lambda: Driver(valkey.url)
