"""Conversion of replies of the store to records."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tidegate.domain import results
from tidegate.store.jobs import JobStore
from tidegate.views.types import attributes
from tidegate.views.watermark import CommandResult, WatermarkState


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """The store, with functions that convert its replies to records.

    Attributes:
        store: The store of all jobs.
        issue_token: Function that returns the watermark token of a job's state.
        stale_after_ms: Time without contact after which a job is stale.
        bulk_reads: Lock for reads of all substreams of a large job. The lock limits the use of memory.
    """

    store: JobStore
    issue_token: Callable[[str, results.JobWatermark], str]
    stale_after_ms: int
    bulk_reads: asyncio.Lock = field(default_factory=asyncio.Lock)

    def members(self, job: str, state: results.JobWatermark) -> dict[str, Any]:
        """Return the state of a job as the members of a :class:`WatermarkState`."""
        return attributes(state) | {"job": job, "watermark_token": self.issue_token(job, state)}

    def watermark(self, job: str, state: results.JobWatermark) -> WatermarkState:
        """Return the watermark of a job as a record."""
        return WatermarkState(**self.members(job, state))

    def command_result(self, job: str, result: results.Effect) -> CommandResult:
        """Return the result of a command as a record."""
        return CommandResult(**self.members(job, result.state), applied=result.applied)

    def command_json(self, job: str, result: results.Effect) -> bytes:
        """Return the result of a command as JSON. The JSON is cached, because merged reports have equal results."""
        return _command_json(self, job, result)


@lru_cache(256)
def _command_json(reader: Reader, job: str, result: results.Effect) -> bytes:
    return reader.command_result(job, result).model_dump_json().encode()
