"""All jobs at once, for those who look at all of them: the page, and whoever scrapes metrics."""

import asyncio
import logging
import time
from collections.abc import Mapping

from tidegate.store.jobs import JobStore
from tidegate.store.reads import Status

log = logging.getLogger(__name__)

FRESH_S = 1.0
JOBS_AT_ONCE = 200


class Overview:
    """The status of every job, read once for all who ask within ``FRESH_S``."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._statuses: Mapping[str, Status] = {}
        self.unreadable: frozenset[str] = frozenset()
        """Jobs whose state in the store is none; the log has said why."""
        self._read_at = -FRESH_S

    async def statuses(self) -> Mapping[str, Status]:
        """By job, in the order of their names.

        :raises RedisError: where it does not answer; nothing old is told then.
        """
        async with self._lock:
            if time.monotonic() - self._read_at >= FRESH_S:
                names, found = await self._store.reads.jobs(), dict[str, Status | Exception]()
                for first in range(0, len(names), JOBS_AT_ONCE):
                    found |= await self._store.reads.statuses(names[first : first + JOBS_AT_ONCE])
                self._statuses = {job: status for job, status in found.items() if isinstance(status, Status)}
                self._note({job: status for job, status in found.items() if isinstance(status, Exception)})
                self._read_at = time.monotonic()
            return self._statuses

    def _note(self, failed: Mapping[str, Exception]) -> None:
        for job in failed.keys() - self.unreadable:
            log.error("Job %s cannot be read.", job, exc_info=failed[job])
        self.unreadable = frozenset(failed)
