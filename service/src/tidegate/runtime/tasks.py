"""The end of tasks that talk to the store."""

import asyncio
from collections.abc import Iterable
from typing import Any


async def end(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    """Cancels tasks until they have ended: a cancellation that meets a client's own time-out may be lost in it."""
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=0.5)
