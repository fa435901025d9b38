"""Moves what only time moves: without it, a job nobody reports to and nobody reads would never fall idle.

Every replica sweeps; a sweep is one atomic script that changes nothing the second time, so they need not agree. Jobs in
which nothing can change with time are only looked at now and then, for they may have come to be others.
"""

import asyncio
import logging
import time

from redis.exceptions import RedisError

from tidegate.domain.errors import JobDeleted, JobNotFound
from tidegate.store.redis import JobStore

log = logging.getLogger(__name__)

RESCAN_S = 1.0


class Sweeper:
    """:meth:`run` it as a task."""

    def __init__(self, store: JobStore, interval_ms: int) -> None:
        self._store, self._interval_s = store, interval_ms / 1000
        self._driven: set[str] = set()
        self._rescan_at = 0.0

    async def run(self) -> None:
        """Sweeps until cancelled; a Redis that is away is waited for."""
        while True:
            try:
                await self.sweep()
            except RedisError as error:
                log.warning("Sweep failed, trying again: %s", error or type(error).__name__)
            except Exception:
                # A sweeper that ended would be missed by nobody until a watermark did not move.
                log.exception("Sweep failed, trying again.")
            await asyncio.sleep(self._interval_s)

    async def sweep(self) -> None:
        """One round: the jobs that time drives; every second all jobs, to learn which those are."""
        jobs = self._driven
        if time.monotonic() >= self._rescan_at:
            self._rescan_at = time.monotonic() + RESCAN_S
            jobs = set(await self._store.jobs())
            self._driven &= jobs
        for job in sorted(jobs):
            try:
                driven = await self._store.driven_by_time(job)
                if driven:
                    await self._store.sweep(job)
            except (JobNotFound, JobDeleted):  # also between the two
                driven = False
            (self._driven.add if driven else self._driven.discard)(job)
