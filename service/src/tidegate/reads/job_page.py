"""The data of the page of a job, read at once."""

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.domain.journal import Kind, Record
from tidegate.domain.results import SubstreamState
from tidegate.reads.completeness import Completeness, CurveSelection, completeness_of_job
from tidegate.reads.explain import Explanation, explanation_of
from tidegate.reads.history import HistoryRecord, records_page
from tidegate.reads.late import LateRows, late_rows
from tidegate.reads.queries import QueryTable, query_table
from tidegate.reads.reader import Reader
from tidegate.reads.status import JobStatus, SubstreamCounts, job_status
from tidegate.reads.substreams import Column, Selection, SubstreamTable, read_substreams, substream_table

HOLDERS = 3
LARGE = 2000
"""Number of substreams above which the page sorts by name by default. Any other order reads all rows."""
ACTIVE: tuple[SubstreamState, ...] = ("active", "blocked")


@dataclass(frozen=True, slots=True)
class JobPageSelection:
    """The parts of the tables that the page of a job shows.

    Attributes:
        name: Pattern of substream names.
        states: States of the substreams, or an empty sequence for all states. None selects active and blocked
            substreams, but all states in a large job or if no substream is active or blocked.
        sort: Column to sort by; None for the watermark, or for the name in a large job.
        descending: Whether the highest value comes first.
        after: Cursor of the table of substreams.
        before: Cursor of the history.
        substreams: Number of rows of the table of substreams.
        records: Number of records of the history.
        spans: Number of spans of late rows.
    """

    name: str = "*"
    states: Sequence[SubstreamState] | None = None
    sort: Column | None = None
    descending: bool = False
    after: str = ""
    before: str | None = None
    substreams: int = 50
    records: int = 30
    spans: int = 6


@dataclass(frozen=True, slots=True)
class JobPage:
    """The data that the page of a job shows.

    Attributes:
        selection: The selection of substreams, with defaults resolved.
        records: A page of the history, latest record first.
        next: Cursor of the next page of the history; None for the last page.
        emissions: Emissions among the latest records, oldest first.
    """

    status: JobStatus
    explanation: Explanation
    selection: Selection
    substreams: SubstreamTable
    queries: QueryTable
    records: Sequence[HistoryRecord]
    next: str | None
    completeness: Completeness
    late: LateRows
    emissions: Sequence[Record]


async def read_job_page(reader: Reader, job: str, wanted: JobPageSelection) -> JobPage:
    """Return the data of the page of a job. A job with few substreams needs one read of the store.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If the job was deleted.
    """
    found = await reader.store.reads.page(job, HOLDERS, wanted.records + 1, wanted.before)
    status = job_status(reader, job, found.status)
    selection = _selection(wanted, status.substreams)
    if found.substreams.is_complete:
        table = substream_table(reader, job, found.substreams, selection)
    else:
        table = await read_substreams(reader, job, selection)
    return JobPage(
        status=status,
        explanation=explanation_of(reader, job, found.held, HOLDERS),
        selection=selection,
        substreams=table,
        queries=query_table(reader, job, found.queries),
        **records_page(found.earlier, wanted.records),
        completeness=completeness_of_job(reader, job, found.status, found.delays, CurveSelection()),
        late=late_rows(reader, job, found.late, max_spans=wanted.spans),
        emissions=[record for _, record in reversed(found.latest.records) if record.kind == Kind.EMISSION],
    )


def _selection(wanted: JobPageSelection, counts: SubstreamCounts) -> Selection:
    is_large = counts.known > LARGE
    states = ACTIVE if wanted.states is None and counts.active and not is_large else wanted.states
    sort: Column = wanted.sort or ("name" if is_large else "watermark")
    return Selection(wanted.name, None, states or None, sort, wanted.descending, wanted.after, wanted.substreams)
