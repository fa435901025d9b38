"""A guard against jumps of the Redis clock, which is the source of all processing time.

All replicas use the time of Redis. That clock may jump ahead, for example in a failover to a host with a wrong clock. A
job that accepted such a time would make all its substreams idle, and its clock never goes back. Therefore each command
carries the latest time that the coordinator accepts: the last time read from Redis, plus the local time elapsed since,
plus ``max_step_ms``. The function refuses the command if Redis has a later time. A restarted replica accepts the first
time that it reads.

The guard also gives the time of Redis to the parts of a coordinator that make no call for it: the expiry of keys, and
the sessions of the page. Between two readings, and while Redis does not answer, this time advances with the monotonic
clock of the machine, so that a change of the local time has no effect. Before the first reading, it is the local time.

If the clock goes back by more than ``max_step_ms``, the guard keeps the earlier reading as its reference. Otherwise it
would refuse the time after the correction of the clock, until a restart. Jobs have accepted this time before.
Keys and sessions follow the correction at once.
"""

import time

from tidegate.domain.errors import ClockJumped


def _elapsed_ms() -> float:
    """Return milliseconds since a fixed time, including suspensions of this machine if the platform counts them."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) / 1e6


class ClockGuard:
    """A guard that rejects Redis times more than ``max_step_ms`` ahead of the expected time."""

    def __init__(self, max_step_ms: int) -> None:
        self._max_step_ms = max_step_ms
        self._ahead_ms: float | None = None
        self._read_ahead_ms: float | None = None

    def now_s(self) -> float:
        """Return the time of Redis in Unix seconds, from the latest accepted reading; before it, the local time."""
        if self._read_ahead_ms is None:
            return time.time()
        return (self._read_ahead_ms + _elapsed_ms()) / 1000

    def latest_ms(self) -> int | None:
        """Return the latest time to accept; None before the first call of :meth:`accept`."""
        return None if self._ahead_ms is None else int(self._ahead_ms + _elapsed_ms()) + self._max_step_ms

    def accept(self, now_ms: int) -> None:
        """Accept ``now_ms`` as the time of Redis. The first call accepts any time.

        Raises:
            ClockJumped: If ``now_ms`` is after the latest time to accept.
        """
        latest_ms = self.latest_ms()
        if latest_ms is not None and now_ms > latest_ms:
            raise ClockJumped(now_ms)
        self._read_ahead_ms = ahead_ms = now_ms - _elapsed_ms()
        if self._ahead_ms is None or ahead_ms > self._ahead_ms - self._max_step_ms:
            self._ahead_ms = ahead_ms
