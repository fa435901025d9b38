"""What became of rows that came late, by hour of event time: so that a loss shows where and when it was.

An hour is 3,600,000 units of event time, counted from 0, and bears the number of those before it. The latest that had
any rows are kept. What is kept of a substream stays when that ends or is forgotten, for it is what became of its rows.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter, itemgetter

from tidegate.domain.records import HourCounts, HourOfRows, LateDisposition
from tidegate.domain.substream import SubstreamKey, member

HOUR = 3_600_000
HOURS_KEPT = 168
"""A week."""
ENTRIES_KEPT = 50_000
"""Substreams by hour: of a job that has many, fewer hours are kept, but always the latest."""


def _counted(seen: int, updated: int, late: int, went: LateDisposition) -> HourCounts:
    dropped, diverted = (late, 0) if went == "dropped" else (0, late)
    return HourCounts(seen, updated, dropped, diverted)


def added_up(rows: Iterable[Sequence[int]]) -> dict[int, tuple[int, int, int]]:
    """By hour: how many rows there are, how many changed a result, and how many were late."""
    found: dict[int, tuple[int, int, int]] = {}
    for hour, seen, updated, late in rows:
        before = found.get(hour, (0, 0, 0))
        found[hour] = before[0] + seen, before[1] + updated, before[2] + late
    return found


Entry = tuple[SubstreamKey, int, HourCounts]
"""A substream, an hour, and what became of its rows."""


@dataclass(slots=True)
class Ledger:
    """``of_job``: by hour. ``of_substreams``: by hour, of those substreams that were known as their batch committed.
    ``untold``: how many rows of an hour were told of the job, and of no substream.
    """

    of_job: dict[int, HourCounts] = field(default_factory=dict)
    of_substreams: dict[int, dict[SubstreamKey, HourCounts]] = field(default_factory=dict)
    untold: Counter[int] = field(default_factory=Counter)

    def enter(
        self,
        rows: Iterable[tuple[SubstreamKey | None, HourOfRows]],
        went: LateDisposition,
        of_all: Sequence[HourOfRows] = (),
        latest: int | None = None,
    ) -> None:
        """Takes in the rows of one batch; None: of a substream that is not known. ``of_all``: all of its rows, where
        ``rows`` are not. Hours that begin beyond ``latest`` cannot be true, and would take the place of others.
        """
        given = [(key, of_hour) for key, of_hour in rows if of_hour[1]]
        told = added_up(of_hour for _, of_hour in given)
        of_job = {
            hour: counts
            for hour, counts in (added_up(of_all) or told).items()
            if counts[0] and (latest is None or hour * HOUR <= latest)
        }
        for hour, counts in of_job.items():
            self.of_job[hour] = self.of_job.get(hour, HourCounts()) + _counted(*counts, went)
            self.of_substreams.setdefault(hour, {})
            untold = counts[0] - told.get(hour, (0, 0, 0))[0]
            if untold > 0:
                self.untold[hour] += untold
        for key, (hour, seen, updated, late) in given:
            if key is not None and hour in of_job:
                of_each = self.of_substreams[hour]
                of_each[key] = of_each.get(key, HourCounts()) + _counted(seen, updated, late, went)
        self._shorten()

    def _shorten(self) -> None:
        entries = sum(map(len, self.of_substreams.values()))
        while len(self.of_job) > 1 and (len(self.of_job) > HOURS_KEPT or entries > ENTRIES_KEPT):
            first = min(self.of_job)
            entries -= len(self.of_substreams.pop(first))
            del self.of_job[first]
            self.untold.pop(first, None)

    def entries(self) -> Iterator[Entry]:
        for hour, of_each in self.of_substreams.items():
            for key, counts in of_each.items():
                yield key, hour, counts


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive hours in which rows of a substream were late: event times from ``start`` up to, and without, ``end``.

    ``counts`` are of its rows of these hours; ``whole``: of all of them.
    """

    key: SubstreamKey
    start: int
    end: int
    counts: HourCounts
    whole: bool = True


def spans(entries: Iterable[Entry], untold: Collection[int] = ()) -> list[Span]:
    """Where rows were late, most rows dropped first; then most diverted, by name, by time. ``untold``: hours in which
    there may be rows that were told of no substream.
    """
    found: list[Span] = []
    late = sorted((entry for entry in entries if entry[2].late), key=itemgetter(0, 1))
    for key, of_key in groupby(late, key=itemgetter(0)):
        open_span: Span | None = None
        for _, hour, counts in of_key:
            span = Span(key, hour * HOUR, (hour + 1) * HOUR, counts, hour not in untold)
            if open_span is not None and open_span.end == span.start:
                whole = open_span.whole and span.whole
                open_span = Span(key, open_span.start, span.end, open_span.counts + counts, whole)
                found[-1] = open_span
            else:
                open_span = span
                found.append(span)
    found.sort(key=lambda span: (member(span.key), span.start))
    return sorted(found, key=attrgetter("counts.dropped", "counts.diverted"), reverse=True)
