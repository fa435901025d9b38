"""The tasks of a replica that no call waits for.

The functions in Redis keep a list of the jobs that are due. The sweeper evaluates jobs whose state can change without a
call, for example by an idle timeout, and reads no other jobs. Every replica sweeps, and takes jobs that the others have
not taken. A sweep is one atomic and idempotent function call, so it does no harm if two replicas sweep a job because
the first was slow.

Another task stores the last use of each key. A third one watches whether the configuration of Redis can lose state. The
configuration can change while a coordinator runs: an operator changes it, or a failover selects another server.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from redis.exceptions import RedisError, ResponseError

from tidegate.auth.keyring import Keyring
from tidegate.auth.usage import KeyUsage
from tidegate.domain.errors import ClockJumped, JobDeleted, JobNotFound, StateDamaged, StateTooNew
from tidegate.runtime.metrics import Metrics
from tidegate.store import shared
from tidegate.store.checks import RISKS, all_risks
from tidegate.store.connection import is_failed_function
from tidegate.store.jobs import DUE_AT_ONCE, JobStore
from tidegate.store.servers import Servers


async def end(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    """Cancel tasks repeatedly until all have ended.

    A single cancellation can be lost when it coincides with a timeout of the Redis client.
    """
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=0.5)


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


USES_EACH_S = 30.0
"""Interval in which the last uses of keys are stored."""
FORGET_AFTER_S = 30 * 24 * 3600
"""Time after which the last use of a revoked key is removed. Another replica may not yet have read a new key."""


async def record_key_usage(store: JobStore, usage: KeyUsage, keyring: Keyring | None) -> None:
    """Write the last use of each key to the store, every ``USES_EACH_S`` seconds and when the task is cancelled."""
    try:
        await _forget(store, keyring)
        while True:
            await asyncio.sleep(USES_EACH_S)
            await _write(store, usage)
    finally:
        await _write(store, usage)


async def _forget(store: JobStore, keyring: Keyring | None) -> None:
    if keyring is None:
        return
    kept = {key.id for key in keyring.keys()}  # noqa: SIM118 - a keyring is no mapping
    try:
        await shared.forget_last_uses(store.servers, kept, keyring.now_s() - FORGET_AFTER_S)
    except RedisError as error:
        log.warning("Cannot remove the last uses of revoked keys: %s", error or type(error).__name__)


async def _write(store: JobStore, usage: KeyUsage) -> None:
    try:
        await shared.record_last_use(store.servers, usage.take_last_used())
    except RedisError as error:
        log.warning("Cannot store the last use of keys: %s", error or type(error).__name__)


RISKS_EACH_S = 60.0
"""Interval of the checks. A check takes two round trips to each server."""


async def watch_risks(servers: Servers, url: str, metrics: Metrics) -> None:
    """Check all servers at an interval until cancelled. Log each risk once, and export all risks as a metric."""
    logged: set[str] = set()
    while True:
        try:
            found = await all_risks(servers, url)
        except (RedisError, OSError) as error:  # readyz, the sweeper and the metrics show an outage of Redis
            log.debug("Cannot check the configuration of Redis: %s", error)
        else:
            for risk in found:
                if risk.text not in logged:
                    log.log(logging.ERROR if risk.is_certain else logging.WARNING, "%s", risk.text)
            if logged and not found:
                log.warning("The configuration of Redis loses no state any more.")
            logged = {risk.text for risk in found}
            for name in RISKS:
                metrics.store_risk.labels(name).set(any(risk.name == name for risk in found))
        await asyncio.sleep(RISKS_EACH_S)
