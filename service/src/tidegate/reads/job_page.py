"""The data of the page of a job. If the job has few substreams, one read of the store returns it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tidegate.domain.journal import Kind, Record
from tidegate.domain.results import SubstreamState
from tidegate.reads.completeness import Completeness, CurveSelection, completeness_of_job
from tidegate.reads.explain import Explanation, explanation_of
from tidegate.reads.history import RECORD_ID, HistoryRecord, records_page
from tidegate.reads.late import LateRows, late_rows
from tidegate.reads.queries import QueryTable, query_table
from tidegate.reads.reader import Reader
from tidegate.reads.status import JobStatus, SubstreamCounts, job_status
from tidegate.reads.substreams import CURSOR, Column, Selection, SubstreamTable, read_substreams, substream_table

HOLDERS = 3
SUBSTREAMS_SHOWN = 50
RECORDS_SHOWN = 30
SPANS_SHOWN = 5
"""Number of spans of late rows on the page. The service reads one more, to detect further spans."""
LARGE = 2000
"""Number of substreams above which the page sorts by name by default. Any other order reads all rows."""
ACTIVE: tuple[SubstreamState, ...] = ("active", "blocked")


@dataclass(frozen=True, slots=True)
class JobPageSelection:
    """The parameters of a job's page: which rows its tables show, and in which order.

    Attributes:
        name: Pattern of substream names.
        state: State of the substreams, or ``any`` for all states. Empty selects active and blocked substreams, but all
            states in a large job or if no substream is active or blocked.
        sort: Column to sort by; None for the watermark, or for the name in a large job.
        descending: Whether the highest value comes first.
        after: Cursor of the table of substreams.
        before: Cursor of the history.
    """

    name: Annotated[str, Field(max_length=200)] = "*"
    state: SubstreamState | Literal["", "any"] = ""
    sort: Column | None = None
    descending: bool = False
    after: Annotated[str, Field(pattern=CURSOR, max_length=400)] = ""
    before: Annotated[str, Field(pattern=rf"^$|{RECORD_ID}")] = ""


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
    found = await reader.store.reads.page(job, HOLDERS, RECORDS_SHOWN + 1, wanted.before or None)
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
        **records_page(found.earlier, RECORDS_SHOWN),
        completeness=completeness_of_job(reader, job, found.status, found.delays, CurveSelection()),
        late=late_rows(reader, job, found.late, max_spans=SPANS_SHOWN + 1),
        emissions=[record for _, record in reversed(found.latest.records) if record.kind == Kind.EMISSION],
    )


def _selection(wanted: JobPageSelection, counts: SubstreamCounts) -> Selection:
    is_large = counts.known > LARGE
    states: Sequence[SubstreamState] | None = None
    if wanted.state:
        states = None if wanted.state == "any" else (wanted.state,)
    elif counts.active and not is_large:
        states = ACTIVE
    sort: Column = wanted.sort or ("name" if is_large else "watermark")
    return Selection(wanted.name or "*", None, states, sort, wanted.descending, wanted.after, SUBSTREAMS_SHOWN)
