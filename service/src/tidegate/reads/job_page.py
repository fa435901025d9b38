"""The view of a job's page: all that it shows, read at once."""

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.domain.journal import Kind, Record
from tidegate.domain.results import SubstreamState
from tidegate.reads.completeness import Completeness, CurveSelection, read_completeness
from tidegate.reads.explain import Explanation, read_explanation
from tidegate.reads.history import HistoryPage, HistorySelection, read_history
from tidegate.reads.late import LateRows, read_late
from tidegate.reads.queries import QueryTable, read_queries
from tidegate.reads.reader import Reader
from tidegate.reads.status import JobStatus, job_status
from tidegate.reads.substreams import Column, Selection, SubstreamTable, read_substreams

HOLDERS = 3
EMISSIONS = 300
LARGE = 2000
"""Number of substreams above which the page sorts by name unless the reader asks for another order. Every other order
reads all rows."""
ACTIVE: tuple[SubstreamState, ...] = ("active", "blocked")


@dataclass(frozen=True, slots=True)
class JobPageSelection:
    """Which parts of the tables the page of a job shows.

    Attributes:
        name: Pattern of substream names.
        states: States of the substreams. Empty: all states. None: the active ones, if the job has any.
        sort: Column to sort by; None for the watermark, or for the name in a large job.
        descending: Whether the highest value comes first.
        after: Cursor of the table of substreams.
        before: Cursor of the history.
        substreams: Rows of the table of substreams.
        records: Records of the history.
        spans: Spans of late rows.
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
    """All that the page of a job shows.

    Attributes:
        selection: The selection of substreams that is shown, with defaults resolved.
        known: Number of all substreams.
        emissions: The latest emissions, oldest first.
    """

    status: JobStatus
    explanation: Explanation
    selection: Selection
    known: int
    substreams: SubstreamTable
    queries: QueryTable
    history: HistoryPage
    completeness: Completeness
    late: LateRows
    emissions: Sequence[Record]


async def read_job_page(reader: Reader, job: str, wanted: JobPageSelection) -> JobPage:
    """Return all that the page of a job shows.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If it was deleted.
    """
    status = job_status(reader, job, await reader.store.reads.status(job))
    counts = status.substreams
    known = counts.active + counts.idle + counts.done
    large = known > LARGE
    states = wanted.states
    if states is None and counts.active and not large:
        states = ACTIVE
    sort: Column = wanted.sort or ("name" if large else "watermark")
    selection = Selection(wanted.name, None, states or None, sort, wanted.descending, wanted.after, wanted.substreams)
    # The explanation is read after the status, so its holder is the more recent one.
    explanation = await read_explanation(reader, job, HOLDERS)
    emissions = await reader.store.reads.history(job, kinds=(Kind.EMISSION,), limit=EMISSIONS)
    return JobPage(
        status=status,
        explanation=explanation,
        selection=selection,
        known=known,
        substreams=await read_substreams(reader, job, selection),
        queries=await read_queries(reader, job),
        history=await read_history(reader, job, HistorySelection(before=wanted.before, limit=wanted.records)),
        completeness=await read_completeness(reader, job, CurveSelection()),
        late=await read_late(reader, job, max_spans=wanted.spans),
        emissions=[record for _, record in reversed(emissions)],
    )
