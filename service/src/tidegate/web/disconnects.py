"""Clients that disconnect while a call runs."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response

from tidegate.runtime.tasks import end
from tidegate.web.statuses import CLIENT_DISCONNECTED

Result = TypeVar("Result")


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Return the result of ``work``, or cancel it and return None if the client disconnects before."""
    working, disconnecting = asyncio.create_task(work), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((working, disconnecting), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else disconnecting.result()
    finally:
        await end((working, disconnecting))


def disconnected_answer() -> Response:
    """Return the answer to a client that has disconnected."""
    return Response(status_code=CLIENT_DISCONNECTED)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
