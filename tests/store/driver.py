"""The store, driven from tests that are not asynchronous."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tidegate.store.connection import connect
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
