"""The input of a query: rows of its substreams in order of their arrival."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tests.simulation.loop import START_MS

LAG_MS = 30_000


@dataclass(frozen=True, slots=True)
class Row:
    """A row.

    Attributes:
        event_time: The event time.
        silent_ms: Time without rows of the substream before this row arrived; for its first row, since the start of the
            simulation.
        behind_ms: Distance of the event time behind the highest event time of the substream's earlier rows; 0 if the
            row is not behind.
        readable_ms: Time from which the row can be read.
    """

    event_time: int
    silent_ms: int
    behind_ms: int
    readable_ms: int


class Source:
    """The rows of one substream.

    Args:
        random: The source of the rows.
        start_ms: Time at which the substream starts.
        silences_ms: Longest silence between two rows, which few rows have; 0 if the substream is never silent.
        end_ms: Time of the last row at the latest; None if the input ends with the simulation.
        transactions_ms: Longest time from the first row of a transaction to its commit; 0: there are no transactions.
        intervals_ms: The mean times between two rows from which one is drawn.
        ahead_ms: Time by which the clock of the substream is fast.
    """

    def __init__(
        self,
        random: Random,
        start_ms: int,
        silences_ms: int,
        end_ms: int | None = None,
        transactions_ms: int = 0,
        intervals_ms: Sequence[int] = (2_000, 5_000, 15_000, 40_000),
        ahead_ms: int = 0,
    ) -> None:
        self._random, self._silences_ms, self._end_ms = random, silences_ms, end_ms
        self._transactions_ms, self._open_until_ms = transactions_ms, 0
        self._readable_ms: list[int] = []
        self._interval_ms = random.choice(intervals_ms)
        self._behind_ms = random.choice((0, 0, 10_000, 120_000)) - ahead_ms
        self._arrived_ms = START_MS
        self._next_ms = start_ms + random.randrange(self._interval_ms)
        self._highest: int | None = None
        self.is_ended = False
        self.rows: list[Row] = []

    def length_at(self, now_ms: int) -> int:
        """Return the number of rows that have arrived by a time."""
        while self._next_ms <= now_ms and not self.is_ended:
            self._arrive()
            self.is_ended = self._end_ms is not None and self._next_ms > self._end_ms
        return len(self.rows)

    def committed_at(self, now_ms: int) -> int:
        """Return the number of rows before the first one whose transaction is open at a time."""
        self.length_at(now_ms)
        return bisect_right(self._readable_ms, now_ms)

    def read(self, start: int, end: int) -> Sequence[Row]:
        """Return a range of the rows."""
        return self.rows[start:end]

    def _arrive(self) -> None:
        random = self._random
        delay_ms = random.randrange(LAG_MS // 2) if random.random() < 0.9 else random.randrange(3 * LAG_MS)
        event_time = self._next_ms - self._behind_ms - delay_ms
        behind_ms = 0 if self._highest is None else max(0, self._highest - event_time)
        if self._transactions_ms and self._next_ms >= self._open_until_ms and random.random() < 0.2:
            self._open_until_ms = self._next_ms + random.randrange(self._transactions_ms)
        # The rows after the first one of an open transaction cannot be read either.
        self._readable_ms.append(max(self._next_ms, self._open_until_ms))
        self.rows.append(Row(event_time, self._next_ms - self._arrived_ms, behind_ms, self._readable_ms[-1]))
        self._highest = event_time if self._highest is None else max(event_time, self._highest)
        self._arrived_ms = self._next_ms
        is_silent = self._silences_ms and random.random() < 0.05
        self._next_ms += 1 + random.randrange(self._silences_ms if is_silent else 2 * self._interval_ms)

    @property
    def arrived_ms(self) -> int:
        """Time at which the last row arrived; the start of the simulation if no row has arrived."""
        return self._arrived_ms

    @property
    def highest(self) -> int | None:
        """The highest event time so far."""
        return self._highest
