"""Calls that show the form of an action with its effect, and carry out the submitted form."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.status import HTTP_200_OK, HTTP_303_SEE_OTHER

from tidegate.auth.callers import Caller
from tidegate.auth.roles import READERS
from tidegate.domain.errors import DomainError
from tidegate.http.call import call_of
from tidegate.http.problems import Problem, problem_of
from tidegate.http.request import CallerOf, Context, ContextOf, JobId, allowed
from tidegate.page.actions import ACTIONS, Action, Submission
from tidegate.page.layout import PageRoute, layout, read_form
from tidegate.page.render import render
from tidegate.views.explain import read_explanation

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/jobs/{job:id}/act/{verb}")
@allowed(*READERS)
async def show_action(
    request: Request,
    job: JobId,
    verb: str,
    context: ContextOf,
    caller: CallerOf,
    query: Annotated[str, Query(max_length=128)] = "",
    substream: Annotated[str, Query(max_length=200)] = "",
    hold: Annotated[str, Query(max_length=128)] = "",
) -> Response:
    """Show the form of an action, with the watermark after the action."""
    action = _action(verb, caller)
    form = {"query": query, "substream": substream, "hold": hold}
    return await _form_page(request, context, job, action, form)


@router.post("/jobs/{job:id}/act/{verb}", tags=["actions"])
@allowed(*READERS)
async def act(request: Request, job: JobId, verb: str, context: ContextOf, caller: CallerOf) -> Response:
    """Carry out an action."""
    form = await read_form(request)
    action = _action(verb, caller)
    reason = form.get("reason", "").strip()
    try:
        if not reason:
            raise Problem.of_field("reason", "enter a reason; the history keeps it.")
        await action.run(Submission(context.store, job, caller.audit_info(reason), form))
    except (Problem, DomainError) as error:
        problem = problem_of(error)
        call_of(request.scope).problem = problem.code
        return await _form_page(request, context, job, action, form, problem)
    return RedirectResponse(f"/jobs/{job}?did={verb}", HTTP_303_SEE_OTHER)


async def _form_page(
    request: Request,
    context: Context,
    job: str,
    action: Action,
    form: Mapping[str, str],
    problem: Problem | None = None,
) -> Response:
    explanation = (await read_explanation(context.reader, job, 2)).model_dump()
    holders = explanation["holders"]
    target = {part: form.get(part, "") for part in action.target}
    is_holder = bool(holders) and all(holders[0][part] == target.get(part) for part in ("query", "substream"))
    page = render(
        "action.html",
        job=job,
        action=action,
        target=target,
        title=action.title.format(**target),
        explanation=explanation,
        form=form,
        without=holders[0] if "substream" in target and is_holder and len(holders) > 1 else None,
        is_holder=is_holder,
        problem=problem,
        **layout(request),
    )
    return HTMLResponse(page, problem.status if problem else HTTP_200_OK)


def _action(verb: str, caller: Caller) -> Action:
    if verb not in ACTIONS:
        raise Problem("no_such_path", f"There is no action {verb}; the actions are {', '.join(ACTIONS)}.")
    caller.require_role(*ACTIONS[verb].roles)
    return ACTIONS[verb]
