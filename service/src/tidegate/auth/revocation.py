"""A task that ends event streams whose keys are no longer valid."""

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
        self._waiting: dict[asyncio.Timeout, Key | None] = {}

    def is_valid(self, key: Key | None) -> bool:
        """Return whether a key is still valid. Return True if the caller has no key."""
        return self._keyring is None or key is None or self._keyring.is_valid(key)

    async def while_valid(self, items: AsyncIterator[Item], key: Key | None) -> AsyncIterator[Item]:
        """Yield items until they end or the key becomes invalid. ``key`` is None if the caller has no key."""
        while self.is_valid(key):
            try:
                async with asyncio.timeout(None) as waiting:
                    self._waiting[waiting] = key
                    item = await anext(items)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if waiting.expired():
                    return
                raise
            finally:
                self._waiting.pop(waiting, None)
            yield item

    async def run(self) -> None:
        """Check keys until cancelled."""
        while self._keyring is not None:
            await asyncio.sleep(CHECK_S)
            self._keyring.refresh()
            for waiting in [waiting for waiting, key in self._waiting.items() if not self.is_valid(key)]:
                del self._waiting[waiting]
                waiting.reschedule(asyncio.get_running_loop().time())
