"""The store, driven from tests that are not asynchronous."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from tidegate.store.connection import connect
from tidegate.store.embedded import EmbeddedValkey
from tidegate.store.redis import JobStore

Result = TypeVar("Result")


class Driver:
    """A store with a loop of its own: ``driver(store.begin(...))`` gives what that returns."""

    def __init__(self, url: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.store = JobStore(connect(url))

    def __call__(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(coroutine)

    def close(self) -> None:
        self(self.store.redis.aclose())
        self.loop.close()


@pytest.fixture
def driver(valkey: EmbeddedValkey) -> Iterator[Driver]:
    made = Driver(valkey.url)
    yield made
    made.close()


@pytest.fixture(scope="session")
def make_driver(valkey: EmbeddedValkey) -> Callable[[], Driver]:
    return lambda: Driver(valkey.url)
