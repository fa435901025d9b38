"""The commands of a job: each is one script call, and so one atomic step.

A command has the name of its module in :mod:`tidegate.domain.commands`, raises the same errors and returns the same
result. Coordinators keep no state of a job, so any number of replicas can serve it.
"""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from tidegate.domain.batches import PINNED_WATERMARKS_KEPT
from tidegate.domain.config import JobConfig
from tidegate.domain.delays import NO_DELAYS
from tidegate.domain.journal import NO_AUDIT, AuditInfo, Record
from tidegate.domain.results import BeginResult, CommandResult, WatermarkState
from tidegate.domain.rows import BatchAccounting
from tidegate.domain.state import PinnedWatermark, RowsByDelay, Run, TokenClaim
from tidegate.store import replies
from tidegate.store.arguments import (
    Values,
    accounting_columns,
    delay_columns,
    members,
    report_columns,
    run_of,
    token_of,
)
from tidegate.store.clock import ClockGuard
from tidegate.store.compiled import compile_config
from tidegate.store.keys import SWEEPS
from tidegate.store.reads import JobReads
from tidegate.store.scripts import AroundCommand, Scripts, unobserved

NONE: Values = {}


@dataclass(frozen=True, slots=True)
class Configured:
    """A job after a PUT. ``created``: it is new."""

    state: WatermarkState
    created: bool
    revision: int


