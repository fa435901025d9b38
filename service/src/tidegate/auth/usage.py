"""Usage of keys at one replica, and rate limits of clients."""

import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tidegate.auth.callers import QuotaExceeded, RateLimited
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
    """The calls and waiting clients of keys. Keys with the same name share quotas, because a rotation adds a key.

    The counts are those of one replica. A count in Redis would cost each call another round trip.

    Args:
        calls_per_s: Maximum number of calls per second of a key without a quota, or None for no limit.
        burst: Maximum number of calls at once of such a key, or None for the calls of one second.
        now_s: Function that returns the Unix time of the uses of keys.
    """

    def __init__(
        self,
        calls_per_s: int | None = None,
        burst: int | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._now_s = now_s
        self._calls_per_s, self._burst = calls_per_s, burst
        self._limits: dict[tuple[int, int], Limit] = {}
        self._waiting: Counter[str] = Counter()
        self._last_used: dict[str, float] = {}

    def request(self, key: Key) -> None:
        """Count a call.

        Raises:
            RateLimited: If the key makes too many calls per second.
        """
        self._last_used[key.id] = self._now_s()
        per_s, burst = key.quotas.requests_per_s, key.quotas.burst
        if per_s is None:
            per_s, burst = self._calls_per_s, burst or self._burst
        if per_s is None:
            return
        rate = per_s, burst or per_s
        if rate not in self._limits:
            self._limits[rate] = Limit(*rate)
        if not self._limits[rate].take(key.name):
            raise RateLimited(key.name, *rate)

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
