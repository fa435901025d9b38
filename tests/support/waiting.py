"""Waiting for a condition, with a deadline."""

import time
from collections.abc import Callable


def until(reached: Callable[[], bool], what: str, timeout_s: float = 90, every_s: float = 0.1) -> None:
    deadline = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline, f"not reached within {timeout_s} s: {what}"
        time.sleep(every_s)
