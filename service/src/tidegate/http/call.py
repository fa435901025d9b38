"""What the middleware learns about a request, for everything that serves it afterwards."""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Scope

from tidegate.auth.callers import Caller

_KEY = "tidegate"


def _nothing() -> None:
    """Do nothing."""


@dataclass(slots=True)
class HttpCall:
    """What the middleware has learned about a request. The route and its parameters are where FastAPI puts them.

    Attributes:
        caller: The caller. None for a request without a valid key, and for the page until it has read the session.
        body_bytes: Size of the body.
        end_turn: Ends the turn of the call, if it has one (see :mod:`tidegate.http.turns`).
        problem: Code of the problem with which the request was refused. "" if it was not refused.
        is_endless: Whether the answer is an event stream. It ends when its client stops sending; other answers are
            then still sent.
    """

    caller: Caller | None = None
    body_bytes: int = 0
    end_turn: Callable[[], None] = _nothing
    problem: str = ""
    is_endless: bool = False


def call_of(scope: Scope) -> HttpCall:
    """Return what is known about a request."""
    call: HttpCall | None = scope.get(_KEY)
    if call is None:
        call = scope[_KEY] = HttpCall()
    return call


def caller_of(scope: Scope) -> Caller:
    """Return the caller of a request that has passed the middleware."""
    caller = call_of(scope).caller
    assert caller is not None
    return caller
