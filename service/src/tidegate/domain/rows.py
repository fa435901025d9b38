"""Rows that queries account for, by class, substream and hour of event time."""

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Literal

LateDisposition = Literal["dropped", "diverted"]
"""The late disposition of a query, which either drops its late rows or diverts them to a side output."""

RowsOfHour = tuple[int, int, int, int]
"""An hour of event time, counted from 0, and its number of rows, updated rows and late rows."""


RowsByDelay = tuple[tuple[int, int], ...]
"""Rows by delay bucket; see :mod:`tidegate.domain.sketch`."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Rows by class."""

    on_time: int = 0
    updated: int = 0
    late: int = 0
    null_event_time: int = 0
    future: int = 0

    def __add__(self, other: "RowCounts") -> "RowCounts":
        """Return the sums by class."""
        return RowCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class HourCounts:
    """Numbers of rows in one hour: all rows, updated rows, dropped rows and diverted rows."""

    rows: int = 0
    updated: int = 0
    dropped: int = 0
    diverted: int = 0

    def __add__(self, other: "HourCounts") -> "HourCounts":
        """Return the sums."""
        return HourCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def late(self) -> int:
        """The late rows, dropped or diverted."""
        return self.dropped + self.diverted


@dataclass(frozen=True, slots=True)
class BatchAccounting:
    """The rows of one batch by substream, and the disposition of its late rows.

    ``hours`` contains the known rows of each substream by hour. ``all_hours`` contains all rows of the batch by hour,
    if ``hours`` is incomplete.
    """

    rule: str
    substreams: tuple[str, ...]
    counts: tuple[RowCounts, ...]
    late_disposition: LateDisposition = "dropped"
    hours: tuple[tuple[RowsOfHour, ...], ...] = ()
    all_hours: tuple[RowsOfHour, ...] = ()

    def by_substream(self) -> Iterator[tuple[str, RowCounts]]:
        """Yield the counts of each substream."""
        return zip(self.substreams, self.counts, strict=True)

    def by_hour(self) -> Iterator[tuple[str, RowsOfHour]]:
        """Yield the rows of each substream and hour."""
        for name, hours in zip(self.substreams, self.hours, strict=False):
            for rows in hours:
                yield name, rows
