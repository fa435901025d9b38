"""A guard on the clock of Redis, by which all processing time goes.

Time is Redis's own, for all replicas alike. Should that clock leap ahead (a failover to a host whose clock is wrong), a
job that took it for true would call everybody silent, and could never go back. So each command says up to which time it
will believe: where the clock should be by this machine's count of what has passed since it last heard from it, and a
step more. Beyond that the command is refused and nothing is done. A replica that is started anew takes what it finds.
"""

import time

from tidegate.domain.errors import ClockJumped


def _elapsed_ms() -> float:
    """Milliseconds from some moment on, also those in which this machine was suspended, where that can be known."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) / 1e6


class ClockGuard:
    """``max_step_ms``: how far the clock may be ahead of where it should be."""

    def __init__(self, max_step_ms: int) -> None:
        self._max_step_ms = max_step_ms
        self._ahead_ms: float | None = None

    def latest_ms(self) -> int | None:
        """The latest time that can be true; None before the clock was ever heard."""
        return None if self._ahead_ms is None else int(self._ahead_ms + _elapsed_ms()) + self._max_step_ms

    def hear(self, now_ms: int) -> None:
        """Redis's clock is at ``now_ms``; the first time, that is taken for true.

        :raises ClockJumped: where it cannot be.
        """
        latest_ms = self.latest_ms()
        if latest_ms is not None and now_ms > latest_ms:
            raise ClockJumped(now_ms)
        self._ahead_ms = now_ms - _elapsed_ms()
