"""A task that stores when keys were last used."""

import asyncio
import logging

from redis.exceptions import RedisError

from tidegate.auth.usage import KeyUsage
from tidegate.store import shared
from tidegate.store.jobs import JobStore

log = logging.getLogger(__name__)

INTERVAL_S = 30.0


class KeyRecorder:
    """A task that writes the last use of each key to the store, every ``INTERVAL_S`` rather than with every call."""

    def __init__(self, store: JobStore, usage: KeyUsage) -> None:
        self._store, self._usage = store, usage

    async def run(self) -> None:
        """Write until cancelled, and once more at the end."""
        try:
            while True:
                await asyncio.sleep(INTERVAL_S)
                await self._write()
        finally:
            await self._write()

    async def _write(self) -> None:
        try:
            await shared.record_last_use(self._store.redis, self._usage.take_last_used())
        except RedisError as error:
            log.warning("Cannot store the last use of keys: %s", error or type(error).__name__)
