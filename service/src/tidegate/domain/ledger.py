"""What became of rows that came late, by hour of event time: so that a loss shows where and when it was.

An hour is 3,600,000 units of event time, counted from 0, and bears the number of those before it. The latest that had
any rows are kept. What is kept of a substream stays when that ends or is forgotten, for it is what became of its rows.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter, itemgetter

from tidegate.domain.records import HourCounts, HourOfRows, LateWent
from tidegate.domain.substream import SubstreamKey, member

HOUR = 3_600_000
HOURS_KEPT = 168
"""A week."""
ENTRIES_KEPT = 50_000
"""Substreams by hour: of a job that has many, fewer hours are kept, but always the latest."""

Entry = tuple[SubstreamKey, int, HourCounts]
"""A substream, an hour, and what became of its rows."""


@dataclass(slots=True)
class Ledger:
    """``of_job``: by hour. ``of_substreams``: by hour, of those substreams that were known as their batch committed."""

    of_job: dict[int, HourCounts] = field(default_factory=dict)
    of_substreams: dict[int, dict[SubstreamKey, HourCounts]] = field(default_factory=dict)

    def enter(self, rows: Iterable[tuple[SubstreamKey | None, HourOfRows]], went: LateWent) -> None:
        """Takes in the rows of one batch; None: of a substream that is not known."""
        hours = len(self.of_job)
        for key, (hour, seen, updated, late) in rows:
            if not seen:
                continue
            dropped, diverted = (late, 0) if went == "dropped" else (0, late)
            counts = HourCounts(seen, updated, dropped, diverted)
            self.of_job[hour] = self.of_job.get(hour, HourCounts()) + counts
            of_each = self.of_substreams.setdefault(hour, {})
            if key is not None:
                of_each[key] = of_each.get(key, HourCounts()) + counts
        if len(self.of_job) > hours:
            self._shorten()

    def _shorten(self) -> None:
        entries = sum(map(len, self.of_substreams.values()))
        while len(self.of_job) > 1 and (len(self.of_job) > HOURS_KEPT or entries > ENTRIES_KEPT):
            first = min(self.of_job)
            entries -= len(self.of_substreams.pop(first))
            del self.of_job[first]

    def entries(self) -> Iterator[Entry]:
        for hour, of_each in self.of_substreams.items():
            for key, counts in of_each.items():
                yield key, hour, counts


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive hours in which rows of a substream were late: event times from ``start`` up to, and without, ``end``.

    ``counts`` are of all its rows of these hours.
    """

    key: SubstreamKey
    start: int
    end: int
    counts: HourCounts

    @property
    def share(self) -> float:
        """How much of its rows came too late."""
        return self.counts.late / self.counts.rows


def spans(entries: Iterable[Entry]) -> list[Span]:
    """Where rows were late, most rows dropped first; then most diverted, by name, by time."""
    found = []
    late = sorted((entry for entry in entries if entry[2].late), key=itemgetter(0, 1))
    for key, of_key in groupby(late, key=itemgetter(0)):
        start = end = 0
        together = HourCounts()
        for _, hour, counts in of_key:
            if together.rows and hour != end:
                found.append(Span(key, start * HOUR, end * HOUR, together))
                together = HourCounts()
            if not together.rows:
                start = hour
            end, together = hour + 1, together + counts
        found.append(Span(key, start * HOUR, end * HOUR, together))
    found.sort(key=lambda span: (member(span.key), span.start))
    return sorted(found, key=attrgetter("counts.dropped", "counts.diverted"), reverse=True)
