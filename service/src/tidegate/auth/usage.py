"""Usage of keys at one replica, and rate limits of clients."""

import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.auth.errors import QuotaExceeded
from tidegate.auth.keys import Key

MAX_CLIENTS = 10_000
"""Maximum number of clients that a limit tracks. A further client replaces the least recently updated one."""


class Limit:
    """A token bucket for each client, with ``burst`` events at once and ``per_s`` events per second on average."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Tokens of each client, and the monotonic time in seconds of their last update."""

    def has_room(self, client: str) -> bool:
        """Return whether the limit allows another event of a client. The event is not counted."""
        return self._tokens(client, time.monotonic()) >= 1

    def take(self, client: str) -> bool:
        """Count an event of a client and return True, or return False if the client has reached the limit."""
        now = time.monotonic()
        tokens = self._tokens(client, now)
        taken = tokens >= 1
        self._buckets[client] = tokens - taken, now
        self._buckets.move_to_end(client)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return taken

    def _tokens(self, client: str, now: float) -> float:
        tokens, updated = self._buckets.get(client, (self._burst, now))
        return min(self._burst, tokens + (now - updated) * self._per_s)


class KeyUsage:
    """The calls and waiting clients of keys. Keys with the same name share quotas, because a rotation adds a key."""

    def __init__(self) -> None:
        self._limits: dict[int, Limit] = {}
        self._waiting: Counter[str] = Counter()
        self._last_used: dict[str, float] = {}

    def request(self, key: Key) -> None:
        """Count a call.

        Raises:
            QuotaExceeded: If the key exceeds its quota of calls per second.
        """
        self._last_used[key.id] = time.time()
        limit = key.quotas.requests_per_s
        if limit is not None and not self._limits.setdefault(limit, Limit(limit, limit)).take(key.name):
            raise QuotaExceeded(key.name, "requests_per_s", limit)

    @contextmanager
    def waiting(self, key: Key | None) -> Iterator[None]:
        """Count a waiting client while the block runs.

        Raises:
            QuotaExceeded: If the key has reached its quota of waiting clients.
        """
        name, limit = (key.name, key.quotas.waiting) if key else ("", None)
        if limit is not None and self._waiting[name] >= limit:
            raise QuotaExceeded(name, "waiting", limit)
        self._waiting[name] += 1
        try:
            yield
        finally:
            self._waiting[name] -= 1

    def take_last_used(self) -> dict[str, float]:
        """Return the last use of each key that was used since the previous call, in Unix seconds by key id."""
        taken, self._last_used = self._last_used, {}
        return taken


def parsed_address(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an IP address, or None for the peer of a Unix socket. An IPv4-mapped address becomes an IPv4 address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed


def network(address: str) -> str:
    """Return the IPv4 address or IPv6 /64 network to which limits per address apply."""
    parsed = parsed_address(address)
    if not isinstance(parsed, ipaddress.IPv6Address):
        return address if parsed is None else str(parsed)
    return str(ipaddress.IPv6Network((int(parsed), 64), strict=False))
