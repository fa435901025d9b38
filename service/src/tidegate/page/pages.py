"""The job list and the page of a job, and the event streams that keep them up to date."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse
from markupsafe import Markup
from redis.exceptions import RedisError

from tidegate.auth.roles import READERS
from tidegate.domain.errors import UNAVAILABLE, JobDeleted, JobNotFound
from tidegate.domain.views import WORST_FIRST
from tidegate.http.call import call_of, caller_of
from tidegate.http.request import CallerOf, Context, ContextOf, JobId, allowed
from tidegate.page.actions import ACTIONS
from tidegate.page.charts import Scales
from tidegate.page.layout import PageRoute, layout
from tidegate.page.render import render
from tidegate.page.sections import JobListSelection, Sections, job_list, job_sections
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
    shown = await job_sections(context, caller, job, view, Scales())
    action = ACTIONS.get(did)
    parameters = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "did"])
    values = {"job": job, "result": action.result if action else "", "live": f"/jobs/{job}/live?{parameters}"}
    return _page(request, "job.html", shown, values)


def _page(request: Request, template: str, shown: Sections, values: Mapping[str, Any]) -> Response:
    markup = {name: Markup(text) for name, text in shown.markup.items()}  # noqa: S704 - rendered by our templates
    return HTMLResponse(render(template, **layout(request) | {"now": shown.now_ms, "sections": markup, **values}))


POLL_S = 2.0
"""Interval in seconds at which a stream reads the store for changes without a record, such as new max event times."""
SETTLE_S = 0.2
"""Minimum time in seconds between two updates."""
REST_FACTOR = 10
"""Minimum pause after a read, as a multiple of its duration, so that slow reads happen less often."""

Read = Callable[[], Awaitable[Sections]]


@router.get("/live")
@allowed(*READERS)
async def jobs_live(request: Request, context: ContextOf, caller: CallerOf, view: JobListViewOf) -> StreamingResponse:
    """Stream updates of the list of jobs."""

    async def read() -> Sections:
        return await job_list(context, caller, view)

    async def polls() -> AsyncGenerator[None, None]:
        with context.usage.waiting(caller.key), context.wakeups.place():
            yield
            while not context.wakeups.closing:
                yield
                await asyncio.sleep(POLL_S)

    return await _stream(request, _updates(request, context, polls(), read))


@router.get("/jobs/{job:id}/live")
@allowed(*READERS)
async def job_live(
    request: Request, job: JobId, context: ContextOf, caller: CallerOf, view: JobViewOf
) -> StreamingResponse:
    """Stream updates of the page of a job."""
    scales = Scales()

    async def read() -> Sections:
        return await job_sections(context, caller, job, view, scales)

    await context.store.read_watermark(job)  # raises an error before the stream starts if the job does not exist
    changes = context.wakeups.follow(job, None, POLL_S, context.usage.waiting(caller.key))
    return await _stream(request, _updates(request, context, changes, read))


async def _stream(request: Request, events: AsyncGenerator[bytes, None]) -> StreamingResponse:
    await anext(events)  # raises an error before the stream starts if too many clients wait
    call_of(request.scope).is_endless = True
    return StreamingResponse(events, headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream")


async def _updates(
    request: Request, context: Context, changes: AsyncGenerator[object, None], read: Read
) -> AsyncGenerator[bytes, None]:
    """Yield empty bytes first, then an event for each change.

    ``page`` contains the sections that changed. ``down`` means that the store cannot be read. ``gone`` is the last
    event, sent after the job was deleted or the session has ended.
    """
    shown: dict[str, str] = {}
    async with aclosing(changes):
        try:
            await anext(changes)
            yield b""
            async for _ in context.revocation.while_valid(changes, caller_of(request.scope).key):
                if context.sessions.caller(request) is None:
                    break
                began = time.monotonic()
                try:
                    current = await read()
                except (RedisError, *UNAVAILABLE):
                    yield _event("down", {})
                    shown.clear()
                    continue
                changed = {name: markup for name, markup in current.markup.items() if shown.get(name) != markup}
                shown |= changed
                yield _event("page", {"now": current.now_ms, "sections": changed})
                await _rest(request, context, time.monotonic() - began)
        except (JobNotFound, JobDeleted):
            pass
        else:
            if context.wakeups.closing:
                return  # the browser reconnects to another replica, or to this replica after its restart
    yield _event("gone", {})


async def _rest(request: Request, context: Context, read_s: float) -> None:
    end = time.monotonic() + max(SETTLE_S, REST_FACTOR * read_s)
    while context.sessions.caller(request) and not context.wakeups.closing and time.monotonic() < end:
        await asyncio.sleep(max(0.0, min(POLL_S, end - time.monotonic())))


def _event(name: str, data: Mapping[str, object]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
