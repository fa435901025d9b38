"""Warnings about the rows of a query: rows that are dropped, and event times that contradict the clock.

A faulty source affects every batch. The first affected batch is therefore logged at once. Later batches are logged
together, with totals, at most every :data:`INTERVAL_S` seconds and when the query ends.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from tidegate_spark.batch import EPOCH, utc_text
from tidegate_spark.clock import Clock
from tidegate_spark.logs import QueryLog
from tidegate_spark.protocol.fold import Fold

INTERVAL_S = 300.0
MAX_NAMES = 5
"""Maximum number of substreams that a log record names."""

AHEAD_MS = 60_000
"""Distance of the watermark ahead of the clock, in milliseconds, that clocks of different machines do not explain."""

_SECOND_YEAR_MS = (datetime(1971, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)

_DROPPED = "dropped {rows} of {substreams}{batches}. To keep such rows, call late_output()."
_FUTURE = (
    "rows of {substreams}{batches} have event times too far ahead of the clock. They move no watermark. Check the "
    "sources' clocks and max_future_skew."
)
_COUNTED_TOGETHER = (
    "the batch has too many substreams for counts by substream{batches}; its rows are counted together. Choose a "
    "coarser substream."
)


class _Recurring:
    """A warning that is logged at once, and then with totals."""

    def __init__(self, log: QueryLog, clock: Clock, text: str) -> None:
        self._log, self._clock, self._text = log, clock, text
        self._logged_at: float | None = None
        self._forget()

    def _forget(self) -> None:
        self._rows: Counter[str] = Counter()
        self._substreams: dict[str, None] = {}
        self._batches: list[int] = []

    def add(self, batch_id: int, rows: Mapping[str, int], substreams: Iterable[str]) -> None:
        """Add an affected batch, with its affected rows by class and their substreams."""
        self._rows.update(rows)
        self._substreams.update(dict.fromkeys(substreams))
        self._batches.append(batch_id)

    def log_if_due(self) -> None:
        """Log the batches that are not logged yet, unless the last record is too recent."""
        if self._logged_at is None or self._clock.monotonic() - self._logged_at >= INTERVAL_S:
            self.log()

    def log(self) -> None:
        """Log the batches that are not logged yet."""
        if not self._batches:
            return
        names, more = [*self._substreams][:MAX_NAMES], len(self._substreams) - MAX_NAMES
        text = self._text.format(
            rows=", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in self._rows.items()) + " rows",
            substreams=", ".join(names) + (f" and {more} more" if more > 0 else ""),
            batches="" if len(self._batches) == 1 else f" in {len(self._batches):,} batches since the last warning",
        )
        self._log.warning("%s", text, extra={"batch": self._batches[-1]})
        self._logged_at = self._clock.monotonic()
        self._forget()


class RowWarnings:
    """The warnings about the rows of one run of a query."""

    def __init__(self, log: QueryLog, clock: Clock) -> None:
        self._log = log
        self._dropped = _Recurring(log, clock, _DROPPED)
        self._future = _Recurring(log, clock, _FUTURE)
        self._counted_together = _Recurring(log, clock, _COUNTED_TOGETHER)
        self._warned_of_unit = self._warned_of_watermark = False

    def check(self, batch_id: int, fold: Fold, is_by_the_clock: bool, dropped: Mapping[str, int]) -> None:
        """Warn about the rows of a finished batch, and log the totals of earlier batches if they are due.

        Args:
            batch_id: Id of the batch.
            fold: The fold of its rows.
            is_by_the_clock: Whether event times are epoch milliseconds, and not in another unit that the job uses.
            dropped: Number of dropped rows by class.
        """
        if dropped:
            self._dropped.add(batch_id, dropped, [name for each in dropped for name in fold.substreams_with(each)])
        if future := fold.count("future"):
            self._future.add(batch_id, {"future": future}, fold.substreams_with("future"))
        for warning in self._all():
            warning.log_if_due()
        if is_by_the_clock and not self._warned_of_unit:
            self._check_unit(batch_id, fold)

    def counted_together(self, batch_id: int) -> None:
        """Warn about a batch that has too many substreams for counts by substream."""
        self._counted_together.add(batch_id, {}, ())
        self._counted_together.log_if_due()

    def _all(self) -> tuple[_Recurring, ...]:
        return self._dropped, self._future, self._counted_together

    def _check_unit(self, batch_id: int, fold: Fold) -> None:
        """Warn once if the event times of a batch are in another unit than milliseconds."""
        times = fold.max_event_times().values()
        if times and all(0 <= time < _SECOND_YEAR_MS for time in times):
            found = f"all event times of the batch are in 1970, until {utc_text(max(times))}"
        elif fold.count("future") and fold.count("future") + fold.count("null_event_time") == sum(fold.rows):
            found = "all event times of the batch are too far ahead of the clock"
        else:
            return
        self._warned_of_unit = True
        self._log.warning(
            "%s: expected timestamps or epoch milliseconds. Convert seconds, microseconds or nanoseconds first, for "
            "example with timestamp_seconds(). If the whole job uses another unit, configure max_future_skew=None.",
            found,
            extra={"batch": batch_id},
        )

    def check_watermark(self, watermark: int | None, now_ms: int | None) -> None:
        """Warn once if the watermark, in epoch milliseconds, is ahead of the coordinator's clock."""
        if self._warned_of_watermark or watermark is None or now_ms is None or watermark - now_ms < AHEAD_MS:
            return
        self._warned_of_watermark = True
        self._log.warning(
            "the watermark %s is %s ahead of the clock: correct event times below it are late. Check whether local "
            "times were read as UTC, and the sources' clocks.",
            utc_text(watermark),
            timedelta(seconds=(watermark - now_ms) // 1000),
        )

    def close(self) -> None:
        """Log the totals that are not logged yet."""
        for warning in self._all():
            warning.log()
