"""A task that stores the last use of each key."""

import asyncio
import logging

from redis.exceptions import RedisError

from tidegate.auth.usage import KeyUsage
from tidegate.store import shared
from tidegate.store.jobs import JobStore

log = logging.getLogger(__name__)

INTERVAL_S = 30.0


async def record_key_usage(store: JobStore, usage: KeyUsage) -> None:
    """Write the last use of each key to the store, every ``INTERVAL_S`` seconds and when the task is cancelled."""
    try:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await _write(store, usage)
    finally:
        await _write(store, usage)


async def _write(store: JobStore, usage: KeyUsage) -> None:
    try:
        await shared.record_last_use(store.servers, usage.take_last_used())
    except RedisError as error:
        log.warning("Cannot store the last use of keys: %s", error or type(error).__name__)
