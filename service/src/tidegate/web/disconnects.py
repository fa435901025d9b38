"""Answers and calls that end when their clients disconnect."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from tidegate.runtime.tasks import end

Result = TypeVar("Result")

_ENDLESS = "endless"
"""Key in the scope of a request whose answer is an event stream."""


def mark_endless(scope: Scope) -> None:
    """Let the answer of a request end when its client stops sending. Other answers are then still sent."""
    scope[_ENDLESS] = True


def is_endless(scope: Mapping[str, Any]) -> bool:
    """Return whether the answer of a request ends when its client stops sending."""
    return _ENDLESS in scope


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of ``work``. Cancel ``work`` if the client disconnects first.

    Raises:
        ClientDisconnect: If the client disconnects before ``work`` ends.
    """
    working, disconnecting = asyncio.create_task(work), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((working, disconnecting), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        disconnecting.result()  # raises the error of a body that is too large
        raise ClientDisconnect
    finally:
        await end((working, disconnecting))
        for task in (working, disconnecting):
            if not task.cancelled():
                task.exception()  # asyncio logs an exception that is never read


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
