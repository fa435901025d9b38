"""Throttles: which of the merged watermarks are worth emitting.

A throttle turns the ideal watermark into a candidate; the candidate goes out when it is ahead of the last one that did.
"""

from dataclasses import dataclass
from typing import Protocol

from tidegate.domain.frame import Frame
from tidegate.domain.numbers import above


class Throttle(Protocol):
    """What stands between the merged watermark and the emitted one."""

    def candidate(self, ideal: int | None) -> int | None:
        """The watermark that may go out in place of ``ideal``: never ahead of it."""
        ...


@dataclass(frozen=True, slots=True)
class NoThrottle:
    """Emits every advance."""

    def candidate(self, ideal: int | None) -> int | None:
        return ideal


@dataclass(frozen=True, slots=True)
class FrameThrottle:
    """Emits once a frame, and emits the boundary: nobody closes a window between two boundaries."""

    frame: Frame

    def candidate(self, ideal: int | None) -> int | None:
        return None if ideal is None else self.frame.floor(ideal)


def offer(throttle: Throttle, ideal: int | None, last: int | None) -> int | None:
    """The watermark to emit now, or None. ``last`` is the one emitted before; what is emitted is always ahead of it."""
    candidate = throttle.candidate(ideal)
    return candidate if above(candidate, last) else None
