"""Limits on the open HTTP connections of a replica."""

import logging
from collections import Counter, defaultdict
from typing import Protocol

from tidegate.auth.usage import network, parsed_address
from tidegate.runtime.metrics import Metrics
from tidegate.settings import Settings
from tidegate.web.problems import Problem

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
MAX_PIPELINED = 100
"""Maximum number of requests of one connection that wait for the answer to an earlier request."""
LOG_INTERVAL_S = 10.0
ADDRESSES_LOGGED = 3
REASONS = {
    "malformed": "invalid or ambiguous HTTP",
    "head_too_large": f"request head over {MAX_HEAD_BYTES // 1024} KiB or {MAX_HEADERS} headers",
    "url_too_long": "URL too long",
    "too_many_pipelined": f"over {MAX_PIPELINED} requests before an answer",
    "request_timeout": "request not complete within TIDEGATE_REQUEST_TIMEOUT_S",
    "response_timeout": "answer not read within TIDEGATE_REQUEST_TIMEOUT_S",
    "too_many_connections": "over TIDEGATE_MAX_CONNECTIONS",
    "too_many_from_address": "over TIDEGATE_MAX_CONNECTIONS_PER_ADDRESS",
}
"""Reasons to refuse or close a connection, as text for the log, by label of the metric."""


class Timed(Protocol):
    """A connection with a timeout for its client."""

    def check(self, now: float, timeout_s: float) -> None:
        """Close the connection if its client is slower than ``timeout_s``. ``now`` is monotonic time in seconds."""

    def stop_waiting(self) -> None:
        """Close the connection if its client has not sent its request or read its answer."""


class Connections:
    """The open connections of a replica.

    An address is one IPv4 address or one IPv6 /64 network. The limit per address does not apply to trusted proxies,
    because many clients share a proxy.

    Args:
        settings: Settings of the service.
        max_connections: Maximum number of open connections. It is lower than the setting if the process may open only
            few files.
        metrics: Metrics of the replica.
    """

    def __init__(self, settings: Settings, max_connections: int, metrics: Metrics) -> None:
        self._settings, self._max_connections, self._metrics = settings, max_connections, metrics
        self._max_per_address = min(settings.max_connections_per_address, max_connections // 2)
        self._open: set[Timed] = set()
        self._by_network: Counter[str] = Counter()
        self._closed: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by reason and address
        self._next_log = 0.0
        metrics.observe_connections(lambda: len(self._open), max_connections, REASONS)

    def admit(self, connection: Timed, address: str) -> Problem | None:
        """Count a new connection and return None, or return the problem with which to refuse it."""
        if len(self._open) >= self._max_connections:
            detail = f"This replica has reached its limit of {len(self._open)} connections; try again later."
            return Problem("too_many_connections", detail)
        of = network(address)
        if self._by_network[of] >= self._max_per_address and not self._is_trusted(address):
            number = self._by_network[of]
            detail = f"{of} has reached the limit of {number} connections from one address; use fewer connections."
            return Problem("too_many_from_address", detail)
        self._open.add(connection)
        self._by_network[of] += 1
        return None

    def remove(self, connection: Timed, address: str) -> None:
        """Stop counting a connection that has ended."""
        if connection in self._open:
            self._open.remove(connection)
            of = network(address)
            self._by_network[of] -= 1
            if not self._by_network[of]:
                del self._by_network[of]

    def closed(self, address: str, reason: str) -> None:
        """Count a connection that this replica refused or closed."""
        self._metrics.refused_connections.labels(reason).inc()
        self._closed[reason][address] += 1

    def check(self, now: float) -> None:
        """Close the connections of clients that are too slow, and log the connections closed since the last log line.

        Args:
            now: Monotonic time in seconds.
        """
        for connection in list(self._open):
            connection.check(now, self._settings.request_timeout_s)
        if self._closed and now >= self._next_log:
            self._next_log = now + LOG_INTERVAL_S
            log.warning("Closed connections: %s.", self._summary())
            self._closed.clear()

    def stop_waiting(self) -> None:
        """Close the connections of clients that have not sent their requests or read their answers."""
        for connection in list(self._open):
            connection.stop_waiting()

    def _summary(self) -> str:
        """Return the closed connections by reason, with the most frequent addresses."""
        texts = []
        for reason, addresses in sorted(self._closed.items()):
            named = ", ".join(f"{number} from {address}" for address, number in addresses.most_common(ADDRESSES_LOGGED))
            more = len(addresses) - ADDRESSES_LOGGED
            texts.append(f"{REASONS[reason]} ({named}{f', {more} more addresses' if more > 0 else ''})")
        return "; ".join(texts)

    def _is_trusted(self, address: str) -> bool:
        parsed = parsed_address(address)
        return parsed is not None and any(parsed in proxies for proxies in self._settings.trusted_proxies)
