"""What operators can do on the page: the calls of the API, with a form and a reason."""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tidegate import times
from tidegate.api.access import ROLES
from tidegate.api.bodies import invalid
from tidegate.api.problems import Problem
from tidegate.api.routes import actions as calls
from tidegate.api.schemas.actions import Action as ActionRequest
from tidegate.api.schemas.actions import HoldRequest, Retirement, SubstreamAction
from tidegate.api.schemas.types import Id
from tidegate.auth.roles import Role
from tidegate.domain.journal import AuditInfo
from tidegate.domain.results import CommandResult
from tidegate.store.jobs import JobStore

Form = Mapping[str, str]


class OfQuery(ActionRequest):
    """Which query, and why."""

    query: Id


class OfHold(ActionRequest):
    """Which hold, and why."""

    hold: Id


Request = TypeVar("Request", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Doing:
    """An action, once it is known to what, and why. Whatever the form says is judged as the API judges it."""

    store: JobStore
    job: str
    why: AuditInfo
    form: Form

    def read(self, model: type[Request], **members: Any) -> Request:
        """:raises Problem: naming the field that is wrong."""
        try:
            return model.model_validate(members | {"reason": self.why.reason})
        except ValidationError as error:
            raise invalid(error) from None

    @property
    def substream(self) -> SubstreamAction:
        return self.read(SubstreamAction, names=[self.form.get("substream", "")], query=self.form.get("query", ""))


@dataclass(frozen=True, slots=True)
class Field:
    """Something to fill in. ``needed``: the form is not sent without."""

    name: str
    label: str
    hint: str = ""
    needed: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """``of``: the parts of the address that say what it is done to. ``takes_away``: afterwards its object holds the
    watermark no longer, so the page can say where that would go. ``call``: the one of the API that does the same.
    """

    verb: str
    title: str
    button: str
    says: str
    done: str
    call: Callable[..., Any]
    run: Callable[[Doing], Awaitable[object]]
    of: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    takes_away: bool = False
    grave: bool = False

    @property
    def roles(self) -> tuple[Role, ...]:
        return ROLES[self.call]


async def _idle(doing: Doing) -> CommandResult:
    at = doing.substream
    return await doing.store.idle(doing.job, at.query, at.names, doing.why)


async def _done(doing: Doing) -> CommandResult:
    at = doing.substream
    return await doing.store.done(doing.job, at.query, at.names, doing.why)


async def _evict(doing: Doing) -> CommandResult:
    at = doing.substream
    return await doing.store.evict(doing.job, at.query, at.names, doing.why)


async def _retire(doing: Doing) -> CommandResult:
    successor = doing.form.get("successor", "").strip() or None
    told = doing.read(Retirement, successor=successor, evict=successor is None)
    query = doing.read(OfQuery, query=doing.form.get("query", "")).query
    return await doing.store.retire(doing.job, query, told.successor, doing.why)


async def _hold(doing: Doing) -> CommandResult:
    lasts = doing.form.get("lasts", "").strip()
    told = doing.read(
        HoldRequest,
        at_most=_read(times.moment, "at_most", doing.form),
        duration_ms=round(_read(times.duration_s, "lasts", doing.form) * times.MS) if lasts else None,
        hold=doing.form.get("name", "").strip() or None,
    )
    return await doing.store.hold(
        doing.job, told.hold or secrets.token_hex(4), told.at_most, told.duration_ms, doing.why
    )


async def _release(doing: Doing) -> object:
    hold = doing.read(OfHold, hold=doing.form.get("hold", "")).hold
    return await doing.store.release(doing.job, hold, doing.why)


async def _complete(doing: Doing) -> CommandResult:
    doing.read(ActionRequest)
    return await doing.store.complete(doing.job, doing.why)


async def _reopen(doing: Doing) -> CommandResult:
    doing.read(ActionRequest)
    return await doing.store.reopen(doing.job, doing.why)


async def _reset(doing: Doing) -> object:
    doing.read(ActionRequest)
    if doing.form.get("name", "") != doing.job:
        raise Problem(422, "invalid_request", f"name: type {doing.job}, to say that it is this one.")
    return await doing.store.reset(doing.job, doing.why)


def _read(read: Callable[[str], Any], name: str, form: Form) -> Any:
    try:
        return read(form.get(name, "").strip())
    except ValueError as error:
        raise Problem(422, "invalid_request", f"{name}: {error}.") from None


SUBSTREAM = ("query", "substream")

ACTIONS = {
    action.verb: action
    for action in (
        Action(
            "idle",
            "Wait no longer for {substream}",
            "Make it idle",
            "It counts again as soon as something comes of it; what it brings from below the watermark is late.",
            "It is idle.",
            calls.idle,
            _idle,
            SUBSTREAM,
            takes_away=True,
        ),
        Action(
            "done",
            "{substream} has ended",
            "It is done",
            "For good: nothing more is expected of it, and nothing more is taken.",
            "It is done.",
            calls.done,
            _done,
            SUBSTREAM,
            takes_away=True,
        ),
        Action(
            "evict",
            "Forget {substream}",
            "Evict it",
            "All that is known of it goes; what it led to goes on counting. It may come back, as a new one.",
            "It is evicted.",
            calls.evict,
            _evict,
            SUBSTREAM,
            takes_away=True,
        ),
        Action(
            "retire",
            "Retire the query {query}",
            "Retire it",
            "Its open batch is given up, and its run is fenced. Its substreams go to the query that you name (itself: "
            "it goes on with another checkpoint); if you name none, they are evicted.",
            "It is retired.",
            calls.retire,
            _retire,
            ("query",),
            (Field("successor", "Successor", "the query that goes on with its substreams; empty: nobody"),),
        ),
        Action(
            "hold",
            "Hold the watermark",
            "Hold it",
            "It goes no further than this until the hold is released, or expires. It never goes back.",
            "The hold stands.",
            calls.hold,
            _hold,
            (),
            (
                Field("at_most", "At most", "2013-01-14T00:00Z, or epoch milliseconds", needed=True),
                Field("lasts", "For", "30m, 2h, 1d; empty: until it is released"),
                Field("name", "Name", "by which it is released; empty: one is made up"),
            ),
        ),
        Action(
            "release",
            "Release the hold {hold}",
            "Release it",
            "The watermark goes where the data says.",
            "The hold is released.",
            calls.release,
            _release,
            ("hold",),
        ),
        Action(
            "complete",
            "The input has ended",
            "Complete the job",
            "All substreams are done. The watermark goes to the end of the last frame, past the throttle; reports are "
            "refused from then on.",
            "The job is complete.",
            calls.complete,
            _complete,
        ),
        Action(
            "reopen",
            "The input goes on",
            "Reopen the job",
            "Reports are taken again. The watermark stays: what comes from below it is late.",
            "The job is open again.",
            calls.reopen,
            _reopen,
        ),
        Action(
            "reset",
            "Begin anew",
            "Reset the job",
            "Everything that is known is forgotten, the watermark too: the only way back from one that is wrong. "
            "Windows that were closed by it stay closed downstream.",
            "The job began anew.",
            calls.reset,
            _reset,
            (),
            (Field("name", "The job's name", "to say that it is this one", needed=True),),
            grave=True,
        ),
    )
}
