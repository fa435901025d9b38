"""Late rows of a job or a substream, by hour of event time."""

from dataclasses import asdict, replace

from pydantic import Field

from tidegate.domain.completeness import HOUR, NO_ROWS, HourCounts, RowCounts, Span, spans
from tidegate.domain.errors import SubstreamNotFound
from tidegate.domain.values import SubstreamKey
from tidegate.store import replies
from tidegate.views.reader import Reader
from tidegate.views.types import Answer
from tidegate.views.watermark import WatermarkState


class LateCounts(Answer):
    """Numbers of updated, dropped and diverted rows."""

    rows: int | None = Field(description="Number of all rows. Null if unknown.", examples=[1921])
    updated: int = Field(description="Rows that changed a written result.", examples=[12])
    dropped: int = Field(description="Late rows that were dropped.", examples=[3])
    diverted: int = Field(description="Late rows that were written to a side output.", examples=[0])


class LateHour(LateCounts):
    """Rows of one hour of event time."""

    start: int = Field(description="Event time at which the hour starts.", examples=[1357552800000])


class LateSpan(LateCounts):
    """Consecutive hours in which a substream had late rows."""

    query: str = Field(description="Query. Empty for reports without batches.", examples=["departures"])
    substream: str = Field(description="Name of the substream.", examples=["HNL"])
    start: int = Field(description="Event time at which the first hour starts.", examples=[1357552800000])
    end: int = Field(description="Event time at which the last hour ends.", examples=[1357556400000])


class LateRows(WatermarkState):
    """Late rows of a job or of one substream.

    Rows by hour are as exact as the accounting of the client. If no row of a batch is late, the Spark hook distributes
    the rows evenly over the event times of the batch.
    """

    rows: RowCounts = Field(description="All committed rows by row class.")
    dropped: int = Field(description="Late rows that were dropped.", examples=[57])
    diverted: int = Field(description="Late rows that were written to a side output.", examples=[0])
    hours: list[LateHour] = Field(
        description="The latest hours of event time with rows, oldest first. Only the totals include earlier hours."
    )
    spans: list[LateSpan] = Field(
        description="Spans of hours with late rows, by substream. The span with the most dropped rows is first."
    )


async def read_late(reader: Reader, job: str, substream: SubstreamKey | None = None, max_spans: int = 20) -> LateRows:
    """Return the late rows of a job, or of a substream, even if the substream was evicted.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If the job was deleted.
        SubstreamNotFound: If the substream is unknown and has no rows in any hour.
    """
    return late_rows(reader, job, await reader.store.reads.late(job, substream), substream, max_spans)


def late_rows(
    reader: Reader, job: str, known: replies.LateReply, substream: SubstreamKey | None = None, max_spans: int = 20
) -> LateRows:
    """Return the late rows of a job or a substream as an answer.

    Raises:
        SubstreamNotFound: If the substream is unknown and has no rows in any hour.
    """
    rows, diverted = known.counts, known.diverted
    if substream is not None and not known.is_known:
        if not known.hours:
            raise SubstreamNotFound(substream[0], [substream[1]])
        total = sum(known.hours.values(), HourCounts())
        in_time = total.rows - total.updated - total.late
        rows, diverted = replace(NO_ROWS, on_time=in_time, updated=total.updated, late=total.late), total.diverted
    # In an hour with unattributed rows, the number of rows of a single substream is unknown.
    hours = [
        LateHour(start=hour * HOUR, **_counts(counts, substream is None or hour not in known.unattributed))
        for hour, counts in sorted(known.hours.items())
    ]
    entries = (entry for entry in known.entries if substream in (None, entry[0]))
    return LateRows(
        **reader.members(job, known.state),
        rows=rows,
        dropped=rows.late - diverted,
        diverted=diverted,
        hours=hours,
        spans=[_span(span) for span in spans(entries, known.unattributed)[:max_spans]],
    )


def _span(span: Span) -> LateSpan:
    query, name = span.key
    return LateSpan(query=query, substream=name, start=span.start, end=span.end, **_counts(span.counts, span.whole))


def _counts(counts: HourCounts, has_rows: bool) -> dict[str, int | None]:
    """Return the members of :class:`LateCounts`. ``rows`` is None unless the number of rows is known."""
    return asdict(counts) | ({} if has_rows else {"rows": None})
