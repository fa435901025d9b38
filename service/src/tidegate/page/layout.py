"""What all pages share: security headers, sessions with their login and logout, layout and error pages."""

from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.status import HTTP_303_SEE_OTHER
from starlette.types import Scope

from tidegate.auth.callers import Caller, KeyUnknown
from tidegate.auth.roles import READERS
from tidegate.auth.usage import network
from tidegate.http.bodies import raw_body
from tidegate.http.call import call_of
from tidegate.http.guard import PAGES
from tidegate.http.problems import HANDLED, Problem, problem_of, refuse
from tidegate.http.request import ContextOf, allowed, context_of
from tidegate.page.render import render
from tidegate.runtime.logs import identify

HEADERS = {  # in addition to observed.SAFE_HEADERS
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
}
WITHOUT_SESSION = ("login", "log_in")
"""Names of the routes that need no session."""
UNCOUNTED = ("login", "log_in", "log_out", "jobs_live", "job_live")
"""Names of the routes that do not count towards the quota of a key.

Browsers do not retry a refused event stream.
"""
MAX_FIELDS = 20


class PageRoute(APIRoute):
    """A route of the page that redirects callers without a session to the login, and returns errors as pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, which adds the security headers to each response."""
        serve = super().get_route_handler()

        async def handle(request: Request) -> Response:
            answer = await self._answer(request, serve)
            answer.headers.update(HEADERS)
            return answer

        return handle

    async def _answer(self, request: Request, serve: Callable[[Request], Awaitable[Response]]) -> Response:
        context = context_of(request)
        caller = context.sessions.caller(request)
        if caller is None and self.name not in WITHOUT_SESSION:
            return _to_login(request)
        call_of(request.scope).caller = caller or Caller(None)
        try:
            if request.method == "POST" and not _is_same_origin(request):
                raise Problem("foreign_origin", "Another site sent this form; use the page of the coordinator.")
            if caller is not None and caller.key is not None and self.name not in UNCOUNTED:
                context.usage.request(caller.key)
            return await serve(request)
        except HANDLED as error:
            return error_page(request, problem_of(error))


class Files(StaticFiles):
    """The style sheet and the script of the pages, which are read once. Browsers revalidate them on each use."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._answers: dict[str, Response] = {}

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file with ``Cache-Control: no-cache``, or a short answer if the browser has the same file."""
        if path not in self._answers or scope["method"] not in ("GET", "HEAD"):
            found = await super().get_response(path, {**scope, "headers": []})
            assert isinstance(found, FileResponse)
            headers = {name: found.headers[name] for name in ("content-type", "last-modified", "etag")}
            self._answers[path] = Response(
                Path(found.path).read_bytes(), headers=headers | {"cache-control": "no-cache"}
            )
        answer = self._answers[path]
        unchanged = self.is_not_modified(answer.headers, Headers(scope=scope))
        return NotModifiedResponse(answer.headers) if unchanged else answer


def layout(request: Request) -> dict[str, Any]:
    """Return the values that the template of every page needs."""
    sessions = context_of(request).sessions
    caller = call_of(request.scope).caller or Caller(None)
    return {"key": caller.key, "token": sessions.form_token(request), "now": 0, "live": ""}


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a submitted form.

    Raises:
        Problem: If the form is not valid, or does not belong to the session.
    """
    raw = await raw_body(request.receive)
    try:
        form = dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"))
    except ValueError:
        raise Problem("invalid_request", "This form is not valid; load the page again and repeat the action.") from None
    if not context_of(request).sessions.accepts_form(request, form.get("token", "")):
        raise Problem(
            "form_expired", "This form belongs to another session; load the page again and repeat the action."
        )
    return form


def error_page(request: Request, problem: Problem) -> Response:
    """Return the page for an error, or a problem document for an event stream."""
    if request.url.path.endswith("/live"):
        return refuse(request.scope, problem)
    call_of(request.scope).problem = problem.code
    retries = problem.code == "job_not_found" or "Retry-After" in problem.headers
    page = render("error.html", problem=problem, retries=retries, **layout(request))
    headers = {name: value for name, value in problem.headers.items() if name != "WWW-Authenticate"}
    return HTMLResponse(page, problem.status, headers)


def _is_same_origin(request: Request) -> bool:
    """Return whether a page of this service sent a form. The check prevents cross-site request forgery."""
    headers = request.headers
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    return "origin" not in headers or headers["origin"].partition("://")[2] == headers.get("host")


def _to_login(request: Request) -> Response:
    if request.method != "GET" or request.url.path.endswith("/live"):
        return error_page(
            request, Problem("key_required", "You are not logged in, or your session has ended; log in again.")
        )
    address = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.headers.get("sec-fetch-site") == "cross-site":
        # Browsers send no SameSite=Strict cookie for a link on another site, so this page links to the address again.
        return HTMLResponse(render("continue.html", address=address))
    return RedirectResponse(f"/login?{urlencode({'next': address})}", HTTP_303_SEE_OTHER)


router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/login")
@allowed()
async def login(
    request: Request, context: ContextOf, address: Annotated[str, Query(alias="next", max_length=2000)] = "/"
) -> Response:
    """Show the login form."""
    if context.keyring is None:
        return RedirectResponse("/", HTTP_303_SEE_OTHER)
    return HTMLResponse(render("login.html", address=address, problem=None, **layout(request)))


@router.post("/login")
@allowed()
async def log_in(request: Request, context: ContextOf) -> Response:
    """Exchange a key for a session cookie. The browser does not keep the key."""
    form = await read_form(request)
    address, client = form.get("next", "/"), network(request.client.host if request.client else "")
    if not context.sessions.failed_logins.has_room(client):
        raise Problem("too_many_logins", "Too many logins failed; try again in a minute.")
    keyring = context.keyring
    key = keyring.key(form.get("key", "").strip()) if keyring else None
    if keyring is None or key is None or keyring.has_expired(key):
        context.sessions.failed_logins.take(client)
        problem = problem_of(KeyUnknown())
        call_of(request.scope).problem = problem.code
        page = render("login.html", address=address, problem=problem, **layout(request))
        return HTMLResponse(page, problem.status)
    identify(key=key.name)
    answer = RedirectResponse(address if _is_own_page(address) else "/", HTTP_303_SEE_OTHER)
    context.sessions.open(request, answer, key)
    return answer


@router.post("/logout")
@allowed(*READERS)
async def log_out(request: Request, context: ContextOf) -> Response:
    """Delete the session cookie."""
    await read_form(request)
    answer = RedirectResponse("/login", HTTP_303_SEE_OTHER)
    context.sessions.close(answer)
    return answer


def _is_own_page(address: str) -> bool:
    """Return whether an address belongs to a page of this service.

    Without this check, a link could send the user to another site after the login.
    """
    path = address.partition("?")[0]
    return address[1:2] not in ("/", "\\") and PAGES.fullmatch(path) is not None
