"""A store of the run's Valkey, for one test or for many in one test."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.driver import Driver
from tidegate.store.embedded import EmbeddedValkey


@pytest.fixture
def driver(valkey: EmbeddedValkey) -> Iterator[Driver]:
    made = Driver(valkey.url)
    yield made
    made.close()


@pytest.fixture(scope="session")
def make_driver(valkey: EmbeddedValkey) -> Callable[[], Driver]:
    return lambda: Driver(valkey.url)
