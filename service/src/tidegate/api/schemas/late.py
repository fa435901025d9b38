"""What became of rows that came too late, and of which hours of event time they were."""

from typing import Self

from tidegate.api.schemas.jobs import CountsRecord, WatermarkRecord
from tidegate.api.schemas.types import Record
from tidegate.domain.ledger import HOUR, Span
from tidegate.domain.records import HourCounts


class LateCounts(Record):
    """`rows`: all that are known of; of these, `updated` changed a result that was out, `dropped` nobody got, and
    `diverted` a side output did.
    """

    rows: int
    updated: int
    dropped: int
    diverted: int


class HourRecord(LateCounts):
    """Rows with event times from `start` on, for 3,600,000."""

    start: int

    @classmethod
    def of(cls, hour: int, counts: HourCounts) -> Self:
        return cls(start=hour * HOUR, **_numbers(counts))


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
        return cls(query=query, substream=substream, start=span.start, end=span.end, **_numbers(span.counts))


class LateRecord(WatermarkRecord):
    """What became of late rows, of the job as a whole or of one substream.

    - `rows`: what commits accounted for, ever; of the `late` ones, how many were `dropped`, and how many `diverted`.
    - `hours`: of the last hours of event time that had rows, oldest first. What came before, and rows of which no hour
      is known, are in the totals alone. Rows by hour are as exact as those who count them: where none of a batch were
      late, Spark's hook spreads them over the time between the first and the last.
    - `spans`: where rows were late, most rows dropped first.
    """

    rows: CountsRecord
    dropped: int
    diverted: int
    hours: list[HourRecord]
    spans: list[SpanRecord]


def _numbers(counts: HourCounts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in LateCounts.model_fields}
