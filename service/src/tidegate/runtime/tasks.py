"""Cancellation of tasks that use the store."""

import asyncio
from collections.abc import Iterable
from typing import Any


async def end(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    """Cancel tasks repeatedly until all have ended.

    A single cancellation can be lost when it coincides with a timeout of the Redis client.
    """
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=0.5)
