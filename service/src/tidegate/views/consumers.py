"""The consumers of a job's frames: who delivers them, and how far they are."""

from typing import Self

from pydantic import Field

from tidegate.domain.errors import ConsumerNotFound
from tidegate.domain.job import Consumer, ConsumerPosition
from tidegate.views.reader import Reader
from tidegate.views.types import Answer
from tidegate.views.watermark import WatermarkState


class ConsumerStatus(Answer):
    """A consumer: a program that delivers each generation of each frame."""

    consumer: str = Field(description="Name of the consumer.", examples=["airflow"])
    owner: str = Field(description="Process that has, or had, the lease.", examples=["notifier-1-7f3a9c"])
    lease_until_ms: int | None = Field(
        description="Processing time at which the lease ends. Null if no process has the lease.",
        examples=[1357558230000],
    )
    position: ConsumerPosition | None = Field(
        description="Position of the consumer: all generations up to this one are delivered. Null if none is."
    )
    moved_ms: int | None = Field(
        description="Processing time of the last movement of the position. Null if it has not moved.",
        examples=[1357558202000],
    )

    @classmethod
    def of(cls, consumer: Consumer, now_ms: int) -> Self:
        """Return a consumer at a processing time."""
        until_ms = consumer.lease_until_ms
        return cls(
            consumer=consumer.consumer,
            owner=consumer.owner,
            lease_until_ms=until_ms if until_ms > now_ms else None,
            position=consumer.position,
            moved_ms=consumer.moved_ms,
        )


class ConsumerList(WatermarkState):
    """The consumers of a job's frames."""

    consumers: list[ConsumerStatus] = Field(description="Consumers, sorted by name.")


class ConsumerResult(WatermarkState):
    """A consumer of a job's frames."""

    consumer: ConsumerStatus = Field(description="The consumer.")


async def read_consumers(reader: Reader, job: str) -> ConsumerList:
    """Return the consumers of a job's frames."""
    found = await reader.store.reads.consumers(job)
    consumers = [ConsumerStatus.of(each, found.state.now_ms) for each in found.consumers]
    return ConsumerList(**reader.members(job, found.state), consumers=consumers)


async def read_consumer(reader: Reader, job: str, consumer: str) -> ConsumerResult:
    """Return a consumer of a job's frames.

    Raises:
        ConsumerNotFound: If the job has no such consumer.
    """
    found = await read_consumers(reader, job)
    for each in found.consumers:
        if each.consumer == consumer:
            members = {name: getattr(found, name) for name in WatermarkState.model_fields}
            return ConsumerResult(**members, consumer=each)
    raise ConsumerNotFound(consumer)
