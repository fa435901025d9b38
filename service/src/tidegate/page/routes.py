"""The pages, and the streams that keep them up to date."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse
from fastapi.routing import APIRoute
from markupsafe import Markup
from redis.exceptions import RedisError
from starlette.requests import ClientDisconnect
from starlette.staticfiles import StaticFiles
from structlog.contextvars import bind_contextvars

from tidegate.api import views
from tidegate.api.access import READERS, Caller, Who, allowed, unknown_key, who
from tidegate.api.context import Context, Ctx, JobId
from tidegate.api.guard import PAGES
from tidegate.api.problems import Problem, bad_parameter, of_domain, of_quota, of_store, refuse, too_many_wait
from tidegate.api.schemas.history import RECORD_ID
from tidegate.api.tables import PLACE, Column
from tidegate.auth.usage import QuotaExceeded, network
from tidegate.domain.errors import ClockJumped, DomainError, JobDeleted, JobNotFound
from tidegate.domain.results import SubstreamState
from tidegate.page import looks
from tidegate.page.actions import ACTIONS, Action, Doing
from tidegate.page.looks import Look, View
from tidegate.page.render import render
from tidegate.page.sessions import Sessions
from tidegate.runtime.wakeups import TooManyWait

log = logging.getLogger(__name__)

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LOOK_S = 2.0
"""What changes without a record (tops, last reports, rows) is looked at so often."""
SETTLE_S = 0.2
"""What happens within this time is shown at once."""
PACE = 10
"""Where looking takes long, it is done so many times less often than it could be."""


class PageRoute(APIRoute):
    """Answers people: who is not known is asked for a key, and what goes wrong is said in a page."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        serve = super().get_route_handler()

        async def handle(request: Request) -> Response:
            answer = await self._answer(request, serve)
            answer.headers.update(HEADERS)
            return answer

        return handle

    async def _answer(self, request: Request, serve: Callable[[Request], Awaitable[Response]]) -> Response:
        sessions: Sessions = request.app.state.sessions
        caller = sessions.caller(request)
        if caller is None and self.endpoint not in (login, log_in):
            return _to_login(request)
        request.scope["caller"] = caller or Caller(None)
        try:
            if request.method == "POST" and not _sent_here(request):
                raise Problem(403, "foreign_origin", "This form was sent by the page of another site.")
            if caller is not None and caller.key is not None and self.name not in UNCOUNTED:
                request.app.state.context.usage.request(caller.key)
            return await serve(request)
        except (Problem, DomainError, QuotaExceeded, RedisError, TooManyWait, RequestValidationError) as error:
            return _trouble(request, _problem(error))


UNCOUNTED = ("login", "log_in", "log_out", "jobs_live", "job_live")
"""Calls that do not count against the quota of a key: browsers do not retry a refused event stream."""


