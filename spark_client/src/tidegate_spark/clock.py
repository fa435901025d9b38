"""The clock of the client, which tests and simulations can replace."""

import time


class Clock:
    """The clock of this machine, in seconds."""

    def time(self) -> float:
        """Return the Unix time in seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Return a monotonic time in seconds, counted from an arbitrary start."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for at least ``seconds``."""
        time.sleep(seconds)


SYSTEM_CLOCK = Clock()
