"""The sections of pages, as markup."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from heapq import nlargest
from typing import Any

from tidegate.auth.callers import Caller
from tidegate.domain.config import JOB_LIMITS
from tidegate.http.request import Context
from tidegate.page.actions import ACTIONS
from tidegate.page.charts import Scales, completeness_chart, late_chart
from tidegate.page.lag import held_since, lag_chart
from tidegate.page.picture import Picture, picture
from tidegate.page.render import job_link, parameters, render
from tidegate.views.history import FILTERS, id_after
from tidegate.views.job_page import ACTIVE, RANGES_MS, SPANS_SHOWN, JobPage, JobPageSelection, read_job_page
from tidegate.views.late import LateHour
from tidegate.views.sentences import status_sentence, unit_hint

HOURS_SHOWN = 3
"""Number of hours with the most lost rows that are listed."""

HOLDER_NOTES = {
    "slow": "holds the watermark",
    "never_reported": "holds the watermark: no events yet",
    "blocked": "holds the watermark: not confirmed idle",
}


@dataclass(frozen=True, slots=True)
class Sections:
    """Sections of a page.

    Attributes:
        now_ms: Processing time of the coordinator when the sections were read.
        markup: Markup of each section, by the id of its element.
    """

    now_ms: int
    markup: Mapping[str, str]


async def job(context: Context, caller: Caller, name: str, view: JobPageSelection, scales: Scales) -> Sections:
    """Return the sections of a job's page, whose charts keep the ranges in ``scales`` where the data fits.

    Raises:
        JobNotFound: If the job does not exist.
        JobDeleted: If the job was deleted.
    """
    page = await read_job_page(context.reader, name, view)
    record = page.status.model_dump() | page.explanation.model_dump()
    now_ms = record["now_ms"]
    actions = {verb: action for verb, action in ACTIONS.items() if caller.has_role(*action.roles)}
    common = {
        "job": record,
        "now": now_ms,
        "actions": actions,
        "view": view,
        "link": partial(job_link, name, view),
        "parameters": partial(parameters, view),
    }
    markup = {
        "headline": render("_headline.html", **_headline(page, record, view), **common),
        "picture": render("_picture.html", picture=_picture(page, record, scales), **common),
        "lag": render(
            "_lag.html",
            chart=lag_chart(page.samples, record["watermark"], RANGES_MS[view.range], now_ms, scales),
            ranges=RANGES_MS,
            **common,
        ),
        "facts": render("_facts.html", limits=JOB_LIMITS, **common),
        "completeness": render(
            "_completeness.html", measured=page.completeness, chart=completeness_chart(page.completeness), **common
        ),
        "late": render("_late.html", late=page.late, chart=late_chart(page.late.hours), shown=SPANS_SHOWN, **common),
        "queries": render("_queries.html", queries=page.queries.model_dump()["queries"], **common),
        "substreams": render("_substreams.html", **_substreams(page, record), **common),
        "history": render("_history.html", **_history(page, view), **common),
    }
    return Sections(now_ms, markup)


def _picture(page: JobPage, record: Mapping[str, Any], scales: Scales) -> Picture | None:
    return picture(record, page.all_substreams, page.slowest, page.distribution, scales)


def _headline(page: JobPage, record: Mapping[str, Any], view: JobPageSelection) -> dict[str, Any]:
    """Return the values of the headline. ``most_lost`` are the hours with the most lost rows, in order of time."""
    lost = [hour for hour in page.late.hours if _lost(hour)]
    return {
        "sentence": status_sentence(record),
        "unit_hint": unit_hint(record),
        "holding": _holding(page, record, view),
        "most_lost": sorted(nlargest(HOURS_SHOWN, lost, key=_lost), key=lambda hour: hour.start),
    }


def _lost(hour: LateHour) -> int:
    return hour.dropped + hour.diverted


def _holding(page: JobPage, record: Mapping[str, Any], view: JobPageSelection) -> tuple[int, bool] | None:
    """Return since when the current holder has held the watermark, and whether it may be longer; None if unknown."""
    held_by = record["held_by"]
    since_ms = None if held_by is None else held_since(page.samples, held_by)
    return None if since_ms is None else (since_ms, since_ms <= record["now_ms"] - RANGES_MS[view.range])


def _substreams(page: JobPage, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the table of substreams. The holder is the first row of the first page, and no other row."""
    first = [] if page.holder is None or page.selection.after else [asdict(page.holder)]
    others = page.substreams.model_dump()["substreams"]
    rows = [*first, *(row for row in others if not _is_holder(row, record["held_by"]))]
    return {
        "rows": [row | _note(row, record["held_by"]) for row in rows],
        "next": page.substreams.next,
        "matching": page.matching,
        "known": page.status.substreams.known,
        "only_active": page.selection.states == ACTIVE,
        "sort": page.selection.sort,
    }


def _history(page: JobPage, view: JobPageSelection) -> dict[str, Any]:
    """Return the values of the history. ``id_after`` makes the cursor from which a row is the first one."""
    return {
        "runs": [[record.model_dump() for record in run] for run in page.history],
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
    if row["state"] == "active" and row["max_event_time"] is None:
        return {"is_holder": False, "note": "no events yet"}
    return {"is_holder": False, "note": ""}


def _is_holder(row: Mapping[str, Any], held_by: Mapping[str, Any] | None) -> bool:
    return held_by is not None and (held_by["query"], held_by["substream"]) == (row["query"], row["substream"])
