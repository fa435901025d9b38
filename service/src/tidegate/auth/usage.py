"""Usage of keys at one replica, and limits on the events of clients."""

import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from tidegate.auth.keys import Key

MAX_CLIENTS = 10_000
"""Clients that a limit remembers; the least recent one is forgotten first."""


class QuotaExceeded(Exception):
    """A key that has used up one of its quotas."""

    code: ClassVar[str] = "quota_exceeded"

    def __init__(self, key: Key, quota: str, limit: int) -> None:
        super().__init__(f"The key {key.name} has used up its quota {quota} of {limit}.")
        self.key, self.quota, self.limit = key, quota, limit


class TokenBucket:
    """A limit on events: ``burst`` at once, and ``per_s`` per second on average."""

    __slots__ = ("_burst", "_per_s", "_tokens", "_updated")

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s, self._burst, self._tokens, self._updated = per_s, burst, burst, now

    def has_room(self, now: float) -> bool:
        """Return whether another event may happen. ``now`` is monotonic time in seconds."""
        self._tokens = min(self._burst, self._tokens + (now - self._updated) * self._per_s)
        self._updated = now
        return self._tokens >= 1

    def take(self, now: float) -> bool:
        """Count an event; return False, without counting it, if there are too many."""
        if not self.has_room(now):
            return False
        self._tokens -= 1
        return True


class KeyUsage:
    """The calls and waiting clients of keys. Keys with one name share their quotas, because a rotation replaces one."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, int], TokenBucket] = {}
        self._waiting: Counter[str] = Counter()
        self._last_used: dict[str, float] = {}

    def request(self, key: Key) -> None:
        """Count a call.

        Raises:
            QuotaExceeded: If the key made too many calls.
        """
        self._last_used[key.id] = time.time()
        limit = key.quotas.requests_per_s
        if limit is None:
            return
        now = time.monotonic()
        bucket = self._buckets.get((key.name, limit))
        if bucket is None:
            bucket = self._buckets[key.name, limit] = TokenBucket(limit, limit, now)
        if not bucket.take(now):
            raise QuotaExceeded(key, "requests_per_s", limit)

    @contextmanager
    def waiting(self, key: Key | None) -> Iterator[None]:
        """Count a waiting client while the block runs.

        Raises:
            QuotaExceeded: If too many clients of the key are waiting.
        """
        if key is None:
            yield
            return
        limit = key.quotas.waiting
        if limit is not None and self._waiting[key.name] >= limit:
            raise QuotaExceeded(key, "waiting", limit)
        self._waiting[key.name] += 1
        try:
            yield
        finally:
            self._waiting[key.name] -= 1
            if not self._waiting[key.name]:
                del self._waiting[key.name]

    def take_last_used(self) -> dict[str, float]:
        """Return the last uses of keys since the previous call: Unix time in seconds by key id."""
        taken, self._last_used = self._last_used, {}
        return taken


def parsed_address(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an IP address, or None for the peer of a unix socket. An IPv4 address mapped into IPv6 becomes IPv4."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed


def network(address: str) -> str:
    """Return the unit of a per-address limit: the IPv4 address, or the /64 network of an IPv6 address."""
    parsed = parsed_address(address)
    if not isinstance(parsed, ipaddress.IPv6Address):
        return address if parsed is None else str(parsed)
    return str(ipaddress.IPv6Network((int(parsed), 64), strict=False))


class Limit:
    """A limit on the events of each client: ``burst`` at once, and ``per_s`` per second on average."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def has_room(self, client: str) -> bool:
        """Return whether another event of a client may happen."""
        bucket = self._buckets.get(client)
        return bucket is None or bucket.has_room(time.monotonic())

    def take(self, client: str) -> bool:
        """Count an event of a client; return False, without counting it, if there are too many."""
        now = time.monotonic()
        bucket = self._buckets.setdefault(client, TokenBucket(self._per_s, self._burst, now))
        self._buckets.move_to_end(client)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return bucket.take(now)
