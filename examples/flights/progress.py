"""Progress lines with the batch, the watermark, what holds the watermark, and the number of rows."""

import time

from examples.flights.files import utc
from tidegate_spark import Committed


class Progress:
    """A printer of progress lines: at most one line every ``every_s`` seconds, and always one for the last batch."""

    def __init__(self, files: int, every_s: float) -> None:
        self.files, self.every_s = files, every_s
        self._shown_at = 0.0

    def committed(self, committed: Committed) -> None:
        number = committed.batch.batch_id + 1
        if time.monotonic() - self._shown_at < self.every_s and number < self.files:
            return
        self._shown_at = time.monotonic()
        watermark = "none yet" if committed.watermark is None else f"{utc(committed.watermark):%Y-%m-%d %H:%M}"
        held_by = str(committed.held_by or "nothing")
        print(
            f"  batch {number:>4}/{self.files}   watermark {watermark:<16}   held by {held_by:<24}"
            f" {committed.rows:>6,} rows, {committed.late} late",
            flush=True,
        )
