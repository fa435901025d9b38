"""Clients that go away while they wait: nobody needs the answer, and their place is another's."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response

from tidegate.runtime.tasks import end

Result = TypeVar("Result")


async def while_there(request: Request, work: Coroutine[Any, Any, Result]) -> Result | None:
    """What ``work`` gives; None where the client went away before, and then it is cancelled."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else leaving.result()
    finally:
        await end((working, leaving))


def to_nobody() -> Response:
    """Return the answer to a client that went away; only metrics see its status."""
    return Response(status_code=499)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
