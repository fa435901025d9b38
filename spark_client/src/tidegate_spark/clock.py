"""The clock of the client. A test or a simulation passes its own."""

import time
from typing import Protocol


class Clock(Protocol):
    """Processing time in seconds, and a way to wait."""

    def time(self) -> float:
        """Return Unix time."""

    def monotonic(self) -> float:
        """Return a time that never goes back, from an arbitrary start."""

    def sleep(self, seconds: float) -> None:
        """Wait for at least ``seconds``."""


class SystemClock:
    """The clocks of this machine."""

    def time(self) -> float:
        """Return Unix time."""
        return time.time()

    def monotonic(self) -> float:
        """Return a time that never goes back, from an arbitrary start."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for at least ``seconds``."""
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()
