"""The substreams that the watermark may pass, and those that must stay evicted, as an observer knows them."""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from tests.simulation.source import Row

Key = tuple[str, str]
"""A query and the name of its substream."""


@dataclass
class Promise:
    """What all configurations of a run promise: a row that is in order by the shortest lag is on time.

    Attributes:
        lag_ms: Shortest lag so far. A row that is at most so far behind its substream is in order.
        longest_lag_ms: Longest lag so far. The watermark of a substream is at most so far behind its max event time.
        idle_timeout_ms: Shortest idle timeout so far; None if no configuration had one.
        max_retention_ms: The retention; None if slower substreams hold the watermark for any time.
        max_skew_ms: The limit on skew; None if substreams far behind the median hold the watermark.
        arrival_target: The target of the arrival delay; None if silent substreams hold the watermark for any time.
    """

    lag_ms: int
    longest_lag_ms: int
    idle_timeout_ms: int | None = None
    max_retention_ms: int | None = None
    max_skew_ms: int | None = None
    arrival_target: float | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Promise":
        """Return the promise of one configuration."""
        lag_ms = document["policy"]["lag_ms"]
        names = ("idle_timeout_ms", "max_retention_ms", "max_skew_ms", "arrival_target")
        return cls(lag_ms, lag_ms, *(document.get(name) for name in names))

    def add(self, document: Mapping[str, Any]) -> None:
        """Add a configuration."""
        lag_ms, timeout_ms = document["policy"]["lag_ms"], document["idle_timeout_ms"]
        self.lag_ms, self.longest_lag_ms = min(lag_ms, self.lag_ms), max(lag_ms, self.longest_lag_ms)
        known = [each for each in (self.idle_timeout_ms, timeout_ms) if each is not None]
        self.idle_timeout_ms = min(known, default=None)

    @property
    def is_without_limits(self) -> bool:
        """Whether no limit has let the watermark pass a substream."""
        limits = self.idle_timeout_ms, self.max_retention_ms, self.max_skew_ms, self.arrival_target
        return all(limit is None for limit in limits)

    def is_in_order(self, row: Row) -> bool:
        """Return whether a row must be on time unless its substream is excluded."""
        return row.behind_ms <= self.lag_ms

    def may_come_late(self, row: Row, watermark: int) -> bool:
        """Return whether a row may be late for a watermark because of the target: no query could read it before."""
        return self.arrival_target is not None and watermark < row.readable_ms

    def has_silence(self, rows: Iterable[Row]) -> bool:
        """Return whether the substream was silent for the idle timeout before one of the rows."""
        return self.idle_timeout_ms is not None and any(row.silent_ms >= self.idle_timeout_ms for row in rows)


def slowest(times: Collection[int | None], max_skew_ms: int | None) -> int | None:
    """Return the lowest of the max event times that hold the watermark; None if it belongs to one without rows.

    Args:
        times: The max event times of all substreams that count.
        max_skew_ms: The limit on their distance behind the lower median; None: no limit.
    """
    known = sorted(time for time in times if time is not None)
    if not known or len(known) < len(times):
        return None
    median = known[(len(known) - 1) // 2]
    return next(time for time in known if max_skew_ms is None or time >= median - max_skew_ms)


class Exclusions:
    """The substreams that the watermark may pass.

    A substream is excluded from the time at which it may not count (it was silent, evicted or idle, it is not declared,
    or the job was reset) until its watermark, by the rows that were reported since then, has reached W.

    Args:
        promise: The promise of the job.
    """

    def __init__(self, promise: Promise) -> None:
        self._promise = promise
        self._excluded: set[Key] = set()
        self._ever_excluded: set[Key] = set()
        self._max_event_times: dict[Key, int] = {}

    def always_counting(self, keys: Iterable[Key]) -> list[Key]:
        """Return those of the substreams that were never excluded."""
        return [key for key in keys if key not in self._ever_excluded]

    @property
    def has_any(self) -> bool:
        """Whether any substream was excluded so far."""
        return bool(self._ever_excluded)

    @property
    def without_rows(self) -> set[Key]:
        """The excluded substreams without rows since then."""
        return {key for key in self._excluded if key not in self._max_event_times}

    def known(self, key: Key, max_event_time: int | None) -> int | None:
        """Return the max event time that the coordinator knows at least, given that of all rows."""
        return self._max_event_times.get(key) if key in self._ever_excluded else max_event_time

    def exclude(self, keys: Iterable[Key]) -> None:
        """Exclude substreams. Only rows that are classified from now on prove that a substream counts again."""
        for key in keys:
            self._excluded.add(key)
            self._ever_excluded.add(key)
            self._max_event_times.pop(key, None)

    def lose(self) -> None:
        """Exclude each substream that was excluded before: the lost state may include its return."""
        self.exclude(self._ever_excluded)

    def allows_late(self, key: Key, rows: Sequence[Row], is_reported: bool, watermark: int | None) -> bool:
        """Return whether rows in order may be late, and add the rows.

        Args:
            key: The substream.
            rows: The rows of its next batch.
            is_reported: Whether the rows of all earlier batches were reported.
            watermark: The highest known watermark.
        """
        if self._promise.has_silence(rows):
            self._excluded.add(key)
            self._ever_excluded.add(key)
        elif is_reported and self._reaches(key, watermark):
            self._excluded.discard(key)
        highest = max(row.event_time for row in rows)
        self._max_event_times[key] = max(highest, self._max_event_times.get(key, highest))
        has_limit = self._promise.max_retention_ms is not None or self._promise.max_skew_ms is not None
        return key in self._excluded or has_limit

    def _reaches(self, key: Key, watermark: int | None) -> bool:
        max_event_time = self._max_event_times.get(key)
        if max_event_time is None:
            return False
        return watermark is None or max_event_time - self._promise.longest_lag_ms >= watermark


class Evictions:
    """Evicted substreams, which must not return to the job before they report again.

    The promise ends with a loss of state, because clients then report the max event times of all their substreams
    again. It also ends with a declaration at the start of the query, or with one that was sent before the eviction.

    Attributes:
        count: Number of evictions so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._watched: dict[Key, int] = {}

    @property
    def watched(self) -> Set[Key]:
        """The substreams that must not return."""
        return self._watched.keys()

    def evict(self, key: Key) -> None:
        """Watch a substream that was evicted after all its rows were committed."""
        self.count += 1
        self._watched[key] = self.count

    def lose(self) -> None:
        """Stop watching, because the job has lost state."""
        self._watched.clear()

    def reports(self, keys: Iterable[Key]) -> None:
        """Stop watching substreams that have rows again."""
        for key in keys:
            self._watched.pop(key, None)

    def declares(self, keys: Iterable[Key], is_expected: bool, count: int) -> None:
        """Stop watching substreams that a query has declared.

        Args:
            keys: The substreams.
            is_expected: Whether the query has started and not yet committed a batch, or has recognized a loss.
            count: Number of evictions when the declaration was sent.
        """
        self.reports([key for key in keys if is_expected or count < self._watched.get(key, 0)])

    def restores(self, query: str) -> None:
        """Stop watching the substreams of a query, which reports all their max event times again."""
        self.reports([key for key in self._watched if key[0] == query])

    def returned(self, present: Iterable[Key]) -> Key | None:
        """Return a watched substream that is in the table of the job, or None."""
        return min(self.watched & set(present), default=None)