@dataclass(frozen=True, slots=True)
class Watched:
    """A job at one moment, its ``newest`` record, and its ``records`` after one that the client has.

    ``known`` is that one; None if it is no longer kept, so that some records after it may be lost.
    """

    state: WatermarkState
    newest: str
    known: Record | None
    records: list[tuple[str, Record]]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the number of jobs, and of substreams per job; None: no limit."""

    jobs: int | None = None
    substreams: int | None = None


@dataclass(frozen=True, slots=True)
class JobQuota:
    """At most ``jobs`` jobs whose names begin with ``prefix``."""

    prefix: str
    jobs: int


class JobStore:
    """Commands for all jobs of one Redis; :attr:`reads` has what changes nothing.

    ``now_ms`` of every command is for tests; by default it is the time of Redis. ``audit`` is the actor and the reason.
    ``quota`` is the caller's own limit on the substreams of a job. The other arguments are those of the command in
    :mod:`tidegate.domain.commands`.
    """

    def __init__(
        self,
        redis: Redis,
        unattended_after_ms: int | None = None,
        guard: ClockGuard | None = None,
        limits: Limits | None = None,
        around: AroundCommand = unobserved,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.redis, self.limits = redis, limits or Limits()
        self._scripts = Scripts(redis, unattended_after_ms, guard, around, clock)
        self.reads = JobReads(self._scripts)

    async def configure(
        self,
        job: str,
        config: JobConfig,
        document: Mapping[str, Any],
        expected_revision: int | None,
        audit: AuditInfo = NO_AUDIT,
        now_ms: int | None = None,
        quota: JobQuota | None = None,
    ) -> Configured:
        """Create a job (``expected_revision`` None), or change its configuration if it is at that revision.

        ``document`` is the configuration as the client sent it.

        Raises:
            JobExists, JobNotFound, JobDeleted, RevisionMismatch, TooManyJobs: See the errors.
        """
        reply = await self._scripts.run(
            "configure",
            job,
            now_ms,
            expected_revision=expected_revision,
            state_epoch=secrets.token_hex(8),
            config=json.dumps(document, sort_keys=True),
            compiled_config=compile_config(config),
            max_jobs=self.limits.jobs,
            quota=quota and {"prefix": quota.prefix, "jobs": quota.jobs},
            **_audit(audit),
        )
        return Configured(replies.watermark_state(reply), bool(reply.get("created")), reply["revision"])

    async def delete(self, job: str, expected_revision: int | None = None, now_ms: int | None = None) -> None:
        """Delete a job, or raise JobNotFound or RevisionMismatch; a second delete is no error."""
        await self._scripts.run("delete", job, now_ms, expected_revision=expected_revision)

    async def complete(
        self, job: str, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None, up_to: int | None = None
    ) -> CommandResult:
        """End the input of a job."""
        return await self._run("complete", job, now_ms, up_to=up_to, **_audit(audit))

    async def reopen(self, job: str, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None) -> CommandResult:
        """Undo the end of input."""
        return await self._run("reopen", job, now_ms, **_audit(audit))

    async def reset(self, job: str, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None) -> WatermarkState:
        """Start a new incarnation of a job."""
        reply = await self._scripts.run("reset", job, now_ms, state_epoch=secrets.token_hex(8), **_audit(audit))
        return replies.watermark_state(reply)

    async def hold(
        self,
        job: str,
        hold: str,
        at_most: int,
        duration_ms: int | None = None,
        audit: AuditInfo = NO_AUDIT,
        now_ms: int | None = None,
    ) -> CommandResult:
        """Hold the watermark, for ``duration_ms`` or, if that is None, until the release."""
        return await self._run(
            "hold", job, now_ms, hold=hold, at_most=at_most, duration_ms=duration_ms, **_audit(audit)
        )

    async def release(
        self, job: str, hold: str, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> WatermarkState:
        """End a hold."""
        return replies.watermark_state(await self._scripts.run("release", job, now_ms, hold=hold, **_audit(audit)))

    async def declare(
        self,
        job: str,
        query: str,
        names: Sequence[str],
        max_event_times: Values | None = None,
        audit: AuditInfo = NO_AUDIT,
        now_ms: int | None = None,
        quota: int | None = None,
    ) -> CommandResult:
        """Declare substreams."""
        columns = report_columns(query, names, max_event_times=max_event_times or {})
        room = self._max_substreams(quota)
        return await self._run("declare", job, now_ms, max_substreams=room, query=query, **columns, **_audit(audit))

    async def restore(
        self, job: str, query: str, watermarks: Values, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> CommandResult:
        """Set watermarks of substreams."""
        columns = report_columns(query, watermarks, watermarks=watermarks)
        return await self._run("restore", job, now_ms, query=query, **columns, **_audit(audit))

    async def idle(
        self, job: str, query: str, names: Sequence[str], audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> CommandResult:
        """Make substreams idle."""
        return await self._run("idle", job, now_ms, query=query, members=members(query, names), **_audit(audit))

    async def done(
        self, job: str, query: str, names: Sequence[str], audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> CommandResult:
        """Mark substreams as done."""
        return await self._run("done", job, now_ms, query=query, members=members(query, names), **_audit(audit))

    async def evict(
        self, job: str, query: str, names: Sequence[str], audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> CommandResult:
        """Forget substreams."""
        return await self._run("evict", job, now_ms, query=query, members=members(query, names), **_audit(audit))

    async def retire(
        self, job: str, query: str, successor: str | None, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> CommandResult:
        """End a query."""
        return await self._run("retire", job, now_ms, query=query, successor=successor, **_audit(audit))

    async def report(
        self,
        job: str,
        max_event_times: Values,
        *,
        min_event_times: Values = NONE,
        watermarks: Values = NONE,
        delays: Mapping[str, RowsByDelay] = NO_DELAYS,
        token: TokenClaim | None = None,
        now_ms: int | None = None,
        quota: int | None = None,
    ) -> CommandResult:
        """Apply a report without a batch."""
        names = dict.fromkeys([*max_event_times, *watermarks])
        columns = report_columns("", names, max_event_times=max_event_times, watermarks=watermarks)
        lowest = report_columns("", names, min_event_times=min_event_times) if min_event_times else {}
        return await self._run(
            "report",
            job,
            now_ms,
            max_substreams=self._max_substreams(quota),
            token=token_of(token),
            **columns | lowest,
            **delay_columns("", delays),
        )

    async def stage(
        self,
        job: str,
        run: Run,
        batch_id: int,
        partition: int,
        max_event_times: Values,
        rows: Values = NONE,
        *,
        watermarks: Values = NONE,
        future_rows: Values = NONE,
        delays: Mapping[str, RowsByDelay] = NO_DELAYS,
        token: TokenClaim | None = None,
        now_ms: int | None = None,
        quota: int | None = None,
    ) -> CommandResult:
        """Stage the report of a partition."""
        names = dict.fromkeys([*max_event_times, *watermarks, *rows, *future_rows])
        columns = report_columns(run.query, names, max_event_times=max_event_times, watermarks=watermarks)
        columns |= report_columns(run.query, names, rows=rows, future_rows=future_rows)
        return await self._run(
            "stage",
            job,
            now_ms,
            max_substreams=self._max_substreams(quota),
            token=token_of(token),
            run=run_of(run),
            batch_id=batch_id,
            partition=partition,
            **columns,
            **delay_columns(run.query, delays),
        )

    async def begin(
        self,
        job: str,
        run: Run,
        batch_id: int,
        known: PinnedWatermark | None = None,
        keep: int = PINNED_WATERMARKS_KEPT,
        waited_ms: int = 0,
        input_age_ms: int | None = 0,
        token: TokenClaim | None = None,
        now_ms: int | None = None,
    ) -> BeginResult:
        """Begin a batch."""
        reply = await self._scripts.run(
            "begin",
            job,
            now_ms,
            token=token_of(token),
            run=run_of(run),
            batch_id=batch_id,
            known=known is not None,
            pinned_watermark=known and known.value,
            keep=max(keep, PINNED_WATERMARKS_KEPT),
            waited_ms=waited_ms,
            input_age_ms=input_age_ms,
        )
        return replies.begin_result(reply)

    async def commit(
        self,
        job: str,
        run: Run,
        batch_id: int,
        accounting: BatchAccounting | None,
        waited_ms: int = 0,
        reported: int | None = None,
        token: TokenClaim | None = None,
        now_ms: int | None = None,
    ) -> CommandResult:
        """Commit a batch."""
        return await self._run(
            "commit",
            job,
            now_ms,
            token=token_of(token),
            run=run_of(run),
            batch_id=batch_id,
            waited_ms=waited_ms,
            reported=reported,
            **accounting_columns(run.query, accounting),
        )

    async def heartbeat(
        self,
        job: str,
        run: Run,
        observed_ms: int,
        waited_ms: int = 0,
        after_batch: int | None = None,
        token: TokenClaim | None = None,
        now_ms: int | None = None,
    ) -> CommandResult:
        """Advance the idle clock of a query."""
        return await self._run(
            "heartbeat",
            job,
            now_ms,
            token=token_of(token),
            run=run_of(run),
            observed_ms=observed_ms,
            waited_ms=waited_ms,
            after_batch=after_batch,
        )

    async def sweep(self, job: str, now_ms: int | None = None) -> WatermarkState:
        """Evaluate a job because time has passed, and return its watermark."""
        return replies.watermark_state(await self._scripts.run("sweep", job, now_ms))

    async def watch(self, job: str, known: str | None, limit: int, now_ms: int | None = None) -> Watched:
        """Sweep a job, and return at most ``limit`` records after the one with the id ``known``."""
        reply = await self._scripts.run("watch", job, now_ms, after=known, limit=limit)
        before, records = replies.journal_records(reply["known"]), replies.journal_records(reply["records"])
        return Watched(replies.watermark_state(reply), reply["newest"], before[0][1] if before else None, records)

    async def due(self, limit: int = 1000) -> list[str]:
        """Return the jobs whose next sweep is due, earliest first; raise ClockJumped if Redis's clock jumped ahead."""
        now_ms = await self._scripts.time_ms()
        if self._scripts.guard is not None:
            self._scripts.guard.hear(now_ms)
        found = await self.redis.zrange(SWEEPS, "-inf", str(now_ms), byscore=True, offset=0, num=limit)
        return [str(job) for job in found]

    def _max_substreams(self, quota: int | None) -> int | None:
        limits = [limit for limit in (quota, self.limits.substreams) if limit is not None]
        return min(limits, default=None)

    async def _run(self, command: str, job: str, now_ms: int | None, **arguments: Any) -> CommandResult:
        return replies.command_result(await self._scripts.run(command, job, now_ms, **arguments))


def _audit(audit: AuditInfo) -> dict[str, str]:
    return {"actor": audit.actor, "reason": audit.reason}
