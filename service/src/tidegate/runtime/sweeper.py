"""Moves what only time moves: without it, a job nobody reports to and nobody reads would never fall idle.

A job in which time can change something is entered, by the script that finds so, where sweepers look for what is due;
others cost nothing. Every replica sweeps; a sweep is one atomic script that changes nothing the second time, so they
need not agree.
"""

import asyncio
import logging

from redis.exceptions import RedisError, ResponseError

from tidegate.domain.errors import ClockJumped, JobDeleted, JobNotFound
from tidegate.runtime.metrics import Metrics
from tidegate.store.connection import is_failed_script
from tidegate.store.jobs import JobStore

log = logging.getLogger(__name__)


class Sweeper:
    """:meth:`run` it as a task."""

    def __init__(self, store: JobStore, interval_ms: int, metrics: Metrics) -> None:
        self._store, self._interval_s, self._metrics = store, interval_ms / 1000, metrics

    async def run(self) -> None:
        """Sweeps until cancelled; a Redis that is away is waited for, and so is one whose clock cannot be believed."""
        jumped, failed = False, ""
        while True:
            try:
                await self.sweep()
                self._metrics.swept.set_to_current_time()
                if failed:
                    log.warning("Sweeping works again.")
                failed = ""
                if jumped:
                    log.error("The clock of Redis is back where it should be.")
                jumped = False
            except ClockJumped as error:
                if not jumped:
                    log.critical("%s", error)
                jumped = True
            except RedisError as error:
                # Once for each reason: this comes again with every interval.
                reason = str(error) or type(error).__name__
                if reason != failed:
                    log.warning("Sweep failed, trying again: %s", reason)
                failed = reason
            except Exception:
                # A sweeper that ended would be missed by nobody until a watermark did not move.
                log.exception("Sweep failed, trying again.")
            self._metrics.clock_jumped.set(jumped)
            await asyncio.sleep(self._interval_s)

    async def sweep(self) -> None:
        """One round: every job that is due by now."""
        for job in await self._store.due():
            try:
                await self._store.sweep(job)
            except (JobNotFound, JobDeleted):  # since we learnt that it was due
                pass
            except ResponseError as error:
                if not is_failed_script(error):
                    raise
                # What is wrong with one job must not keep the others waiting.
                log.exception("Job %s could not be swept.", job)
