"""Numbers of rows, updated rows and late rows, by substream and hour of event time.

An hour is 3,600,000 units of event time, counted from 0. The ledger keeps the latest hours with rows. The entries of a
substream stay when the substream is done or evicted.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter, itemgetter

from tidegate.domain.names import SubstreamKey, member
from tidegate.domain.rows import HourCounts, LateDisposition, RowsOfHour

HOUR = 3_600_000
HOURS_KEPT = 168
"""Maximum number of hours kept: one week."""
ENTRIES_KEPT = 50_000
"""Maximum number of entries (substream and hour). A job with many substreams keeps fewer hours."""

Entry = tuple[SubstreamKey, int, HourCounts]
"""A substream, an hour, and the counts of the substream's rows in this hour."""


def sum_by_hour(rows: Iterable[Sequence[int]]) -> dict[int, tuple[int, int, int]]:
    """Return the sums of rows, updated rows and late rows for each hour."""
    sums: dict[int, tuple[int, int, int]] = {}
    for hour, count, updated, late in rows:
        before = sums.get(hour, (0, 0, 0))
        sums[hour] = before[0] + count, before[1] + updated, before[2] + late
    return sums


@dataclass(slots=True)
class Ledger:
    """Counts by hour, of the job and of the substreams that were known when their batch committed.

    ``unattributed`` is the number of rows by hour that batches accounted for without a substream.
    """

    of_job: dict[int, HourCounts] = field(default_factory=dict)
    of_substreams: dict[int, dict[SubstreamKey, HourCounts]] = field(default_factory=dict)
    unattributed: Counter[int] = field(default_factory=Counter)

    def add(
        self,
        rows: Iterable[tuple[SubstreamKey | None, RowsOfHour]],
        disposition: LateDisposition,
        all_rows: Sequence[RowsOfHour] = (),
        latest: int | None = None,
    ) -> None:
        """Add the rows of one batch.

        Args:
            rows: Rows by substream; None for an unknown substream.
            disposition: Disposition of the late rows.
            all_rows: All rows of the batch by hour, if ``rows`` is incomplete.
            latest: Latest accepted event time. The ledger ignores later hours, because they would displace valid
                hours. None: no limit.
        """
        given = [(key, of_hour) for key, of_hour in rows if of_hour[1]]
        attributed = sum_by_hour(of_hour for _, of_hour in given)
        of_job = {
            hour: counts
            for hour, counts in (sum_by_hour(all_rows) or attributed).items()
            if counts[0] and (latest is None or hour * HOUR <= latest)
        }
        for hour, counts in of_job.items():
            self.of_job[hour] = self.of_job.get(hour, HourCounts()) + _hour_counts(*counts, disposition)
            self.of_substreams.setdefault(hour, {})
            unattributed = counts[0] - attributed.get(hour, (0, 0, 0))[0]
            if unattributed > 0:
                self.unattributed[hour] += unattributed
        for key, (hour, count, updated, late) in given:
            if key is not None and hour in of_job:
                of_each = self.of_substreams[hour]
                of_each[key] = of_each.get(key, HourCounts()) + _hour_counts(count, updated, late, disposition)
        self._trim()

    def _trim(self) -> None:
        entries = sum(map(len, self.of_substreams.values()))
        while len(self.of_job) > 1 and (len(self.of_job) > HOURS_KEPT or entries > ENTRIES_KEPT):
            first = min(self.of_job)
            entries -= len(self.of_substreams.pop(first))
            del self.of_job[first]
            self.unattributed.pop(first, None)

    def entries(self) -> Iterator[Entry]:
        """Yield all entries of substreams."""
        for hour, of_each in self.of_substreams.items():
            for key, counts in of_each.items():
                yield key, hour, counts


def _hour_counts(count: int, updated: int, late: int, disposition: LateDisposition) -> HourCounts:
    dropped, diverted = (late, 0) if disposition == "dropped" else (0, late)
    return HourCounts(count, updated, dropped, diverted)


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive hours of event time, ``[start, end)``, in which rows of a substream were late.

    ``whole`` is true if the counts include all rows of these hours.
    """

    key: SubstreamKey
    start: int
    end: int
    counts: HourCounts
    whole: bool = True


def spans(entries: Iterable[Entry], unattributed: Collection[int] = ()) -> list[Span]:
    """Return the spans of late rows, sorted by dropped rows, then diverted rows (both descending), name and time.

    Args:
        entries: Entries of a ledger.
        unattributed: Hours with rows that have no substream.
    """
    found: list[Span] = []
    late = sorted((entry for entry in entries if entry[2].late), key=itemgetter(0, 1))
    for key, of_key in groupby(late, key=itemgetter(0)):
        open_span: Span | None = None
        for _, hour, counts in of_key:
            span = Span(key, hour * HOUR, (hour + 1) * HOUR, counts, hour not in unattributed)
            if open_span is not None and open_span.end == span.start:
                whole = open_span.whole and span.whole
                open_span = Span(key, open_span.start, span.end, open_span.counts + counts, whole)
                found[-1] = open_span
            else:
                open_span = span
                found.append(span)
    found.sort(key=lambda span: (member(span.key), span.start))
    return sorted(found, key=attrgetter("counts.dropped", "counts.diverted"), reverse=True)
