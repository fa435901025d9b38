"""A task that stores the last use of each key."""

import asyncio
import logging

from redis.exceptions import RedisError

from tidegate.auth.keyring import Keyring
from tidegate.auth.usage import KeyUsage
from tidegate.store import shared
from tidegate.store.jobs import JobStore

log = logging.getLogger(__name__)

INTERVAL_S = 30.0
FORGET_AFTER_S = 30 * 24 * 3600
"""Time after which the last use of a revoked key is removed. Another replica may not yet have read a new key."""


async def record_key_usage(store: JobStore, usage: KeyUsage, keyring: Keyring | None) -> None:
    """Write the last use of each key to the store, every ``INTERVAL_S`` seconds and when the task is cancelled."""
    try:
        await _forget(store, keyring)
        while True:
            await asyncio.sleep(INTERVAL_S)
            await _write(store, usage)
    finally:
        await _write(store, usage)


async def _forget(store: JobStore, keyring: Keyring | None) -> None:
    if keyring is None:
        return
    kept = {key.id for key in keyring.keys()}  # noqa: SIM118 - a keyring is no mapping
    try:
        await shared.forget_last_uses(store.servers, kept, keyring.now_s() - FORGET_AFTER_S)
    except RedisError as error:
        log.warning("Cannot remove the last uses of revoked keys: %s", error or type(error).__name__)


async def _write(store: JobStore, usage: KeyUsage) -> None:
    try:
        await shared.record_last_use(store.servers, usage.take_last_used())
    except RedisError as error:
        log.warning("Cannot store the last use of keys: %s", error or type(error).__name__)
