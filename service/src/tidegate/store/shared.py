"""Data that all replicas share in addition to jobs: the token secret and the last uses of API keys."""

import secrets
from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis

from tidegate.store.keyspace import API_KEYS, SECRET


async def token_secret(redis: Redis) -> bytes:
    """Return the MAC key of the watermark tokens; the first replica creates it."""
    await redis.set(SECRET, secrets.token_hex(32), nx=True)
    return bytes.fromhex(str(await redis.get(SECRET)))


async def record_last_use(redis: Redis, last_used: Mapping[str, float]) -> None:
    """Store the time of the last use of API keys, in Unix seconds by key id."""
    if last_used:
        await redis.hset(API_KEYS, mapping={key_id: str(round(at_s)) for key_id, at_s in last_used.items()})


async def last_uses(redis: Redis) -> dict[str, int]:
    """Return the time of the last use of each API key, in Unix seconds by key id."""
    found: Any = await redis.hgetall(API_KEYS)
    return {str(key_id): int(at_s) for key_id, at_s in found.items()}
