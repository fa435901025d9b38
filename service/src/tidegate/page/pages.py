"""The job list and the page of a job."""

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from tidegate.auth.roles import READERS
from tidegate.domain.views import WORST_FIRST
from tidegate.http.request import CallerOf, ContextOf, JobId, allowed
from tidegate.page import sections
from tidegate.page.actions import ACTIONS
from tidegate.page.job_list import JobListSelection, job_list
from tidegate.page.layout import PageRoute, layout
from tidegate.page.render import render
from tidegate.page.scales import Scales
from tidegate.page.sections import Sections
from tidegate.views.job_page import JobPageSelection

router = APIRouter(include_in_schema=False, route_class=PageRoute)

JobListViewOf = Annotated[JobListSelection, Depends()]
JobViewOf = Annotated[JobPageSelection, Depends()]


@router.get("/")
@allowed(*READERS)
async def jobs_page(request: Request, context: ContextOf, caller: CallerOf, view: JobListViewOf) -> Response:
    """Show the list of jobs."""
    shown = await job_list(context, caller, view)
    return _page(request, "jobs.html", shown, {"view": view, "healths": WORST_FIRST, "live": "/live" + view.query()})


@router.get("/jobs/{job:id}")
@allowed(*READERS)
async def job_page(
    request: Request, job: JobId, context: ContextOf, caller: CallerOf, view: JobViewOf, did: str = ""
) -> Response:
    """Show one job: its watermark, the holder, and the actions that the caller may use."""
    shown = await sections.job(context, caller, job, view, Scales())
    action = ACTIONS.get(did)
    parameters = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "did"])
    values = {"job": job, "result": action.result if action else "", "live": f"/jobs/{job}/live?{parameters}"}
    return _page(request, "job.html", shown, values)


def _page(request: Request, template: str, shown: Sections, values: Mapping[str, Any]) -> Response:
    markup = {name: Markup(text) for name, text in shown.markup.items()}  # noqa: S704 - rendered by our templates
    return HTMLResponse(render(template, **layout(request) | {"now": shown.now_ms, "sections": markup, **values}))
