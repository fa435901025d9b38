"""The history of a value, which returns the value of about ``length_ms`` ago.

``length_ms`` is divided into 16 slots of equal width; the first sample starts the first slot. The history returns the
last value of a slot when 15 more slots have closed. At that time, the value is between 15/16 of ``length_ms`` and
``length_ms`` old. Before ``length_ms`` have passed since the first sample, the history returns None.

Source: Hazelcast Jet, ``TimestampHistory``; see the conformance traces.
"""

from collections.abc import Callable

SLOTS = 16


class History:
    """Samples of one value over the last ``length_ms``.

    Internal times are in sixteenths of a millisecond, so that the width of a slot is a whole number.
    """

    def __init__(self, length_ms: int) -> None:
        self.length_ms = length_ms
        self.cells: list[int | None] = [None] * (SLOTS + 1)
        self.boundary: int | None = None
        """The end of the newest slot, in sixteenths of a millisecond; None before the first sample."""

    def sample(self, now_ms: int, value: int | None) -> int | None:
        """Record the current value and return the value of ``length_ms`` ago.

        A slot without a sample has the value of the last slot with a sample.
        """
        now, width = now_ms * SLOTS, self.length_ms
        if self.boundary is None:
            self.boundary = now + width
        elif now >= self.boundary:
            closed = (now - self.boundary) // width + 1
            shift = min(closed, len(self.cells))
            self.cells = self.cells[shift:] + [self.cells[-1]] * shift
            # A gap longer than the history restarts the slots; after a shorter gap, the slots continue.
            self.boundary = now + width if closed >= len(self.cells) else self.boundary + closed * width
        self.cells[-1] = value
        return self.cells[0]

    def next_change_ms(self, matters: Callable[[int], bool]) -> int | None:
        """Return the next time at which the returned value changes to one that satisfies ``matters``.

        The time applies if there are no new samples. None: no value of the history satisfies ``matters``.
        """
        if self.boundary is None:
            return None
        for shifts, cell in enumerate(self.cells):
            if shifts and cell is not None and matters(cell):
                return -(-(self.boundary + (shifts - 1) * self.length_ms) // SLOTS)
        return None
