"""What happens to a job, as it happens."""

import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from tidegate.api.access import READERS, Caller, Who, allowed
from tidegate.api.context import Context, Ctx, JobId
from tidegate.api.schemas.history import RECORD_ID, HistoryRecord
from tidegate.api.schemas.jobs import WatermarkRecord
from tidegate.domain.errors import JobDeleted, JobNotFound
from tidegate.domain.journal import Kind
from tidegate.runtime.feed import Entry, State, Step

router = APIRouter(prefix="/v1/jobs", tags=["state"])

NO_RECORD = "0-0"
PAUSE_S = 15.0
"""After so long without news a comment is sent, so that nobody in between takes the connection for dead."""
RETRY_MS = (500, 3000)
"""Clients that lost their connection come back after a time between these, not all at once."""
EVENT_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
        "description": "Events with the `HistoryRecord`s of the job, named by their kind; `state` and `reset` with a "
        "`WatermarkRecord`: where the job is, at the beginning, or where the record that was known does not lead there "
        "(it is no longer kept, or the job was reset); `deleted`, the last one, without.",
    }
}


@router.get("/{job:id}/watermark:watch", response_class=StreamingResponse, responses=EVENT_STREAM)
@allowed(*READERS)
async def watch(
    job: JobId,
    ctx: Ctx,
    who: Who,
    kind: Annotated[list[Kind] | None, Query(description="records of these kinds only")] = None,
    last_event_id: Annotated[str | None, Header(description="the last event that was seen: go on after it")] = None,
) -> StreamingResponse:
    """Every movement of the watermark, and whatever else happens, as server-sent events; ids as in the history."""
    await ctx.store.sweep(job)  # a job that is not there is told before the stream begins
    known = last_event_id
    if known is not None and not re.match(RECORD_ID, known):
        known = NO_RECORD  # whatever it is of, nothing here leads on from it
    steps = ctx.wakeups.follow(job, known, PAUSE_S, ctx.usage.waiting(who.key))
    await anext(steps)
    return StreamingResponse(
        _events(ctx, who, job, steps, kind or ()),
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        media_type="text/event-stream",
    )


async def _events(
    ctx: Context, who: Caller, job: str, steps: AsyncGenerator[Step, None], kinds: Collection[Kind]
) -> AsyncIterator[bytes]:
    yield f"retry: {random.randint(*RETRY_MS)}\n\n".encode()  # noqa: S311 - nobody gains by guessing it
    async with aclosing(steps):
        try:
            async for step in ctx.revocation.while_valid(steps, who.key):
                if isinstance(step, State):
                    told = WatermarkRecord(**ctx.watermark(job, step.answer))
                    yield _event(step.id, "reset" if step.anew else "state", told)
                else:
                    yield b"".join(_wire(entry, kinds) for entry in step) or b": nothing new\n\n"
        except (JobNotFound, JobDeleted):
            yield b"event: deleted\ndata: {}\n\n"


def _wire(entry: Entry, kinds: Collection[Kind]) -> bytes:
    if kinds and entry.record.kind not in kinds:
        return f"id: {entry.id}\n\n".encode()  # no event, but the place to go on from
    if not entry.wire:
        entry.wire = _event(entry.id, entry.record.kind, HistoryRecord.of(entry.id, entry.record))
    return entry.wire


def _event(event_id: str, name: str, told: BaseModel) -> bytes:
    return f"id: {event_id}\nevent: {name}\ndata: {told.model_dump_json(exclude_unset=True)}\n\n".encode()
