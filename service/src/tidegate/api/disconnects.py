"""Clients that go away while they wait: nobody needs the answer, and their place is another's."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from fastapi import Request

Result = TypeVar("Result")


async def while_there(request: Request, work: Coroutine[Any, Any, Result]) -> Result | None:
    """What ``work`` gives; None where the client went away before, and then it is cancelled."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
