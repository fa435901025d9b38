"""Virtual time: the events of a simulation in order of their times, and the clocks of its hosts."""

import heapq
from collections.abc import Callable
from typing import Any

from tidegate_spark.clock import Clock

START_MS = 1_700_000_000_000


class Loop:
    """The events of a simulation.

    Attributes:
        now_ms: The virtual time.
        steps: Number of steps so far: events, and effects that are performed within an event.
    """

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.steps = 0
        self._number = 0
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []

    def after(self, delay_ms: int, call: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call."""
        self._number += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._number, call, arguments))

    def run_until(self, end_ms: int) -> None:
        """Make the calls that are due by ``end_ms``."""
        events = self._events
        while events and events[0][0] <= end_ms:
            self.now_ms, _, call, arguments = heapq.heappop(events)
            self.steps += 1
            call(*arguments)
        self.now_ms = max(self.now_ms, end_ms)


class HostClock(Clock):
    """The clock of a host, which a fault can step. The monotonic clock has no steps."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.offset_ms = 0

    def time(self) -> float:
        """Return the Unix time of this host in seconds."""
        return (self._loop.now_ms + self.offset_ms) / 1000

    def monotonic(self) -> float:
        """Return the virtual time in seconds."""
        return self._loop.now_ms / 1000

    def sleep(self, seconds: float) -> None:
        """Raise an error: nothing sleeps in a simulation."""
        raise AssertionError("a procedure sleeps with the effect Pause")
