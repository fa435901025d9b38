"""A task that evaluates jobs whose state can change without a call, for example by an idle timeout.

The functions in Redis keep a list of the jobs that are due. The sweeper reads no other jobs. Every replica sweeps, and
takes jobs that the others have not taken. A sweep is one atomic and idempotent function call, so it does no harm if two
replicas sweep a job because the first was slow.
"""

import asyncio
import logging

from redis.exceptions import RedisError, ResponseError

from tidegate.domain.errors import ClockJumped, JobDeleted, JobNotFound, StateDamaged, StateTooNew
from tidegate.runtime.metrics import Metrics
from tidegate.store.connection import is_failed_function
from tidegate.store.jobs import DUE_AT_ONCE, JobStore

log = logging.getLogger(__name__)


class Sweeper:
    """A task that sweeps all due jobs at an interval."""

    def __init__(self, store: JobStore, interval_ms: int, metrics: Metrics) -> None:
        self._store, self._interval_s, self._metrics = store, interval_ms / 1000, metrics
        self._clock_jumped = False
        self._unswept: dict[str, str] = {}
        """The last errors of jobs that cannot be swept. The task logs each error once."""
        self._error = ""
        """The last error of Redis. The task logs each error once, because an error recurs at every interval."""

    async def run(self) -> None:
        """Sweep until cancelled. Log errors, and try again at the next interval."""
        while True:
            try:
                await self.sweep()
                self._succeeded()
            except ClockJumped as error:
                if not self._clock_jumped:
                    log.critical("%s", error)
                self._clock_jumped = True
            except RedisError as error:
                reason = str(error) or type(error).__name__
                if reason != self._error:
                    log.warning("The sweep failed; trying again: %s", reason)
                self._error = reason
            except Exception:
                # If this task ended, timeouts would have no effect, and no other log line would show the cause.
                log.exception("The sweep failed; trying again.")
            self._metrics.clock_jumped.set(self._clock_jumped)
            await asyncio.sleep(self._interval_s)

    async def sweep(self) -> None:
        """Sweep every job that is due now and that no other replica takes. A bucket that fails does not delay others.

        Raises:
            RedisError, ClockJumped: The first failure, after the sweep of the other buckets.
        """
        now_ms = await self._store.read_clock()
        remain = True
        while remain:
            taken = await self._store.due(now_ms)
            swept = await asyncio.gather(*map(self._sweep_jobs, taken), return_exceptions=True)
            for failure in swept:
                if failure is not None:
                    raise failure
            remain = any(not isinstance(jobs, RedisError) and len(jobs) == DUE_AT_ONCE for jobs in taken)

    async def _sweep_jobs(self, jobs: list[str] | RedisError) -> None:
        if isinstance(jobs, RedisError):
            raise jobs
        if not jobs:
            return
        for job, error in zip(jobs, await self._store.sweep_due(jobs), strict=True):
            match error:
                case None | JobNotFound() | JobDeleted():  # the job was deleted after it was taken
                    self._unswept.pop(job, None)
                case StateDamaged() | StateTooNew():  # a newer coordinator sweeps a job that is too new
                    self._log_once(job, error)
                case ResponseError() if is_failed_function(error):
                    # One broken job must not stop the sweeps of the other jobs.
                    self._log_once(job, error)
                case _:
                    raise error

    def _log_once(self, job: str, error: Exception) -> None:
        if self._unswept.get(job) != str(error):
            log.error("Cannot sweep job %s. %s", job, error)
        self._unswept[job] = str(error)

    def _succeeded(self) -> None:
        self._metrics.swept.set_to_current_time()
        if self._error:
            log.warning("Sweeping works again.")
        if self._clock_jumped:
            log.error("The clock of Redis is correct again.")
        self._error, self._clock_jumped = "", False
