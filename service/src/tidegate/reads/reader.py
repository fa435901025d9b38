"""What the views read from."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from tidegate.domain.records import Answer, Effect
from tidegate.reads.watermark import CommandResult, WatermarkState
from tidegate.store.redis import JobStore


@dataclass(frozen=True, slots=True)
class Reader:
    """The store, and the means to turn its replies into records.

    Attributes:
        store: The store of all jobs.
        issue_token: Returns the watermark token of a job's answer.
        stale_after_ms: Time without a contact after which a job is stale.
        bulk_reads: Held while all substreams of a large job are read. One such read at a time bounds the memory.
    """

    store: JobStore
    issue_token: Callable[[str, Answer], str]
    stale_after_ms: int
    bulk_reads: asyncio.Lock = field(default_factory=asyncio.Lock)

    def members(self, job: str, answer: Answer) -> dict[str, Any]:
        """Return the members of a :class:`WatermarkState`."""
        return {
            "job": job,
            "watermark": answer.watermark,
            "coalesced_watermark": answer.coalesced_watermark,
            "complete": answer.complete,
            "now_ms": answer.now_ms,
            "state_epoch": answer.state_epoch,
            "incarnation": answer.incarnation,
            "watermark_token": self.issue_token(job, answer),
            "held_by": None if answer.held_by is None else asdict(answer.held_by),
        }

    def watermark(self, job: str, answer: Answer) -> WatermarkState:
        """Return the watermark of a job as a record."""
        return WatermarkState(**self.members(job, answer))

    def command_result(self, job: str, effect: Effect) -> CommandResult:
        """Return the result of a command as a record."""
        return CommandResult(**self.members(job, effect.answer), applied=effect.applied)
