"""The sections of the list of jobs and of the page of a job, as markup."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from heapq import nlargest
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from pydantic import Field

from tidegate.auth.callers import Caller
from tidegate.domain.config import JOB_LIMITS
from tidegate.domain.errors import StateDamaged
from tidegate.domain.history import COARSE_MS, Sample
from tidegate.domain.job import STATES
from tidegate.domain.values import matches
from tidegate.domain.views import WORST_FIRST, Health
from tidegate.http.request import Context
from tidegate.page.actions import ACTIONS
from tidegate.page.calendar import calendar
from tidegate.page.charts import Scales, completeness_chart, late_chart
from tidegate.page.lag import LINE_SAMPLES, held_since, is_replayed, lag_chart, lag_line
from tidegate.page.picture import Picture, picture
from tidegate.page.render import job_link, parameters, render
from tidegate.store.replies import Status
from tidegate.times import format_duration
from tidegate.views.history import FILTERS, id_after
from tidegate.views.holders import RANGES_MS
from tidegate.views.job_page import ACTIVE, SPANS_SHOWN, JobPage, JobPageSelection, read_job_page
from tidegate.views.late import LateHour
from tidegate.views.sentences import passed_sentence, status_sentence, unit_hint
from tidegate.views.status import job_status

log = logging.getLogger(__name__)

JOBS_SHOWN = 200
HOURS_SHOWN = 3
"""Number of hours with the most lost rows that are listed."""

HOLDER_NOTES = {
    "slow": "holds the watermark",
    "never_reported": "holds the watermark: no events yet",
    "blocked": "holds the watermark: not confirmed idle",
}

Column = Literal["job", "health", "lag", "late", "last_contact"]
LARGEST_FIRST: tuple[Column, ...] = ("lag", "late")
"""Columns whose head first selects the descending order."""


@dataclass(frozen=True, slots=True)
class Sections:
    """Sections of a page.

    Attributes:
        now_ms: Processing time of the coordinator when the sections were read.
        markup: Markup of each section, by the id of its element.
    """

    now_ms: int
    markup: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class JobListSelection:
    """The parameters of the list of jobs.

    Attributes:
        name: Pattern of job names. Empty selects all names.
        health: Health of the jobs. Empty selects every health.
        sort: Column to sort by. The default is the health, worst first.
        descending: Whether the highest value comes first.
    """

    name: Annotated[str, Field(max_length=128)] = "*"
    health: Health | Literal[""] = ""
    sort: Column = "health"
    descending: bool = False

    @property
    def filters(self) -> Sequence[str]:
        """The filters in words; empty if the list shows all jobs."""
        health = [f"health {self.health.replace('_', ' ')}"] if self.health else []
        return health + ([f"name {self.name}"] if self.name not in ("", "*") else [])

    def query(self, **changes: Any) -> str:
        """Return this selection with changes as the query of an address, without defaults."""
        return "?" + urlencode(parameters(self, **changes))

    def sorted_by(self, column: Column) -> str:
        """Return the query of the address to which the head of a column links."""
        descending = not self.descending if self.sort == column else column in LARGEST_FIRST
        return self.query(sort=column, descending=descending)


@dataclass(frozen=True, slots=True)
class _Job:
    name: str
    status: Status
    health: Health

    def value(self, column: Column) -> int | None:
        state, summary = self.status.state, self.status.summary
        match column:
            case "health":
                return WORST_FIRST.index(self.health)
            case "lag" if state.watermark is not None and not is_replayed(state.watermark, state.now_ms):
                return state.now_ms - state.watermark
            case "late":
                return summary.counts.late
            case "last_contact":
                return summary.last_contact_ms
            case _:
                return None


async def job_list(context: Context, caller: Caller, view: JobListSelection) -> Sections:
    """Return the list of jobs that a selection shows to a caller."""
    reader, statuses = context.reader, await context.overview.statuses()
    visible = [
        _Job(name, status, status.health(reader.stale_after_ms))
        for name, status in statuses.items()
        if name.startswith(caller.prefix)
    ]
    matching = _sorted((job for job in visible if _is_selected(job, view)), view)
    shown = matching[:JOBS_SHOWN]  # convert only these, because the list may contain thousands
    timelines = await context.store.reads.timelines([job.name for job in shown], COARSE_MS, LINE_SAMPLES)
    rows, unreadable = [], set(context.overview.unreadable)
    for job in shown:
        try:
            rows.append(_row(context, job, timelines[job.name]))
        except StateDamaged as error:
            log.error("Cannot read job %s.", job.name, exc_info=error)
            unreadable.add(job.name)
    markup = render(
        "_jobs.html",
        jobs=rows,
        matching=len(matching),
        total=len(visible),
        view=view,
        unreadable=[
            name for name in sorted(unreadable) if name.startswith(caller.prefix) and matches(view.name or "*", name)
        ],
    )
    return Sections(max((job.status.state.now_ms for job in visible), default=0), {"jobs": markup})


def _is_selected(job: _Job, view: JobListSelection) -> bool:
    return matches(view.name or "*", job.name) and view.health in ("", job.health)


def _sorted(jobs: Iterable[_Job], view: JobListSelection) -> list[_Job]:
    """Return jobs in the order of a selection. Jobs without a value come last, in both orders."""
    if view.sort == "job":
        return sorted(jobs, key=lambda job: job.name, reverse=view.descending)
    sign = -1 if view.descending else 1

    def position(job: _Job) -> tuple[bool, int, int, str]:
        value, held_by = job.value(view.sort), job.status.state.held_by
        return value is None, sign * (value or 0), held_by.since_ms if held_by else 0, job.name

    return sorted(jobs, key=position)


def _row(context: Context, job: _Job, samples: Sequence[Sample]) -> Mapping[str, Any]:
    members = job_status(context.reader, job.name, job.status).model_dump()
    state = job.status.state
    return members | {
        "sentence": status_sentence(members),
        "is_replayed": is_replayed(state.watermark, state.now_ms),
        "line": lag_line(samples, state),
    }


async def job_sections(context: Context, caller: Caller, name: str, view: JobPageSelection, scales: Scales) -> Sections:
    """Return the sections of a job's page, whose charts keep the ranges in ``scales`` where the data fits.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If the job was deleted.
    """
    page = await read_job_page(context.reader, name, view)
    members = page.status.model_dump() | page.explanation.model_dump()
    now_ms = members["now_ms"]
    actions = {verb: action for verb, action in ACTIONS.items() if caller.has_role(*action.roles)}
    common = {
        "job": members,
        "now": now_ms,
        "actions": actions,
        "view": view,
        "states": ("any", *STATES),
        "link": partial(job_link, name, view),
        "parameters": partial(parameters, view),
    }
    markup = {
        "headline": render("_headline.html", **_headline(page, members, view), **common),
        "picture": render("_picture.html", picture=_picture(page, members, scales), **common),
        "lag": render(
            "_lag.html",
            chart=lag_chart(page.samples, members["watermark"], RANGES_MS[view.range], now_ms, scales),
            ranges=RANGES_MS,
            **common,
        ),
        "frames": render("_frames.html", **_frames(page, now_ms), **common),
        "facts": render("_facts.html", limits=JOB_LIMITS, **common),
        "completeness": render(
            "_completeness.html", measured=page.completeness, chart=completeness_chart(page.completeness), **common
        ),
        "late": render("_late.html", late=page.late, chart=late_chart(page.late.hours), shown=SPANS_SHOWN, **common),
        "queries": render("_queries.html", queries=page.queries.model_dump()["queries"], **common),
        "substreams": render("_substreams.html", **_substreams(page, members), **common),
        "history": render("_history.html", **_history(page, view), **common),
    }
    return Sections(now_ms, markup)


def _picture(page: JobPage, members: Mapping[str, Any], scales: Scales) -> Picture | None:
    return picture(members, page.all_substreams, page.slowest, page.distribution, scales)


def _frames(page: JobPage, now_ms: int) -> dict[str, Any]:
    """Return the values of the calendar of frames; ``rows`` is None if the job declares no frames."""
    declared = page.status.config.frames
    if declared is None or not page.frames.is_declared:
        return {"rows": None}
    declaration = declared.model_dump()
    every = declaration["every"]
    open_frames = [frame for frame in page.frames.frames if frame.state == "open"]
    overdue = sum(frame.prediction is not None and frame.prediction.overdue for frame in open_frames)
    return {
        "rows": calendar(page.frames.frames, declaration, now_ms, page.status.written_watermark),
        "every": every if isinstance(every, str) else format_duration(every),
        "zone": declaration.get("time_zone"),
        "finished": page.frames.totals,
        "open": len(open_frames) - overdue,
        "overdue": overdue,
        "calibration": None if page.calibration is None else asdict(page.calibration),
        "selected": None if page.frame is None else asdict(page.frame),
        "id_after": id_after,
    }


def _headline(page: JobPage, members: Mapping[str, Any], view: JobPageSelection) -> dict[str, Any]:
    """Return the values of the headline. ``most_lost`` are the hours with the most lost rows, in order of time."""
    lost = [hour for hour in page.late.hours if _lost(hour)]
    return {
        "sentence": status_sentence(members),
        "passed": [*map(passed_sentence, members["passed"])],
        "unit_hint": unit_hint(members),
        "holding": _holding(page, members, view),
        "most_lost": sorted(nlargest(HOURS_SHOWN, lost, key=_lost), key=lambda hour: hour.start),
    }


def _lost(hour: LateHour) -> int:
    return hour.dropped + hour.diverted


def _holding(page: JobPage, members: Mapping[str, Any], view: JobPageSelection) -> tuple[int, bool] | None:
    """Return since when the current holder has held the watermark, and whether it may be longer; None if unknown."""
    held_by = members["held_by"]
    since_ms = None if held_by is None else held_since(page.samples, held_by)
    return None if since_ms is None else (since_ms, since_ms <= members["now_ms"] - RANGES_MS[view.range])


def _substreams(page: JobPage, members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the table of substreams. The holder is the first row of the first page, and no other row."""
    first = [] if page.holder is None or page.selection.after else [asdict(page.holder)]
    others = page.substreams.model_dump()["substreams"]
    rows = [*first, *(row for row in others if not _is_holder(row, members["held_by"]))]
    return {
        "rows": [row | _note(row, members["held_by"]) for row in rows],
        "next": page.substreams.next,
        "matching": page.matching,
        "known": page.status.substreams.known,
        "only_active": page.selection.states == ACTIVE,
        "sort": page.selection.sort,
    }


def _history(page: JobPage, view: JobPageSelection) -> dict[str, Any]:
    """Return the values of the history. ``id_after`` makes the cursor from which a row is the first one."""
    return {
        "groups": [[record.model_dump() for record in group] for group in page.history],
        "next": page.next,
        "filters": FILTERS,
        "id_after": id_after,
        "up_to_ms": int(view.before.partition("-")[0]) if view.before else None,
    }


def _note(row: Mapping[str, Any], held_by: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return whether a substream holds the watermark, and a note about its state."""
    if held_by is not None and _is_holder(row, held_by):
        return {"is_holder": True, "note": HOLDER_NOTES[held_by["reason"]]}
    if row["state"] == "blocked":
        return {"is_holder": False, "note": "not confirmed idle"}
    if row["state"] == "skewed":
        return {"is_holder": False, "note": "too far behind the median"}
    if row["state"] == "active" and row["max_event_time"] is None:
        return {"is_holder": False, "note": "no events yet"}
    return {"is_holder": False, "note": ""}


def _is_holder(row: Mapping[str, Any], held_by: Mapping[str, Any] | None) -> bool:
    return held_by is not None and (held_by["query"], held_by["substream"]) == (row["query"], row["substream"])
