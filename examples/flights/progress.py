"""A line now and then: how far the replay is, where the watermark stands, and who holds it."""

import time

from examples.flights.files import utc
from tidegate_spark import Committed


class Progress:
    """Prints at most one line in ``every_s`` seconds, and the last one."""

    def __init__(self, files: int, every_s: float) -> None:
        self.files, self.every_s = files, every_s
        self._shown_at = 0.0

    def committed(self, committed: Committed) -> None:
        number = int(committed.batch) + 1
        if time.monotonic() - self._shown_at < self.every_s and number < self.files:
            return
        self._shown_at = time.monotonic()
        watermark = "none yet" if committed.watermark is None else f"{utc(committed.watermark):%Y-%m-%d %H:%M}"
        held_by = str(committed.held_by or "nobody")
        print(
            f"  batch {number:>4}/{self.files}   watermark {watermark:<16}   held by {held_by:<24}"
            f" {committed.rows:>6,} rows, {committed.late} late",
            flush=True,
        )
