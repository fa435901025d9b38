"""The clock of the client; tests and simulations replace it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Source of processing time, in seconds."""

    def time(self) -> float:
        """Return Unix time."""

    def monotonic(self) -> float:
        """Return a time that never goes back, from an arbitrary start."""

    def sleep(self, seconds: float) -> None:
        """Wait for at least ``seconds``."""


class SystemClock:
    """The clock of this machine."""

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