class Files(StaticFiles):
    """What the pages are styled and kept up to date by; asked for each time whether it has changed."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        answer = super().file_response(*arguments, **options)
        answer.headers.update({"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"})
        return answer


router = APIRouter(include_in_schema=False, route_class=PageRoute)


# -- looking ------------------------------------------------------------------------------------------------------

JobName = Annotated[str, Query(max_length=128)]


@router.get("/")
@allowed(*READERS)
async def jobs_page(request: Request, ctx: Ctx, who: Who, name: JobName = "*") -> Response:
    """All jobs, the worst first."""
    look = await looks.jobs(ctx, who, name or "*")
    return _page(request, "jobs.html", look, live="/live?" + urlencode({"name": name or "*"}), name=name)


@router.get("/live")
@allowed(*READERS)
async def jobs_live(request: Request, ctx: Ctx, who: Who, name: JobName = "*") -> StreamingResponse:
    async def looked() -> Look:
        return await looks.jobs(ctx, who, name)

    async def now_and_then() -> AsyncGenerator[None, None]:
        with ctx.usage.waiting(who.key), ctx.wakeups.place():
            yield
            while not ctx.wakeups.closing:
                yield
                await asyncio.sleep(LOOK_S)

    return await _stream(_updates(request, ctx, now_and_then(), looked))


async def view(
    name: Annotated[str, Query(max_length=200)] = "*",
    state: SubstreamState | Literal["", "any"] = "",
    sort: Column | None = None,
    descending: bool = False,
    after: Annotated[str, Query(pattern=PLACE, max_length=400)] = "",
    before: Annotated[str, Query(pattern=rf"^$|{RECORD_ID}")] = "",
) -> View:
    return View(name or "*", state, sort or "", descending, after, before)


AView = Annotated[View, Depends(view)]


@router.get("/jobs/{job:id}")
@allowed(*READERS)
async def job_page(request: Request, job: JobId, ctx: Ctx, who: Who, view: AView, did: str = "") -> Response:
    """One job: why it is where it is, and what can be done about it."""
    look = await looks.job(ctx, who, job, view)
    action = ACTIONS.get(did)
    return _page(
        request,
        "job.html",
        look,
        live=f"/jobs/{job}/live?{_without(request, 'did')}",
        job=job,
        done=action.done if action else "",
    )


@router.get("/jobs/{job:id}/live")
@allowed(*READERS)
async def job_live(request: Request, job: JobId, ctx: Ctx, who: Who, view: AView) -> StreamingResponse:
    async def looked() -> Look:
        return await looks.job(ctx, who, job, view)

    await ctx.store.sweep(job)  # a job that is not there is told before the stream begins
    ticks = ctx.wakeups.follow(job, None, LOOK_S, ctx.usage.waiting(who.key))
    return await _stream(_updates(request, ctx, ticks, looked))


async def _stream(events: AsyncGenerator[bytes, None]) -> StreamingResponse:
    await anext(events)  # whoever has no place is told so
    return StreamingResponse(events, headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream")


async def _updates(
    request: Request, ctx: Context, ticks: AsyncGenerator[object, None], looked: Callable[[], Awaitable[Look]]
) -> AsyncGenerator[bytes, None]:
    """First nothing; then, whenever ``ticks``, what has changed since; ``down`` where nothing can be read; ``gone``,
    the last one, where there is nothing to look at any more, or the session has ended.
    """
    sessions: Sessions = request.app.state.sessions
    shown: dict[str, str] = {}
    async with aclosing(ticks):
        try:
            await anext(ticks)
            yield b""
            async for _ in ctx.revocation.while_valid(ticks, who(request).key):
                if sessions.caller(request) is None:
                    break
                began = time.monotonic()
                try:
                    look = await looked()
                except (RedisError, ClockJumped):
                    yield _event("down", {})
                    shown.clear()
                    continue
                changed = {name: markup for name, markup in look.sections.items() if shown.get(name) != markup}
                shown |= changed
                yield _event("page", {"now": look.now_ms, "sections": changed})
                rest_until = time.monotonic() + max(SETTLE_S, PACE * (time.monotonic() - began))
                while sessions.caller(request) and not ctx.wakeups.closing and time.monotonic() < rest_until:
                    await asyncio.sleep(max(0.0, min(LOOK_S, rest_until - time.monotonic())))
        except (JobNotFound, JobDeleted):
            pass
        else:
            if ctx.wakeups.closing:
                return  # another replica, or this one again, goes on
    yield _event("gone", {})


def _event(name: str, data: Mapping[str, object]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


# -- acting -------------------------------------------------------------------------------------------------------


@router.get("/jobs/{job:id}/act/{verb}")
@allowed(*READERS)
async def ask(
    request: Request,
    job: JobId,
    verb: str,
    ctx: Ctx,
    who: Who,
    query: Annotated[str, Query(max_length=128)] = "",
    substream: Annotated[str, Query(max_length=200)] = "",
    hold: Annotated[str, Query(max_length=128)] = "",
) -> Response:
    """What an action would do, before it is done: where the watermark would go, and why it is to be done."""
    return await _ask(request, ctx, who, job, verb, {"query": query, "substream": substream, "hold": hold})


@router.post("/jobs/{job:id}/act/{verb}", tags=["actions"])
@allowed(*READERS)
async def act(request: Request, job: JobId, verb: str, ctx: Ctx, who: Who) -> Response:
    """Does it, if the form came from here, and its sender may."""
    action, form = _action(verb), await _form(request)
    who.check(*action.roles)
    reason = form.get("reason", "").strip()
    try:
        if not reason:
            raise Problem(422, "invalid_request", "reason: say why; it is kept with the record.")
        await action.run(Doing(ctx.store, job, who.why(reason), form))
    except (Problem, DomainError) as error:
        problem = _problem(error)
        request.scope["problem"] = problem.code
        return await _ask(request, ctx, who, job, verb, form, problem)
    return RedirectResponse(f"/jobs/{job}?did={verb}", 303)


async def _ask(
    request: Request,
    ctx: Context,
    who: Caller,
    job: str,
    verb: str,
    form: Mapping[str, str],
    problem: Problem | None = None,
) -> Response:
    action = _action(verb)
    who.check(*action.roles)
    told = (await views.explanation(ctx, job, 2)).model_dump()
    first = told["holders"][0] if told["holders"] else None
    named = {part: form.get(part, "") for part in action.of}
    holds = first is not None and (first["query"], first["substream"]) == (named.get("query"), named.get("substream"))
    page = render(
        "act.html",
        job=job,
        action=action,
        named=named,
        title=action.title.format(**named),
        told=told,
        form=form,
        without=first if action.takes_away and holds and len(told["holders"]) > 1 else None,
        holds=holds or not action.takes_away,
        problem=problem,
        **_frame(request),
    )
    return HTMLResponse(page, problem.status if problem else 200)


def _action(verb: str) -> Action:
    if verb not in ACTIONS:
        raise Problem(404, "no_such_path", f"There is no action {verb}; there are {', '.join(ACTIONS)}.")
    return ACTIONS[verb]


async def _form(request: Request) -> dict[str, str]:
    """:raises Problem: for a form that did not come from here."""
    try:
        raw = await request.body()
    except ClientDisconnect:
        raise Problem(400, "incomplete_body", "The form ended before it was whole.") from None
    try:
        form = dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=20, errors="strict"))
    except ValueError:
        raise Problem(422, "invalid_request", "This is no form that the page has.") from None
    sessions: Sessions = request.app.state.sessions
    if not sessions.sent_from_here(request, form.get("token", "")):
        raise Problem(403, "form_expired", "This form is of another session: load the page again, and repeat it.")
    return form


# -- logging in ---------------------------------------------------------------------------------------------------


@router.get("/login")
@allowed()
async def login(request: Request, then: Annotated[str, Query(alias="next", max_length=2000)] = "/") -> Response:
    sessions: Sessions = request.app.state.sessions
    if sessions.keyring is None:
        return RedirectResponse("/", 303)
    return HTMLResponse(render("login.html", then=then, problem=None, **_frame(request)))


@router.post("/login")
@allowed()
async def log_in(request: Request, ctx: Ctx) -> Response:
    """Changes a key for a cookie: the key itself is not kept in the browser."""
    form, sessions = await _form(request), request.app.state.sessions
    then, client = form.get("next", "/"), network(request.client.host if request.client else "")
    if not sessions.failed_logins.has_room(client):
        raise Problem(429, "too_many_logins", "Too many logins failed: try again in a minute.", {"Retry-After": "6"})
    key = ctx.keyring.key(form.get("key", "").strip()) if ctx.keyring else None
    if key is None or key.has_expired():
        sessions.failed_logins.take(client)
        problem = unknown_key()
        request.scope["problem"] = problem.code
        return HTMLResponse(render("login.html", then=then, problem=problem, **_frame(request)), 401)
    bind_contextvars(key=key.name)
    answer = RedirectResponse(then if _leads_here(then) else "/", 303)
    sessions.open(request, answer, key)
    return answer


@router.post("/logout")
@allowed(*READERS)
async def log_out(request: Request) -> Response:
    await _form(request)
    answer = RedirectResponse("/login", 303)
    request.app.state.sessions.close(answer)
    return answer


def _leads_here(address: str) -> bool:
    """An address that another site made up must not lead away from here after the login."""
    path = address.partition("?")[0]
    return address[1:2] not in ("/", "\\") and PAGES.fullmatch(path) is not None


def _sent_here(request: Request) -> bool:
    """Also before anybody has logged in: else another site could log them in, as somebody else."""
    headers = request.headers
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    return "origin" not in headers or headers["origin"].partition("://")[2] == headers.get("host")


def _to_login(request: Request) -> Response:
    if request.method != "GET" or request.url.path.endswith("/live"):
        return _trouble(request, Problem(401, "key_required", "You are not logged in, or no longer: log in again."))
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.headers.get("sec-fetch-site") == "cross-site":
        # A strict cookie is not sent along a link from elsewhere; it is along one from here.
        answer: Response = HTMLResponse(render("again.html", here=here))
    else:
        answer = RedirectResponse(f"/login?{urlencode({'next': here})}", 303)
    return answer


# -- what pages have in common ------------------------------------------------------------------------------------


def _frame(request: Request) -> dict[str, Any]:
    """What every page shows of whoever looks at it."""
    sessions: Sessions = request.app.state.sessions
    who: Caller = request.scope.get("caller") or Caller(None)
    return {
        "key": who.key,
        "token": sessions.form_token(request),
        "guarded": sessions.keyring is not None,
        "now": 0,
        "live": "",
    }


def _page(request: Request, template: str, look: Look, live: str, **values: Any) -> Response:
    marked = {name: Markup(markup) for name, markup in look.sections.items()}  # noqa: S704 - rendered by our templates
    frame = _frame(request) | {"live": live, "now": look.now_ms}
    return HTMLResponse(render(template, **frame, sections=marked, **values))


def _without(request: Request, name: str) -> str:
    return urlencode([(key, value) for key, value in request.query_params.multi_items() if key != name])


def _problem(error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case DomainError():
            return of_domain(error)
        case QuotaExceeded():
            return of_quota(error)
        case TooManyWait():
            return too_many_wait(error)
        case RequestValidationError():
            return bad_parameter(error)
        case RedisError():
            return of_store(error)
        case _:
            raise error


def _trouble(request: Request, problem: Problem) -> Response:
    """What went wrong, for people; for a stream, which nobody reads, as it is."""
    if request.url.path.endswith("/live"):
        return refuse(request, problem)
    request.scope["problem"] = problem.code
    page = render("trouble.html", problem=problem, **_frame(request))
    headers = {name: value for name, value in (problem.headers or {}).items() if name != "WWW-Authenticate"}
    return HTMLResponse(page, problem.status, headers)
