"""What became of rows that came too late, and of which hours of event time they were."""

from dataclasses import asdict
from typing import Self

from tidegate.api.schemas.jobs import CountsRecord, WatermarkRecord
from tidegate.api.schemas.types import Record
from tidegate.domain.ledger import HOUR, Span
from tidegate.domain.rows import HourCounts


class LateCounts(Record):
    """`rows`: all, null where not all of them are known; of these, `updated` changed a result that was out, `dropped`
    nobody got, and `diverted` a side output did.
    """

    rows: int | None
    updated: int
    dropped: int
    diverted: int


class HourRecord(LateCounts):
    """Rows with event times from `start` on, for 3,600,000."""

    start: int

    @classmethod
    def of(cls, hour: int, counts: HourCounts, whole: bool) -> Self:
        return cls(start=hour * HOUR, **_numbers(counts, whole))


class SpanRecord(LateCounts):
    """Rows of a substream with event times from `start` up to, and without, `end`: consecutive hours in each of which
    some were dropped or diverted.
    """

    query: str
    substream: str
    start: int
    end: int

    @classmethod
    def of(cls, span: Span) -> Self:
        query, substream = span.key
        return cls(
            query=query, substream=substream, start=span.start, end=span.end, **_numbers(span.counts, span.whole)
        )


class LateRecord(WatermarkRecord):
    """What became of late rows, of the job as a whole or of one substream.

    - `rows`: what commits accounted for, ever; of the `late` ones, how many were `dropped`, and how many `diverted`.
    - `hours`: of the last hours of event time that had rows, oldest first. What came before, and rows of which no hour
      is known, are in the totals alone. Rows by hour are as exact as those who count them: where none of a batch were
      late, Spark's hook spreads them over the time between the first and the last.
    - `spans`: where rows were late, most rows dropped first.

    Of a substream that is not known any more there is what its hours have.
    """

    rows: CountsRecord
    dropped: int
    diverted: int
    hours: list[HourRecord]
    spans: list[SpanRecord]


def _numbers(counts: HourCounts, whole: bool) -> dict[str, int | None]:
    numbers: dict[str, int | None] = {**asdict(counts)}
    return numbers if whole else numbers | {"rows": None}
