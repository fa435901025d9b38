"""The trigger that waits for a frame or a watermark."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx

from tidegate_airflow.compat import BaseTrigger, TriggerEvent, connection_of
from tidegate_airflow.hooks import PAUSE_S, Server, TidegateRefused, TidegateUnavailable

POLL_S = 20.0
"""Longest wait of one call. It is shorter than the usual timeouts of proxies."""
OUTAGE_S = 300.0
"""Time without an answer of the coordinator after which the trigger ends with an error."""


class TidegateTrigger(BaseTrigger):  # type: ignore[misc]
    """A wait for a frame to be finished, or for a watermark, by long polls.

    The trigger keeps no state: after a restart of the triggerer, it waits again. The event contains ``answer`` (the
    JSON object of the coordinator), or ``error`` and ``is_final``, which says whether a retry would fail again.

    Args:
        tidegate_conn_id: Id of the connection.
        job: The job.
        frame: A time in the frame, in milliseconds; None: wait for ``at_least``.
        at_least: Watermark to wait for, in milliseconds.
        read: Whether to wait for the watermark instead of the written watermark.
    """

    def __init__(
        self, tidegate_conn_id: str, job: str, frame: int | None = None, at_least: int | None = None, read: bool = False
    ) -> None:
        super().__init__()
        self.tidegate_conn_id, self.job = tidegate_conn_id, job
        self.frame, self.at_least, self.read = frame, at_least, read

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class and its arguments, as JSON types."""
        arguments = {"frame": self.frame, "at_least": self.at_least, "read": self.read}
        return (
            "tidegate_airflow.triggers.TidegateTrigger",
            {"tidegate_conn_id": self.tidegate_conn_id, "job": self.job, **arguments},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event: the answer of the coordinator, or an error."""
        try:
            server = Server.of(self.tidegate_conn_id, await connection_of(self.tidegate_conn_id))
            yield TriggerEvent({"answer": await self._wait(server)})
        except (TidegateRefused, TidegateUnavailable) as error:
            yield TriggerEvent({"error": str(error), "is_final": isinstance(error, TidegateRefused)})

    async def _wait(self, server: Server) -> dict[str, Any]:
        if self.frame is not None:
            path, asked = f"/v1/jobs/{self.job}/frames/{self.frame}", {"wait_s": str(POLL_S)}
        else:
            path, asked = f"/v1/jobs/{self.job}/watermark", {"at_least": str(self.at_least), "timeout_s": str(POLL_S)}
            asked |= {"read": "true"} if self.read else {}
        answered_at = time.monotonic()
        async with httpx.AsyncClient(**server.options()) as http:
            while True:
                try:
                    found = server.answer(await http.get(path, params=asked, timeout=server.timeout_s + POLL_S))
                    if found["reached"] if self.frame is None else found["frame"]["state"] != "open":
                        return found
                    answered_at = time.monotonic()
                    continue
                except httpx.TransportError as error:
                    failed = server.no_answer(error)
                except TidegateUnavailable as error:
                    failed = error
                if time.monotonic() - answered_at > OUTAGE_S:
                    raise failed
                self.log.warning("%s Another attempt follows in %s s.", failed, PAUSE_S)
                await asyncio.sleep(PAUSE_S)
