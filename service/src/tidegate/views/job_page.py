"""The data of the page of a job. One read of the store returns it, except for unusual selections of a large job."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from tidegate.domain.frames import FrameStatus
from tidegate.domain.history import HolderRange, Sample
from tidegate.domain.job import SubstreamState
from tidegate.domain.prediction import Calibration
from tidegate.domain.values import EXACT_DOUBLE, SubstreamKey, member
from tidegate.domain.views import SubstreamStatus
from tidegate.store import replies
from tidegate.times import ROUND_MS
from tidegate.views.completeness import Completeness, CurveSelection, completeness_of_job
from tidegate.views.frames import predicted
from tidegate.views.history import FILTERS, RECORD_ID, HistoryRecord, grouped, records_page
from tidegate.views.holders import RANGES_MS, interval_of
from tidegate.views.late import LateRows, late_rows
from tidegate.views.reader import Reader
from tidegate.views.status import Explanation, JobStatus, SubstreamCounts, explanation_of, job_status
from tidegate.views.substreams import (
    CURSOR,
    Column,
    FoundSubstreams,
    Position,
    QueryTable,
    Selection,
    SubstreamTable,
    query_table,
    read_substreams,
    slowest_substreams,
    substream_table,
)

HOLDERS = 3
SUBSTREAMS_SHOWN = 50
GROUPS_SHOWN = 30
"""Number of rows of the history. A row shows one record, or a run of movements."""
RECORDS_READ = 300
"""Maximum number of records in the rows of the history. The service reads one more, to detect further records."""
FRAMES_SHOWN = 336
"""Number of frames of the calendar: two weeks of hours."""
SPANS_SHOWN = 5
"""Number of spans of late rows on the page. The service reads one more, to detect further spans."""
BINS = 60
ACTIVE: tuple[SubstreamState, ...] = ("active", "blocked")


def _check_filter(kind: str) -> str:
    if kind and kind not in FILTERS:
        raise ValueError(f"must be one of {', '.join(FILTERS)}")
    return kind


@dataclass(frozen=True, slots=True)
class JobPageSelection:
    """The parameters of a job's page: which rows its tables show, and in which order.

    Attributes:
        name: Pattern of substream names; empty for all names.
        state: State of the substreams, or ``any`` for all states. Empty selects active and blocked substreams, or all
            states if no substream is active or blocked.
        sort: Column to sort by; None for the watermark.
        descending: Whether the highest value comes first.
        after: Cursor of the table of substreams.
        before: Cursor of the history.
        kind: Name of a group of kinds in ``FILTERS`` to which the history is limited; empty for all kinds.
        range: Range of the lag chart.
        frame: A time in the frame whose record is shown; empty for no frame.
    """

    name: Annotated[str, Field(max_length=200)] = ""
    state: SubstreamState | Literal["", "any"] = ""
    sort: Column | None = None
    descending: bool = False
    after: Annotated[str, Field(pattern=CURSOR, max_length=400)] = ""
    before: Annotated[str, Field(pattern=rf"^$|{RECORD_ID}")] = ""
    kind: Annotated[str, AfterValidator(_check_filter)] = ""
    range: HolderRange = "1h"
    frame: Annotated[str, Field(pattern=r"^(-?[0-9]{1,16})?$")] = ""

    @property
    def is_slowest_first(self) -> bool:
        """Whether the table of substreams shows active ones, slowest first, as Redis stores them."""
        shows_active = self.name in ("", "*") and not self.state
        return shows_active and self.sort in (None, "watermark") and not self.descending


@dataclass(frozen=True, slots=True)
class JobPage:
    """The data that the page of a job shows.

    Attributes:
        selection: The selection of substreams, with defaults resolved.
        matching: Number of substreams that match the selection, on all pages.
        history: A page of the history, latest first: groups of movements, and other records alone. With a filter
            by kind, each record is by itself.
        next: Cursor of the next page of the history; None for the last page.
        all_substreams: All substreams of a small job; None for a large job.
        slowest: The slowest active substreams of a large job, if the table shows them; otherwise, its holder.
        distribution: Distribution of the watermarks of a large job.
        holder: Row of the substream that holds the watermark, if a substream holds it.
        samples: Samples of the watermark in the range of the lag chart, oldest first, with one sample before the range.
        frames: The latest frames.
        frame: The frame whose record is shown; None for no frame.
        calibration: How often the predictions held; None if no frame was predicted.
    """

    status: JobStatus
    explanation: Explanation
    selection: Selection
    substreams: SubstreamTable
    matching: int
    queries: QueryTable
    history: Sequence[Sequence[HistoryRecord]]
    next: str | None
    completeness: Completeness
    late: LateRows
    all_substreams: Sequence[SubstreamStatus] | None
    slowest: Sequence[SubstreamStatus]
    distribution: replies.Distribution | None
    holder: SubstreamStatus | None
    samples: Sequence[Sample]
    frames: replies.FramesReply
    frame: FrameStatus | None
    calibration: Calibration | None


async def read_job_page(reader: Reader, job: str, wanted: JobPageSelection) -> JobPage:
    """Return the data of the page of a job.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If the job was deleted.
    """
    found = await reader.store.reads.page(job, _request(wanted))
    status = job_status(reader, job, found.status)
    selection = _selection(wanted, status.substreams)
    if found.substreams.is_complete:
        substreams = substream_table(reader, job, found.substreams, selection)
    elif wanted.is_slowest_first and found.substreams.slowest:
        slowest = slowest_substreams(reader, job, found.substreams, selection)
        substreams = FoundSubstreams(slowest, status.substreams.active)
    else:
        substreams = await read_substreams(reader, job, selection)
    held_by = status.held_by
    predictor = found.learned.predictor()
    holder = (held_by.query, held_by.substream) if held_by and held_by.substream else None
    history, following = await _history(reader, job, found.history, wanted)
    return JobPage(
        status=status,
        explanation=explanation_of(reader, job, found.held, found.learned, HOLDERS),
        selection=selection,
        substreams=substreams.table,
        matching=substreams.matching,
        queries=query_table(reader, job, found.queries),
        history=history,
        next=following,
        completeness=completeness_of_job(reader, job, found.status, found.delays, CurveSelection()),
        late=late_rows(reader, job, found.late, max_spans=SPANS_SHOWN + 1),
        all_substreams=found.substreams.rows if found.substreams.is_complete else None,
        slowest=_slowest(found.substreams, wanted, holder),
        distribution=found.distribution,
        holder=next((row for row in found.substreams.rows if (row.query, row.substream) == holder), None),
        samples=found.samples,
        frames=replace(found.frames, frames=predicted(found.frames.frames, predictor)),
        frame=next(iter(predicted(await _frame(reader, job, found.frames, wanted), predictor)), None),
        calibration=None if predictor is None else predictor.calibration(),
    )


async def _frame(reader: Reader, job: str, shown: replies.FramesReply, wanted: JobPageSelection) -> list[FrameStatus]:
    """Return the selected frame, if any. An earlier one than the calendar shows needs a read of its own."""
    if not wanted.frame or not shown.is_declared:
        return []
    time = min(max(int(wanted.frame), EXACT_DOUBLE.lowest), EXACT_DOUBLE.highest)
    known = [frame for frame in shown.frames if frame.start <= time < frame.end]
    return known or (await reader.store.reads.frame(job, time)).frames


async def _history(
    reader: Reader, job: str, found: replies.HistoryReply, wanted: JobPageSelection
) -> tuple[Sequence[Sequence[HistoryRecord]], str | None]:
    """Return the rows of the history, and the cursor of the next page. A filter by kind needs a read of its own."""
    if wanted.kind:
        kinds = FILTERS[wanted.kind]
        found = await reader.store.reads.history(job, wanted.before or None, kinds=kinds, most=GROUPS_SHOWN + 1)
        page = records_page(found, GROUPS_SHOWN)
        return [[record] for record in page["records"]], page["next"]
    page = records_page(found, RECORDS_READ)
    groups = grouped(page["records"])
    if len(groups) <= GROUPS_SHOWN:
        return groups, page["next"]
    return groups[:GROUPS_SHOWN], groups[GROUPS_SHOWN - 1][-1].id


def _slowest(
    found: replies.SubstreamsReply, wanted: JobPageSelection, holder: SubstreamKey | None
) -> Sequence[SubstreamStatus]:
    """Return the slowest substreams, if the page has read them, or the holder."""
    if wanted.is_slowest_first and not wanted.after:
        return found.slowest
    return [row for row in found.rows if (row.query, row.substream) == holder]


def _request(wanted: JobPageSelection) -> replies.JobPageRequest:
    range_ms = RANGES_MS[wanted.range]
    interval_ms = interval_of(range_ms)
    last = Position.parse(wanted.after)
    return replies.JobPageRequest(
        holders=HOLDERS,
        records=1 if wanted.kind else RECORDS_READ + 1,
        before=wanted.before or None,
        slowest=SUBSTREAMS_SHOWN + 1 if wanted.is_slowest_first else 0,
        after=None if last is None else (last.value if last.has_value else None, member((last.query, last.substream))),
        interval_ms=interval_ms,
        samples=range_ms // interval_ms + 1,
        bin_widths_ms=ROUND_MS,
        bins=BINS,
        frames=FRAMES_SHOWN,
    )


def _selection(wanted: JobPageSelection, counts: SubstreamCounts) -> Selection:
    states: Sequence[SubstreamState] | None = None
    if wanted.state:
        states = None if wanted.state == "any" else (wanted.state,)
    elif counts.active:
        states = ACTIVE
    # Without active substreams, the order by name reads only the rows of the page.
    sort: Column = wanted.sort or ("watermark" if states else "name")
    return Selection(wanted.name or "*", None, states, sort, wanted.descending, wanted.after, SUBSTREAMS_SHOWN)
