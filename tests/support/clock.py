"""A virtual clock for the client and the coordinator."""

import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from tidegate_spark.clock import Clock

START_S = 1_700_000_000.0

_clocks: "WeakValueDictionary[int, VirtualClock]" = WeakValueDictionary()


class VirtualClock(Clock):
    """Processing time that only :meth:`sleep` and :meth:`advance` move.

    Both return at once. They move the time and make the calls that are due by then, in the caller's thread.
    """

    def __init__(self) -> None:
        self._now_s = START_S
        self._lock = threading.RLock()
        self._number = itertools.count()
        self._scheduled: list[tuple[float, int, Callable[[], object]]] = []
        _clocks[id(self)] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _clock, (id(self),)  # a copy of a client keeps the clock of its test

    def time(self) -> float:
        """Return Unix time in seconds."""
        return self._now_s

    def monotonic(self) -> float:
        """Return the virtual time, which never goes back."""
        return self._now_s

    def now_ms(self) -> int:
        """Return Unix time in whole milliseconds, as the coordinator counts it."""
        return round(1000 * self._now_s)

    def sleep(self, seconds: float) -> None:
        """Move the time forward."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move the time forward, and make the calls that are due in the order of their times."""
        with self._lock:
            until = self._now_s + seconds
            while self._scheduled and self._scheduled[0][0] <= until:
                self._now_s, _, call = heapq.heappop(self._scheduled)
                call()
            self._now_s = max(self._now_s, until)

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Schedule a call ``seconds`` from now."""
        with self._lock:
            heapq.heappush(self._scheduled, (self._now_s + seconds, next(self._number), call))


def _clock(identity: int) -> VirtualClock:
    return _clocks[identity]
