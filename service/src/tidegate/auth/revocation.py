"""Ends the event streams of keys that were revoked or have expired."""

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from tidegate.auth.keyring import Key, Keyring

Item = TypeVar("Item")

CHECK_S = 0.5


class Revocation:
    """Ends streams whose keys no longer stand.

    :meth:`run` it as a task. A stream may be silent for long, so keys are checked beside it, for all streams at once.
    """

    def __init__(self, keyring: Keyring | None) -> None:
        self._keyring = keyring
        self._waiting: dict[asyncio.Task[object], Key] = {}
        self._ended: set[asyncio.Task[object]] = set()

    async def while_valid(self, items: AsyncIterator[Item], key: Key | None) -> AsyncIterator[Item]:
        """Yield items until their end, or until the key no longer stands; None is a caller without a key."""
        while True:
            try:
                item = await (anext(items) if key is None else self._next(items, key))
            except StopAsyncIteration:
                return
            yield item

    async def _next(self, items: AsyncIterator[Item], key: Key) -> Item:
        """Return the next item.

        Raises:
            StopAsyncIteration: If there is none, or the key no longer stands.
        """
        if self._keyring is None or not self._keyring.stands(key):
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

    async def run(self) -> None:
        """Check keys until cancelled."""
        while self._keyring is not None:
            await asyncio.sleep(CHECK_S)
            self._keyring.refresh()
            for task, key in list(self._waiting.items()):
                if not self._keyring.stands(key) and task not in self._ended:
                    self._ended.add(task)
                    task.cancel()
