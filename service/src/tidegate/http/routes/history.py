"""The history of a job, as server-sent events and in pages."""

import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.status import HTTP_200_OK

from tidegate.auth.callers import Caller
from tidegate.auth.roles import READERS
from tidegate.domain.errors import JobDeleted, JobNotFound
from tidegate.domain.history import Kind
from tidegate.domain.values import EXACT_DOUBLE
from tidegate.http.actions import check_processing_time
from tidegate.http.bodies import compact_answer
from tidegate.http.call import call_of
from tidegate.http.request import CallerOf, Context, ContextOf, JobId, allowed
from tidegate.runtime.feed import Entry, State, Step
from tidegate.views.history import RECORD_ID, HistoryPage, HistoryRecord, read_history

router = APIRouter(prefix="/v1/jobs", tags=["state"])

NO_RECORD = "0-0"
PAUSE_S = 15.0
"""Seconds without records after which the stream sends a comment, so that proxies keep the connection open."""
RETRY_MS = (500, 3000)
"""Range in milliseconds of the delay before a client reconnects. A random delay spreads the reconnections."""
EXAMPLE = (
    "id: 1357554600000-0\n"
    "event: emission\n"
    'data: {"id":"1357554600000-0","at_ms":1357554600000,"kind":"emission","watermark":1357552800000,'
    '"coalesced_watermark":1357554600000,"held_by":"slow","query":"departures","substream":"HNL"}\n\n'
)
EVENT_STREAM: dict[int | str, dict[str, Any]] = {
    HTTP_200_OK: {
        "content": {"text/event-stream": {"schema": {"type": "string"}, "example": EXAMPLE}},
        "description": "The name of an event is the kind of its `HistoryRecord`. The events `state` and `reset` "
        "contain a `WatermarkState`. `state` is the first event. `reset` follows a reset, or replaces missing records. "
        "`deleted` is the last event of a deleted job.",
    }
}


@router.get(
    "/{job:id}/watermark:watch",
    response_class=StreamingResponse,
    responses=EVENT_STREAM,
    summary="Watch a job",
)
@allowed(*READERS)
async def watch(
    job: JobId,
    request: Request,
    context: ContextOf,
    caller: CallerOf,
    kind: Annotated[list[Kind] | None, Query(description="Kinds of records.", examples=[["emission"]])] = None,
    last_event_id: Annotated[
        str | None, Header(description="Id of the last event that the client received.", examples=["1357554600000-0"])
    ] = None,
) -> StreamingResponse:
    """Stream the history of a job as server-sent events. After a reconnection, the stream continues without a gap."""
    await context.store.read_watermark(job)  # raises an error before the stream starts if the job does not exist
    known = last_event_id
    if known is not None and not re.match(RECORD_ID, known):
        known = NO_RECORD  # for an invalid id, the stream starts with a reset
    steps = context.wakeups.follow(job, known, PAUSE_S, context.usage.waiting(caller.key))
    await anext(steps)
    call_of(request.scope).is_endless = True
    return StreamingResponse(
        _events(context, caller, job, steps, kind or ()),
        headers={"X-Accel-Buffering": "no"},
        media_type="text/event-stream",
    )


async def _events(
    context: Context, caller: Caller, job: str, steps: AsyncGenerator[Step, None], kinds: Collection[Kind]
) -> AsyncIterator[bytes]:
    yield f"retry: {random.randint(*RETRY_MS)}\n\n".encode()  # noqa: S311 - not a secret
    async with aclosing(steps):
        try:
            async for step in context.revocation.while_valid(steps, caller.key):
                if isinstance(step, State):
                    name = "reset" if step.discontinuous else "state"
                    yield _event(step.id, name, context.reader.watermark(job, step.answer))
                else:
                    yield b"".join(_wire(entry, kinds) for entry in step) or b": no records\n\n"
        except (JobNotFound, JobDeleted):
            yield b"event: deleted\ndata: {}\n\n"


def _wire(entry: Entry, kinds: Collection[Kind]) -> bytes:
    if kinds and entry.record.kind not in kinds:
        return f"id: {entry.id}\n\n".encode()  # only the position, without an event
    if not entry.wire:
        entry.wire = _event(entry.id, entry.record.kind, HistoryRecord.of(entry.id, entry.record))
    return entry.wire


def _event(event_id: str, name: str, record: BaseModel) -> bytes:
    return f"id: {event_id}\nevent: {name}\ndata: {record.model_dump_json(exclude_unset=True)}\n\n".encode()


@router.get("/{job:id}/history", response_model=HistoryPage, summary="Get the history of a job")
@allowed(*READERS)
async def history(
    job: JobId,
    context: ContextOf,
    as_of: Annotated[
        int | None,
        Query(
            ge=0,
            le=EXACT_DOUBLE.highest,
            description="Latest processing time of records. The answer includes the watermark at that time.",
            examples=[1357554660000],
        ),
    ] = None,
    since: Annotated[
        int,
        Query(ge=0, le=EXACT_DOUBLE.highest, description="Earliest processing time of records.", examples=[0]),
    ] = 0,
    kind: Annotated[list[Kind] | None, Query(description="Kinds of records.", examples=[["emission"]])] = None,
    before: Annotated[
        str | None,
        Query(pattern=RECORD_ID, description="The `next` of the previous page.", examples=["1357554600000-0"]),
    ] = None,
    limit: Annotated[
        int, Query(ge=1, le=1000, description="Maximum number of records in a page.", examples=[100])
    ] = 100,
) -> Response:
    """Return the records of a job, latest first."""
    check_processing_time("as_of", as_of)
    check_processing_time("since", since)
    return compact_answer(await read_history(context.reader, job, as_of, since, kind or (), before, limit))
