"""The actions of the page: their forms, and the commands that they run."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel, StringConstraints, ValidationError
from starlette.status import HTTP_200_OK, HTTP_303_SEE_OTHER

from tidegate import times
from tidegate.auth.callers import Caller
from tidegate.auth.roles import ADMINS, OPERATORS, READERS, REPORTERS_AND_OPERATORS, Role
from tidegate.domain.errors import DomainError
from tidegate.domain.history import AuditInfo
from tidegate.domain.values import STORED_NAME
from tidegate.http import actions as commands
from tidegate.http.actions import ActionRequest, HoldRequest, SubstreamActionRequest
from tidegate.http.bodies import invalid_body
from tidegate.http.call import call_of
from tidegate.http.problems import Problem, problem_of
from tidegate.http.request import CallerOf, Context, ContextOf, JobId, allowed
from tidegate.page.layout import PageRoute, layout, read_form
from tidegate.page.render import render
from tidegate.store.jobs import JobActions, JobStore
from tidegate.views.status import read_explanation
from tidegate.views.types import Id

Form = Mapping[str, str]
Value = TypeVar("Value")
Body = TypeVar("Body", bound=BaseModel)


NameOfForm = Annotated[str, StringConstraints(pattern=STORED_NAME)]
"""Name of a hold or a query in a form, which has no path. Older versions may have stored a name that is no id."""


class RetireForm(ActionRequest):
    """The form that retires a query, or hands it over to a successor."""

    query: NameOfForm
    successor: Id | None


class ReleaseForm(ActionRequest):
    """The form that releases a hold."""

    hold: NameOfForm


@dataclass(frozen=True, slots=True)
class Submission:
    """A submitted form of an action, validated like an API request."""

    store: JobStore
    job: str
    audit: AuditInfo
    form: Form

    def validated(self, model: type[Body], **members: Any) -> Body:
        """Return a request with these members and the reason from the form.

        Raises:
            Problem: If a member is not valid.
        """
        try:
            return model.model_validate(members | {"reason": self.audit.reason})
        except ValidationError as error:
            raise invalid_body(error) from None

    def parsed(self, parse: Callable[[str], Value], name: str) -> Value:
        """Return the parsed text of a field.

        Raises:
            Problem: If the text is not valid.
        """
        try:
            return parse(self.text(name))
        except ValueError as error:
            raise Problem.of_field(name, f"{error}.") from None

    def text(self, name: str) -> str:
        """Return the text of a field; empty if the form does not have the field."""
        return self.form.get(name, "").strip()


Run = Callable[[Submission], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form."""

    name: str
    label: str
    hint: str = ""
    required: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """An action of the page.

    Attributes:
        verb: Name of the action in URLs.
        title: Title of the form.
        button: Label of the button that sends the form.
        effect: Description of the effect, shown in the form.
        result: Message on the page after the action.
        roles: Roles that may use the action.
        run: Function that carries out the action.
        target: Names of the parameters that identify the target of the action.
        fields: Fields of the form in addition to the reason.
        dangerous: Whether the button is marked as dangerous.
    """

    verb: str
    title: str
    button: str
    effect: str
    result: str
    roles: tuple[Role, ...]
    run: Run
    target: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    dangerous: bool = False


def _on_job(command: Callable[..., Awaitable[object]]) -> Run:
    """Return a function that runs a command on the job of the form."""

    async def run(form: Submission) -> object:
        form.validated(ActionRequest)
        return await command(form.store.actions, form.job, form.audit)

    return run


def _on_substream(command: Callable[..., Awaitable[object]]) -> Run:
    """Return a function that runs a command on the substream in the form."""

    async def run(form: Submission) -> object:
        names, query = [form.form.get("substream", "")], form.form.get("query", "")
        target = form.validated(SubstreamActionRequest, substreams=names, query=query)
        return await command(form.store.actions, form.job, target.query, target.pieces(), form.audit)

    return run


async def _retire(form: Submission) -> object:
    successor = form.text("successor") or None
    query = form.form.get("query", "")
    request = form.validated(RetireForm, query=query, successor=successor)
    return await form.store.actions.retire(form.job, request.query, request.successor, form.audit)


