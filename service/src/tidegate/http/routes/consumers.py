"""The consumers of a job's frames: their leases and positions."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from tidegate.auth.roles import READERS, REPORTERS_AND_OPERATORS
from tidegate.domain.job import ConsumerPosition
from tidegate.domain.values import ID, ID_RULE
from tidegate.http.bodies import body_of, json_answer
from tidegate.http.request import CallerOf, ContextOf, JobId, allowed
from tidegate.views.consumers import ConsumerList, ConsumerResult, ConsumerStatus, read_consumer, read_consumers
from tidegate.views.types import EventTime, Id, PositiveMs, Request, Text
from tidegate.views.watermark import WatermarkState

router = APIRouter(prefix="/v1/jobs", tags=["consumers"])

MIN_LEASE_MS, MAX_LEASE_MS = 1000, 24 * 3_600_000
ConsumerName = Annotated[
    Id,
    Path(json_schema_extra={"pattern": ID}, description=f"Name of the consumer: {ID_RULE}.", examples=["airflow"]),
]


class PositionRequest(Request):
    """The position of a consumer: the last generation of a frame that it has delivered."""

    at_ms: PositiveMs = Field(description="`at_ms` of the generation.", examples=[1357558201000])
    start: EventTime = Field(description="Start of the frame.", examples=[1357552800000])
    generation: PositiveMs = Field(description="Number of the generation.", examples=[1])


class ConsumeRequest(Request):
    """A request of a process that delivers frames for a consumer."""

    owner: Id = Field(description="Id of the process.", examples=["notifier-1-7f3a9c"])
    lease_ms: int = Field(
        strict=True,
        ge=MIN_LEASE_MS,
        le=MAX_LEASE_MS,
        description="Duration of the lease from now in milliseconds. Until then, other processes are refused.",
        examples=[30000],
    )
    position: PositionRequest | None = Field(
        default=None,
        description="New position, which must not be before the present one. If omitted, the position stays.",
    )
    release: bool = Field(default=False, strict=True, description="Whether to end the lease at once.", examples=[False])


@router.get("/{job:id}/consumers", response_model=ConsumerList, summary="List consumers")
@allowed(*READERS)
async def consumers(job: JobId, context: ContextOf) -> Response:
    """Return the programs that deliver the frames of a job, with their leases and positions."""
    return json_answer(await read_consumers(context.reader, job))


@router.get("/{job:id}/consumers/{consumer:id}", response_model=ConsumerResult, summary="Get a consumer")
@allowed(*READERS)
async def consumer(job: JobId, consumer: ConsumerName, context: ContextOf) -> Response:
    """Return a program that delivers the frames of a job, with its lease and position."""
    return json_answer(await read_consumer(context.reader, job, consumer))


@router.put("/{job:id}/consumers/{consumer:id}", response_model=ConsumerResult, summary="Take or move a consumer")
@allowed(*REPORTERS_AND_OPERATORS)
async def consume(
    job: JobId, consumer: ConsumerName, body: Annotated[ConsumeRequest, body_of(ConsumeRequest)], context: ContextOf
) -> Response:
    """Take or renew the lease of a consumer, and move its position. The first call creates the consumer.

    One process has the lease at a time. A process that finds a consumer without a lease takes it with a call without
    `position`, and continues from the position in the answer. All generations that are made later have an `at_ms` of at
    least `now_ms` of the answer.
    """
    position = None if body.position is None else ConsumerPosition(**dict(body.position))
    found = await context.store.consume(job, consumer, body.owner, body.lease_ms, position, body.release)
    shown = ConsumerStatus.of(found.consumer, found.state.now_ms)
    return json_answer(ConsumerResult(**context.reader.members(job, found.state), consumer=shown))


@router.delete("/{job:id}/consumers/{consumer:id}", response_model=WatermarkState, summary="Forget a consumer")
@allowed(*REPORTERS_AND_OPERATORS)
async def forget_consumer(
    job: JobId,
    consumer: ConsumerName,
    context: ContextOf,
    caller: CallerOf,
    reason: Annotated[
        Text,
        Query(max_length=1000, description="Reason for the action. The history keeps it.", examples=["Run all again"]),
    ] = "",
) -> Response:
    """Remove a consumer that no process uses. If a process uses its name later, it delivers all frames again."""
    answer = await context.store.actions.forget_consumer(job, consumer, caller.audit_info(reason))
    return json_answer(context.reader.watermark(job, answer))
