"""The status of all jobs, for the job list of the page and for metrics."""

import asyncio
import logging
import time
from collections.abc import Mapping

from tidegate.store.jobs import JobStore
from tidegate.store.replies import Status

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
