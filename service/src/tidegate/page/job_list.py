"""The list of jobs: which jobs it shows, in which order, and its markup."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from pydantic import Field

from tidegate.auth.callers import Caller
from tidegate.domain.errors import StateDamaged
from tidegate.domain.history import COARSE_MS, Sample
from tidegate.domain.values import matches
from tidegate.domain.views import WORST_FIRST, Health
from tidegate.http.request import Context
from tidegate.page.lag import LINE_SAMPLES, is_replayed, lag_line
from tidegate.page.render import parameters, render
from tidegate.page.sections import Sections
from tidegate.store.replies import Status
from tidegate.views.sentences import status_sentence
from tidegate.views.status import job_status

log = logging.getLogger(__name__)

JOBS_SHOWN = 200

Column = Literal["job", "health", "lag", "late", "last_contact"]
LARGEST_FIRST: tuple[Column, ...] = ("lag", "late")
"""Columns whose head first selects the descending order."""


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
    record = job_status(context.reader, job.name, job.status).model_dump()
    state = job.status.state
    return record | {
        "sentence": status_sentence(record),
        "is_replayed": is_replayed(state.watermark, state.now_ms),
        "line": lag_line(samples, state),
    }