async def _hold(form: Submission) -> object:
    lasts = form.text("lasts")
    request = form.validated(
        HoldRequest,
        at_most=form.parsed(times.parse_time, "at_most"),
        duration_ms=round(form.parsed(times.parse_duration_s, "lasts") * times.MS) if lasts else None,
        hold=form.text("name") or None,
    )
    return await commands.hold(form.store, form.job, request, form.audit)


async def _release(form: Submission) -> object:
    hold = form.validated(ReleaseForm, hold=form.form.get("hold", "")).hold
    return await form.store.actions.release(form.job, hold, form.audit)


async def _reset(form: Submission) -> object:
    form.validated(ActionRequest)
    if form.form.get("name", "") != form.job:
        raise Problem.of_field("name", f"type {form.job} to confirm.")
    return await form.store.actions.reset(form.job, form.audit)


SUBSTREAM = ("query", "substream")

_ACTIONS = (
    Action(
        verb="idle",
        title="Declare {substream} idle",
        button="Declare idle",
        effect="The substream stops holding the watermark until its next event. Rows below the watermark are late.",
        result="The substream is idle.",
        roles=REPORTERS_AND_OPERATORS,
        run=_on_substream(JobActions.idle),
        target=SUBSTREAM,
    ),
    Action(
        verb="done",
        title="Mark {substream} as done",
        button="Mark as done",
        effect="The substream ends permanently. The coordinator refuses further reports of the substream.",
        result="The substream is done.",
        roles=REPORTERS_AND_OPERATORS,
        run=_on_substream(JobActions.done),
        target=SUBSTREAM,
    ),
    Action(
        verb="evict",
        title="Evict {substream}",
        button="Evict",
        effect="The coordinator removes the substream and its state. The watermark does not move back. The substream "
        "can return as a new substream.",
        result="The substream is evicted.",
        roles=OPERATORS,
        run=_on_substream(JobActions.evict),
        target=SUBSTREAM,
    ),
    Action(
        verb="retire",
        title="Retire the query {query}",
        button="Retire query",
        effect="The coordinator abandons the open batch of the query, and fences its run. The successor takes over the "
        "substreams. Name the query itself to continue on another checkpoint. Without a successor, the coordinator "
        "evicts the substreams.",
        result="The query is retired.",
        roles=OPERATORS,
        run=_retire,
        target=("query",),
        fields=(Field("successor", "Successor", "query that takes over the substreams, or empty"),),
    ),
    Action(
        verb="hold",
        title="Hold the watermark",
        button="Hold watermark",
        effect="The watermark stays at or below this value until the hold is released or expires. If it is already "
        "higher, it does not move.",
        result="The watermark is held.",
        roles=OPERATORS,
        run=_hold,
        fields=(
            Field("at_most", "At most", "2013-01-14T00:00Z, or Unix milliseconds", required=True),
            Field("lasts", "Duration", "30m, 2h, 1d, or empty for no expiry"),
            Field("name", "Name", "name of the hold, or empty for a generated name"),
        ),
    ),
    Action(
        verb="release",
        title="Release the hold {hold}",
        button="Release hold",
        effect="The hold no longer limits the watermark.",
        result="The hold is released.",
        roles=OPERATORS,
        run=_release,
        target=("hold",),
    ),
    Action(
        verb="complete",
        title="Complete the job",
        button="Complete job",
        effect="All substreams are done, and the watermark passes the max event time. The coordinator refuses further "
        "reports.",
        result="The job is complete.",
        roles=OPERATORS,
        run=_on_job(JobActions.complete),
    ),
    Action(
        verb="reopen",
        title="Reopen the job",
        button="Reopen job",
        effect="The coordinator accepts reports again. The watermark stays, so rows below it are late.",
        result="The job is open again.",
        roles=OPERATORS,
        run=_on_job(JobActions.reopen),
    ),
    Action(
        verb="reset",
        title="Reset the job",
        button="Reset job",
        effect="The coordinator deletes all state, including the watermark. The next watermark can be lower. Windows "
        "that consumers have closed stay closed.",
        result="The job is reset.",
        roles=ADMINS,
        run=_reset,
        fields=(Field("name", "Name of the job", "to confirm", required=True),),
        dangerous=True,
    ),
)
ACTIONS = {action.verb: action for action in _ACTIONS}
"""Actions by verb."""


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
