"""Data that all replicas share in addition to jobs: the token secret and the last uses of API keys."""

import secrets
from collections.abc import Collection, Mapping
from typing import Any

from tidegate.store.keyspace import API_KEYS, SECRET
from tidegate.store.servers import Servers


async def token_secret(servers: Servers) -> bytes:
    """Return the MAC key of the watermark tokens; the first replica creates it.

    Raises:
        RedisError: If Redis does not answer, or has no key and accepts no writes.
    """
    stored: Any = await servers.at(SECRET, lambda server: server.execute(("GET", SECRET)))
    if stored is None:
        new = ("SET", SECRET, secrets.token_hex(32), "NX")
        await servers.at(SECRET, lambda server: server.execute(new))
        stored = await servers.at(SECRET, lambda server: server.execute(("GET", SECRET)))
    return bytes.fromhex(str(stored))


async def record_last_use(servers: Servers, last_used: Mapping[str, float]) -> None:
    """Store the time of the last use of API keys, in Unix seconds by key id."""
    if last_used:
        fields = (text for key_id, at_s in last_used.items() for text in (key_id, str(round(at_s))))
        words = ("HSET", API_KEYS, *fields)
        await servers.at(API_KEYS, lambda server: server.execute(words))


async def forget_last_uses(servers: Servers, kept: Collection[str], before_s: float) -> None:
    """Remove the last uses before a Unix time of all keys whose ids are not in ``kept``."""
    old = [key_id for key_id, at_s in (await last_uses(servers)).items() if key_id not in kept and at_s < before_s]
    if old:
        await servers.at(API_KEYS, lambda server: server.execute(("HDEL", API_KEYS, *old)))


async def last_uses(servers: Servers) -> dict[str, int]:
    """Return the time of the last use of each API key, in Unix seconds by key id."""
    found: Any = await servers.at(API_KEYS, lambda server: server.execute(("HGETALL", API_KEYS)))
    return {str(key_id): int(at_s) for key_id, at_s in found.items()}
