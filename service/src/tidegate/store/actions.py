"""The actions of operators and clients on a job, with an actor and a reason."""

import secrets
from dataclasses import asdict
from typing import Any

from tidegate.domain.history import NO_AUDIT, AuditInfo
from tidegate.domain.results import Effect, JobWatermark
from tidegate.store import replies
from tidegate.store.capacity import Capacity
from tidegate.store.functions import Functions
from tidegate.store.pieces import Pieces


class JobActions:
    """Actions on all jobs of one Redis. For the arguments, see :class:`~tidegate.store.jobs.JobStore`.

    ``pieces`` are the substreams of a command, with the columns of :func:`tidegate.store.pieces.member_pieces`.
    """

    def __init__(self, functions: Functions, capacity: Capacity) -> None:
        self._functions, self._capacity = functions, capacity

    async def complete(
        self, job: str, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None, up_to: int | None = None
    ) -> Effect:
        """End the input of a job."""
        return await self._act("complete", job, audit, now_ms, up_to=up_to)

    async def reopen(self, job: str, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None) -> Effect:
        """Reopen a complete job."""
        return await self._act("reopen", job, audit, now_ms)

    async def reset(self, job: str, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None) -> JobWatermark:
        """Start a new incarnation of a job."""
        reply = await self._functions.run("reset", job, now_ms, state_epoch=secrets.token_hex(8), **asdict(audit))
        return replies.watermark_state(reply)

    async def hold(
        self,
        job: str,
        hold: str,
        at_most: int,
        duration_ms: int | None = None,
        audit: AuditInfo = NO_AUDIT,
        now_ms: int | None = None,
    ) -> Effect:
        """Hold the watermark at or below ``at_most`` for ``duration_ms`` (None: until the hold is released)."""
        return await self._act("hold", job, audit, now_ms, hold=hold, at_most=at_most, duration_ms=duration_ms)

    async def release(
        self, job: str, hold: str, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> JobWatermark:
        """Release a hold."""
        return replies.watermark_state(await self._functions.run("release", job, now_ms, hold=hold, **asdict(audit)))

    async def declare(
        self,
        job: str,
        query: str,
        pieces: Pieces,
        audit: AuditInfo = NO_AUDIT,
        now_ms: int | None = None,
        quota: int | None = None,
    ) -> Effect:
        """Declare substreams, with the column ``max_event_times``."""
        room = self._capacity.max_substreams(quota)
        return await self._act("declare", job, audit, now_ms, pieces, max_substreams=room, query=query)

    async def restore(
        self, job: str, query: str, pieces: Pieces, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> Effect:
        """Raise the watermarks of substreams to the column ``watermarks``."""
        return await self._act("restore", job, audit, now_ms, pieces, query=query)

    async def idle(
        self, job: str, query: str, pieces: Pieces, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> Effect:
        """Make substreams idle."""
        return await self._act("idle", job, audit, now_ms, pieces, query=query)

    async def done(
        self, job: str, query: str, pieces: Pieces, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> Effect:
        """Mark substreams as done."""
        return await self._act("done", job, audit, now_ms, pieces, query=query)

    async def evict(
        self, job: str, query: str, pieces: Pieces, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> Effect:
        """Evict substreams."""
        return await self._act("evict", job, audit, now_ms, pieces, query=query)

    async def retire(
        self, job: str, query: str, successor: str | None, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> Effect:
        """Retire a query."""
        return await self._act("retire", job, audit, now_ms, query=query, successor=successor)

    async def _act(
        self,
        command: str,
        job: str,
        audit: AuditInfo,
        now_ms: int | None,
        pieces: Pieces | None = None,
        **arguments: Any,
    ) -> Effect:
        reply = await self._functions.run(command, job, now_ms, pieces, **asdict(audit), **arguments)
        return replies.command_result(reply)
