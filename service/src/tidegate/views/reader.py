"""Conversion of replies of the store to answers, and a cache of the status of all jobs."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tidegate.domain import results
from tidegate.store.jobs import JobStore
from tidegate.store.replies import Status
from tidegate.views.types import attributes
from tidegate.views.watermark import CommandResult, WatermarkState


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """The store, with functions that convert its replies to answers.

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
        """Return the watermark of a job as an answer."""
        return WatermarkState(**self.members(job, state))

    def command_result(self, job: str, result: results.Effect) -> CommandResult:
        """Return the result of a command as an answer."""
        return CommandResult(**self.members(job, result.state), applied=result.applied)

    def command_json(self, job: str, result: results.Effect) -> bytes:
        """Return the result of a command as JSON. The JSON is cached, because merged reports have equal results."""
        return _command_json(self, job, result)


@lru_cache(256)
def _command_json(reader: Reader, job: str, result: results.Effect) -> bytes:
    return reader.command_result(job, result).model_dump_json().encode()


log = logging.getLogger(__name__)

FRESH_S = 1.0
JOBS_AT_ONCE = 200


class Overview:
    """A cache of the status of every job, read from the store at most once per ``FRESH_S`` seconds.

    Attributes:
        unreadable: Jobs whose stored state cannot be read. The log contains the causes.
    """

    def __init__(self, store: JobStore) -> None:
        self.unreadable: frozenset[str] = frozenset()
        self._store = store
        self._lock = asyncio.Lock()
        self._statuses: Mapping[str, Status] = {}
        self._read_at = -FRESH_S

    async def statuses(self) -> Mapping[str, Status]:
        """Return the status of each job, sorted by name.

        Raises:
            RedisError: If the cache is older than ``FRESH_S`` and the store does not answer.
        """
        async with self._lock:
            if time.monotonic() - self._read_at >= FRESH_S:
                names, results = await self._store.reads.jobs(), dict[str, Status | Exception]()
                for first in range(0, len(names), JOBS_AT_ONCE):
                    results |= await self._store.reads.statuses(names[first : first + JOBS_AT_ONCE])
                self._statuses = {job: status for job, status in results.items() if isinstance(status, Status)}
                self._log_failures({job: error for job, error in results.items() if isinstance(error, Exception)})
                self._read_at = time.monotonic()
            return self._statuses

    def _log_failures(self, failures: Mapping[str, Exception]) -> None:
        for job in failures.keys() - self.unreadable:
            log.error("Cannot read job %s.", job, exc_info=failures[job])
        self.unreadable = frozenset(failures)
