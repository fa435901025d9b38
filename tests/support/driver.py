"""Access to the store for synchronous tests."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from redis.asyncio import Redis

from tests.support.store import JobStore
from tidegate.domain.history import Record
from tidegate.store.connection import connect
from tidegate.store.embedded import EmbeddedValkey
from tidegate.store.keyspace import key_of
from tidegate.store.replies import history_records
from tidegate.views.history import HistoryRecord

Result = TypeVar("Result")


class Driver:
    """A store with its own event loop: ``driver(store.begin(...))`` returns the result of the coroutine."""

    def __init__(self, url: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.store = JobStore(connect(url))

    def __call__(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(coroutine)

    def close(self) -> None:
        self(self.store.redis.aclose())
        self.loop.close()


def command_of(store: JobStore, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return the store's method for the command of this name."""
    command: Callable[..., Coroutine[Any, Any, Any]] = getattr(store.actions, name, None) or getattr(store, name)
    return command


async def records(store: JobStore, job: str, after: str = "-") -> list[tuple[str, Record]]:
    """Return the records after the id ``after`` (default: all records), oldest first, each with its id."""
    first = after if after == "-" else f"({after}"
    found: Any = await store.redis.xrange(key_of(job, "journal"), first, "+")
    read = history_records(found)
    for _, record in read:
        assert record.details.keys() <= HistoryRecord.model_fields.keys(), "the API must have every detail"
    return read


def with_store(valkey: EmbeddedValkey, what: Callable[[JobStore], Awaitable[Result]]) -> Result:
    """Run a coroutine function on a new store in a new event loop."""

    async def run() -> Result:
        redis: Redis = connect(valkey.url)
        try:
            return await what(JobStore(redis))
        finally:
            await redis.aclose()

    return asyncio.run(run())


def with_store_beside_browser(valkey: EmbeddedValkey, what: Callable[[JobStore], Awaitable[Result]]) -> Result:
    """Call :func:`with_store` in another thread, because Playwright runs an event loop in the thread of its test."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(with_store, valkey, what).result()
