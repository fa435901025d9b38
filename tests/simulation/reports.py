"""The max event times of classified rows, from which the observer derives bounds for C and for the table of the job."""

from collections import defaultdict
from collections.abc import Collection, Iterable

from tests.simulation.exclusions import Key, Promise, slowest


class Reports:
    """The max event times of the rows that drivers have classified.

    Args:
        promise: The promise of the job.
        substreams: All substreams of the job.
    """

    def __init__(self, promise: Promise, substreams: Collection[Key]) -> None:
        self._promise, self._substreams = promise, substreams
        self._pending: dict[Key, dict[int, int]] = defaultdict(dict)
        self._rows: dict[tuple[str, int], dict[Key, int]] = defaultdict(dict)
        self._committed: dict[Key, int] = {}
        self._known: dict[Key, int] = {}
        self._forgotten_until: dict[Key, int] = {}
        self._history: list[tuple[int, int]] = []
        self._reached: int | None = None

    def add(self, key: Key, batch_id: int, max_event_time: int) -> None:
        """Add the rows of a batch that is not yet committed."""
        self._pending[key][batch_id] = self._rows[key[0], batch_id][key] = max_event_time

    def commit(self, query: str, batch_id: int, now_ms: int) -> None:
        """Record that the coordinator has committed a batch and all earlier batches."""
        for key, batches in self._pending.items():
            if key[0] != query:
                continue
            for each in [each for each in batches if each <= batch_id]:
                _raise(self._committed, key, batches.pop(each))
        if self._committed:
            self._history.append((now_ms, max(self._committed.values())))
        # A substream that catches up to the limit on skew holds the watermark again, which does not go back.
        reached = slowest([self._committed.get(key) for key in self._substreams], self._promise.max_skew_ms)
        self._reached = max((time for time in (reached, self._reached) if time is not None), default=None)

    def know(self, query: str, batch_id: int) -> None:
        """Record that a query has stored the acknowledged commit of a batch with its checkpoint."""
        for key, max_event_time in self._rows[query, batch_id].items():
            if batch_id > self._forgotten_until.get(key, -1):
                _raise(self._known, key, max_event_time)

    def forget(self, keys: Iterable[Key]) -> None:
        """Record that the job has removed substreams."""
        for key in keys:
            self._known.pop(key, None)
            self._forgotten_until[key] = max((batch for query, batch in self._rows if query == key[0]), default=-1)

    def is_lost(self, key: Key, max_event_time: int | None) -> bool:
        """Return whether a max event time in the table of the job is below one that was committed."""
        known = self._known.get(key)
        return known is not None and (max_event_time is None or max_event_time < known)

    def highest_watermark(self, counting: Collection[Key], now_ms: int) -> int | None:
        """Return the highest C that committed rows allow; None if they allow no watermark.

        Args:
            counting: The substreams that have always counted, unless an idle timeout or retention has passed them.
            now_ms: The time.
        """
        allowed = max(self._committed.values(), default=None)
        if self._promise.arrival_target is not None:
            # Whatever the queries have read, and however early rows arrive, no time after the clock is reached.
            return max(now_ms, now_ms if allowed is None else allowed - self._promise.lag_ms)
        if not counting or self._promise.idle_timeout_ms is not None:
            return None if allowed is None else allowed - self._promise.lag_ms
        lowest: int | None
        if self._promise.max_skew_ms is None:
            lowest = slowest([self._committed.get(key) for key in counting], None)
        elif len(counting) == len(self._substreams) and self._promise.lag_ms == self._promise.longest_lag_ms:
            lowest = self._reached
        else:  # the median may be another one
            lowest = allowed
        allowed = max((time for time in (lowest, self._retained(now_ms)) if time is not None), default=None)
        return None if allowed is None else allowed - self._promise.lag_ms

    def _retained(self, now_ms: int) -> int | None:
        """Return the highest event time of ``max_retention_ms`` ago, up to the width of a slot of the history."""
        if self._promise.max_retention_ms is None:
            return None
        oldest_ms = now_ms - self._promise.max_retention_ms * 15 // 16
        return max((time for at_ms, time in self._history if at_ms <= oldest_ms), default=None)


def _raise(values: dict[Key, int], key: Key, value: int) -> None:
    values[key] = max(value, values.get(key, value))
