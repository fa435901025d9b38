"""The history of one value: the value a given time ago.

That time is divided into 16 slots of equal width. The last value of a slot becomes the answer 15 slots after the slot
closed, at an age between 15/16 of that time and all of it. The first value becomes the answer at exactly that age.
Source: Hazelcast Jet, ``TimestampHistory``; see the conformance traces.
"""

from collections.abc import Callable

SLOTS = 16


class History:
    """Samples of one value over the last ``length_ms``; the first sample starts the slots.

    Times are in sixteenths of a millisecond, so that a slot is a whole number of them for every length.
    """

    def __init__(self, length_ms: int) -> None:
        self.length_ms = length_ms
        self.cells: list[int | None] = [None] * (SLOTS + 1)
        self.boundary: int | None = None
        """When the newest slot closes, in sixteenths of a millisecond; None before the first sample."""

    def sample(self, now_ms: int, value: int | None) -> int | None:
        """Record the current value and return the one of ``length_ms`` ago.

        A slot without a sample holds the value from before the gap.
        """
        now, width = now_ms * SLOTS, self.length_ms
        if self.boundary is None:
            self.boundary = now + width
        elif now >= self.boundary:
            closed = (now - self.boundary) // width + 1
            shift = min(closed, len(self.cells))
            self.cells = self.cells[shift:] + [self.cells[-1]] * shift
            # A gap longer than the whole history starts the slots anew; a shorter one keeps their phase.
            self.boundary = now + width if closed >= len(self.cells) else self.boundary + closed * width
        self.cells[-1] = value
        return self.cells[0]

    def next_change_ms(self, matters: Callable[[int], bool]) -> int | None:
        """Return when the answer becomes one that ``matters`` without new samples; None if it never does."""
        if self.boundary is None:
            return None
        for shifts, cell in enumerate(self.cells):
            if shifts and cell is not None and matters(cell):
                return -(-(self.boundary + (shifts - 1) * self.length_ms) // SLOTS)
        return None
