"""Termination of event streams whose keys are no longer valid."""

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from tidegate.auth.keyring import Keyring
from tidegate.auth.keys import Key

Item = TypeVar("Item")

CHECK_S = 0.5


class Revocation:
    """A task that ends streams whose keys were revoked or have expired.

    A stream may have no events for a long time, so one task checks the keys of all streams.
    """

    def __init__(self, keyring: Keyring | None) -> None:
        self._keyring = keyring
        self._waiting: dict[asyncio.Task[object], Key] = {}
        self._ended: set[asyncio.Task[object]] = set()

    def is_valid(self, key: Key | None) -> bool:
        """Return whether a key is still valid. None stands for a caller without a key."""
        return self._keyring is None or key is None or self._keyring.is_valid(key)

    async def while_valid(self, items: AsyncIterator[Item], key: Key | None) -> AsyncIterator[Item]:
        """Yield items until they end or the key becomes invalid. None stands for a caller without a key."""
        while True:
            try:
                item = await (anext(items) if key is None else self._next(items, key))
            except StopAsyncIteration:
                return
            yield item

    async def run(self) -> None:
        """Check keys until cancelled."""
        while self._keyring is not None:
            await asyncio.sleep(CHECK_S)
            self._keyring.refresh()
            for task, key in list(self._waiting.items()):
                if not self._keyring.is_valid(key) and task not in self._ended:
                    self._ended.add(task)
                    task.cancel()

    async def _next(self, items: AsyncIterator[Item], key: Key) -> Item:
        if self._keyring is None or not self._keyring.is_valid(key):
            raise StopAsyncIteration
        task = asyncio.current_task()
        assert task is not None
        self._waiting[task] = key
        try:
            return await anext(items)
        except asyncio.CancelledError:
            if task not in self._ended:
                raise
            task.uncancel()
            raise StopAsyncIteration from None
        finally:
            del self._waiting[task]
            self._ended.discard(task)
