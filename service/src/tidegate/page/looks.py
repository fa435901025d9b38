"""What the page shows of jobs: each part of it as markup, from the same records that the API gives."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tidegate.api import views
from tidegate.api.access import Caller
from tidegate.api.context import Context
from tidegate.api.tables import Column
from tidegate.api.views import Selection
from tidegate.domain.health import WORST_FIRST, health
from tidegate.domain.pattern import matches
from tidegate.domain.results import SubstreamState
from tidegate.page.actions import ACTIONS
from tidegate.page.drawing import axis, bars, plot, spark
from tidegate.page.render import render
from tidegate.wording import sentence

JOBS_SHOWN = 200
ROWS_SHOWN = 50
RECORDS_SHOWN = 30
SPANS_SHOWN = 5
LAG_FROM = 300
LIVE: tuple[SubstreamState, ...] = ("active", "blocked")
LARGE = 2000
"""Choosing or sorting more substreams by anything but their names takes a while: a page does so only when asked."""

REASONS = {
    "slow": "holds the watermark",
    "never_reported": "holds the watermark: nothing was seen of it",
    "blocked": "holds the watermark: its query has not said that there was nothing",
}


@dataclass(frozen=True, slots=True)
class Look:
    """``sections``: markup, by the id of the element it is in; as it was at ``now_ms``, by the coordinator's clock."""

    now_ms: int
    sections: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class View:
    """Which part of a job's page: its substreams (``state`` "": those that are waited for, if any is), and its record
    ``before`` that with an id.
    """

    name: str = "*"
    state: SubstreamState | Literal["", "any"] = ""
    sort: Column | Literal[""] = ""
    descending: bool = False
    after: str = ""
    before: str = ""


async def jobs(ctx: Context, who: Caller, name: str) -> Look:
    """All jobs that match, the worst first."""
    found = []
    for job, status in (await ctx.overview.statuses()).items():
        if job.startswith(who.prefix) and matches(name, job):
            held_by = status.state.held_by
            stands = health(status.state, status.summary, ctx.stale_after_ms)
            found.append((WORST_FIRST.index(stands), held_by.since_ms if held_by else 0, job, status))
    found.sort(key=lambda one: one[:3])
    # Records are made of those that are shown alone: there may be thousands of others.
    records = [views.job_record(ctx, job, status).model_dump() for _, _, job, status in found[:JOBS_SHOWN]]
    listed = [record | {"sentence": sentence(record)} for record in records]
    unreadable = sorted(job for job in ctx.overview.unreadable if job.startswith(who.prefix) and matches(name, job))
    more = len(found) - len(listed)
    shown = render("_jobs.html", jobs=listed, more=more, name=name, unreadable=unreadable)
    return Look(max((one[3].state.now_ms for one in found), default=0), {"jobs": shown})


async def job(ctx: Context, who: Caller, name: str, view: View) -> Look:
    """:raises JobNotFound, JobDeleted: where there is no such job."""
    record = views.job_record(ctx, name, await ctx.store.reads.status(name)).model_dump()
    explained = (await views.explanation(ctx, name, 3)).model_dump()
    counts = record["substreams"]
    known = counts["active"] + counts["idle"] + counts["done"]
    sort: Column = view.sort or ("watermark" if known <= LARGE else "name")
    states: Collection[SubstreamState] | None = None
    if view.state == "":
        states = LIVE if counts["active"] and known <= LARGE else None
    elif view.state != "any":
        states = (view.state,)
    selection = Selection(view.name, None, states, sort, view.descending, view.after, ROWS_SHOWN)
    table = await views.substream_table(ctx, name, selection)
    queries = (await views.query_table(ctx, name)).model_dump()["queries"]
    page = await views.history_page(ctx, name, before=view.before or None, limit=RECORDS_SHOWN)
    known_delays = await views.completeness(ctx, name)
    lost = await views.late(ctx, name, most_spans=SPANS_SHOWN + 1)
    emissions = await ctx.store.reads.history(name, kinds=("emission",), limit=LAG_FROM)
    # Read one after the other: the explanation, which has looked, is the latest about who holds.
    told = record | explained
    may = {verb: action for verb, action in ACTIONS.items() if who.has(*action.roles)}
    at = {"job": told, "now": told["now_ms"], "may": may}
    sections = {
        "headline": render("_headline.html", sentence=sentence(told), **at),
        "axis": render(
            "_axis.html",
            axis=axis(told["watermark"], told["coalesced_watermark"], told["max_event_time"], told["now_ms"]),
            **at,
        ),
        "lag": render("_lag.html", spark=spark([record for _, record in reversed(emissions)], told["now_ms"]), **at),
        "facts": render("_facts.html", **at),
        "completeness": render("_completeness.html", known=known_delays, plot=plot(known_delays), **at),
        "late": render("_late.html", late=lost, bars=bars(lost.hours), shown=SPANS_SHOWN, **at),
        "queries": render("_queries.html", queries=queries, **at),
        "substreams": render(
            "_substreams.html",
            rows=[_row(row, told) for row in table.model_dump()["substreams"]],
            next=table.next,
            known=known,
            live=states == LIVE,
            view=view,
            sort=sort,
            **at,
        ),
        "history": render("_history.html", page=page.model_dump(), view=view, **at),
    }
    return Look(told["now_ms"], sections)


def _row(row: dict[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the table, with what there is to say of its state."""
    held_by = told["held_by"]
    holds = held_by is not None and (held_by["query"], held_by["substream"]) == (row["query"], row["substream"])
    why = ""
    if holds:
        why = REASONS[held_by["reason"]]
    elif row["state"] == "blocked":
        why = "its query has not said that there was nothing"
    elif row["state"] == "active" and row["max_event_time"] is None:
        why = "nothing was seen of it"
    return row | {"why": why, "holds": holds}
