"""The consumers of a job's frames: who delivers them, and up to which generation they are delivered.

This is the model. In a coordinator, ``store/lua/consumers.lua`` does the same.

A consumer has one position for all of its processes, and one process works at a time: it has a lease, which it renews
with each call. A process that has lost its lease to another one cannot move the position (fencing). The position moves
only forward, also over a reset of the job or another declaration of its frames: later generations are made at later
processing times, and the clock of a job never goes back.
"""

from dataclasses import astuple, dataclass, replace

from tidegate.domain.errors import (
    ConsumerAhead,
    ConsumerHeld,
    ConsumerNotFound,
    ConsumerTakenOver,
    TooManyConsumers,
)
from tidegate.domain.evaluate import advance_clock, reply
from tidegate.domain.history import NO_AUDIT, AuditInfo, Kind
from tidegate.domain.job import MAX_CONSUMERS, Consumer, ConsumerPosition, JobState
from tidegate.domain.results import JobWatermark


@dataclass(frozen=True, slots=True)
class Consumed:
    """The result of a call about a consumer."""

    state: JobWatermark
    consumer: Consumer


def consume(
    job: JobState,
    consumer: str,
    owner: str,
    lease_ms: int,
    now_ms: int,
    position: ConsumerPosition | None = None,
    release: bool = False,
) -> Consumed:
    """Take or renew the lease of a consumer, and move its position; ``release`` ends the lease.

    A process whose lease has ended may still move the position, as long as no other process has taken the lease.

    Raises:
        ConsumerHeld: If another process has the lease.
        ConsumerTakenOver: If another process had the lease last, and the call moves the position or ends the lease.
        ConsumerAhead: If the position is before that of the consumer.
        TooManyConsumers: If the consumer is new, and the job has too many consumers.
    """
    present, latest_ms = job.consumers.get(consumer), max(now_ms, job.now_ms)
    if present is None:
        if len(job.consumers) >= MAX_CONSUMERS:
            raise TooManyConsumers(MAX_CONSUMERS)
    elif present.owner != owner:
        if present.lease_until_ms > latest_ms:
            raise ConsumerHeld(consumer, present.owner, present.lease_until_ms)
        if position is not None or release:
            raise ConsumerTakenOver(consumer, present.owner)
    before = None if present is None else present.position
    if position is not None and before is not None and position < before:
        raise ConsumerAhead(consumer, *astuple(before))
    advance_clock(job, now_ms)
    until_ms = job.now_ms if release else job.now_ms + lease_ms
    found = replace(present or Consumer(consumer, owner, until_ms), owner=owner, lease_until_ms=until_ms)
    if position is not None and position != before:
        found = replace(found, position=position, moved_ms=job.now_ms)
    job.consumers[consumer] = found
    return Consumed(reply(job), found)


def forget_consumer(job: JobState, consumer: str, now_ms: int, audit: AuditInfo = NO_AUDIT) -> JobWatermark:
    """Remove a consumer. If a process uses its name later, it delivers all frames again.

    Raises:
        ConsumerNotFound: If the job has no such consumer.
        ConsumerHeld: If a process has its lease.
    """
    present = job.consumers.get(consumer)
    if present is None:
        raise ConsumerNotFound(consumer)
    if present.lease_until_ms > max(now_ms, job.now_ms):
        raise ConsumerHeld(consumer, present.owner, present.lease_until_ms)
    advance_clock(job, now_ms)
    del job.consumers[consumer]
    job.history.write(
        job.now_ms, Kind.ACTION, action="forget_consumer", actor=audit.actor, reason=audit.reason, consumer=consumer
    )
    return reply(job)
