"""The login and the logout of the page."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.status import HTTP_303_SEE_OTHER

from tidegate.auth.errors import KeyUnknown
from tidegate.auth.roles import READERS
from tidegate.auth.usage import network
from tidegate.http.call import call_of
from tidegate.http.guard import PAGES
from tidegate.http.problems import Problem, problem_of
from tidegate.http.request import ContextOf, allowed
from tidegate.page.layout import PageRoute, layout, read_form
from tidegate.page.render import render
from tidegate.runtime.logs import identify

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
