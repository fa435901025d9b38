"""The commands of a job. Each command is one function call and therefore atomic.

A command has the name, the errors and the result of its function in :mod:`tidegate.domain.batches` or
:mod:`tidegate.domain.commands`. Coordinators keep no state of a job, so any number of replicas can serve the job.
"""

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tidegate.domain.batches import DEFAULTS, PINNED_WATERMARKS_KEPT, BeginOptions, CaughtUp
from tidegate.domain.calendar import Frames
from tidegate.domain.config import JobConfig, Throttle
from tidegate.domain.consumers import Consumed
from tidegate.domain.errors import DomainError
from tidegate.domain.history import NO_AUDIT, AuditInfo
from tidegate.domain.job import ANY_VERSION, ConfigVersion, ConsumerPosition, Run, TableVersion, TokenClaim
from tidegate.domain.offsets import BatchOffsets
from tidegate.domain.policies import Policy
from tidegate.domain.results import Begun, Committed, Effect, JobWatermark
from tidegate.domain.values import declarations
from tidegate.store import replies
from tidegate.store.clock import ClockGuard
from tidegate.store.functions import AroundCommand, Functions, ServerState, map_of, reply_of, unobserved
from tidegate.store.keyspace import TOMBSTONES_KEPT
from tidegate.store.merging import Merging, PendingReport
from tidegate.store.pieces import Pieces, members
from tidegate.store.reads import JobReads
from tidegate.store.replies import Configured, Watched
from tidegate.store.servers import OneServer, Servers, raise_first


@dataclass(frozen=True, slots=True)
class Capacity:
    """Highest number of jobs, and of substreams of one job; None: no limit."""

    jobs: int | None = None
    substreams: int | None = None

    def max_substreams(self, quota: int | None) -> int | None:
        """Return the lower of the limit on substreams and ``quota``; None if both are None."""
        return min((limit for limit in (quota, self.substreams) if limit is not None), default=None)


@dataclass(frozen=True, slots=True)
class JobQuota:
    """A limit of ``jobs`` on the number of jobs whose names start with ``prefix``."""

    prefix: str
    jobs: int


class JobActions:
    """Actions on all jobs of one Redis. For the arguments, see :class:`JobStore`.

    ``pieces`` are the substreams of a command, with the columns of :func:`tidegate.store.pieces.member_pieces`.
    """

    def __init__(self, functions: Functions, capacity: Capacity) -> None:
        self._functions, self._capacity = functions, capacity

    async def complete(
        self, job: str, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None, up_to: int | None = None
    ) -> Effect:
        """End the input of a job."""
        return await self._act("complete", job, audit, now_ms, up_to=up_to)

    async def reopen(self, job: str, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None) -> Effect:
        """Reopen a complete job."""
        return await self._act("reopen", job, audit, now_ms)

    async def reset(self, job: str, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None) -> JobWatermark:
        """Start a new incarnation of a job."""
        reply = await self._functions.run("reset", job, now_ms, state_epoch=secrets.token_hex(8), **asdict(audit))
        return replies.watermark_state(reply)

    async def hold(
        self,
        job: str,
        hold: str,
        at_most: int,
        duration_ms: int | None = None,
        audit: AuditInfo = NO_AUDIT,
        now_ms: int | None = None,
    ) -> Effect:
        """Hold the watermark at or below ``at_most`` for ``duration_ms`` (None: until the hold is released)."""
        return await self._act("hold", job, audit, now_ms, hold=hold, at_most=at_most, duration_ms=duration_ms)

    async def release(
        self, job: str, hold: str, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> JobWatermark:
        """Release a hold."""
        return replies.watermark_state(await self._functions.run("release", job, now_ms, hold=hold, **asdict(audit)))

    async def forget_consumer(
        self, job: str, consumer: str, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> JobWatermark:
        """Remove a consumer of the job's frames."""
        reply = await self._functions.run("forget_consumer", job, now_ms, consumer=consumer, **asdict(audit))
        return replies.watermark_state(reply)

    async def declare(
        self,
        job: str,
        query: str,
        pieces: Pieces,
        audit: AuditInfo = NO_AUDIT,
        now_ms: int | None = None,
        quota: int | None = None,
    ) -> Effect:
        """Declare substreams, with the column ``max_event_times``."""
        room = self._capacity.max_substreams(quota)
        return await self._act("declare", job, audit, now_ms, pieces, max_substreams=room, query=query)

    async def restore(
        self, job: str, query: str, pieces: Pieces, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> Effect:
        """Raise the watermarks of substreams to the column ``watermarks``."""
        return await self._act("restore", job, audit, now_ms, pieces, query=query)

    async def idle(
        self, job: str, query: str, pieces: Pieces, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> Effect:
        """Make substreams idle."""
        return await self._act("idle", job, audit, now_ms, pieces, query=query)

    async def done(
        self, job: str, query: str, pieces: Pieces, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> Effect:
        """Mark substreams as done."""
        return await self._act("done", job, audit, now_ms, pieces, query=query)

    async def evict(
        self, job: str, query: str, pieces: Pieces, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> Effect:
        """Evict substreams."""
        return await self._act("evict", job, audit, now_ms, pieces, query=query)

    async def retire(
        self, job: str, query: str, successor: str | None, audit: AuditInfo = NO_AUDIT, now_ms: int | None = None
    ) -> Effect:
        """Retire a query."""
        return await self._act("retire", job, audit, now_ms, query=query, successor=successor)

    async def _act(
        self,
        command: str,
        job: str,
        audit: AuditInfo,
        now_ms: int | None,
        pieces: Pieces | None = None,
        **arguments: Any,
    ) -> Effect:
        reply = await self._functions.run(command, job, now_ms, pieces, **asdict(audit), **arguments)
        return replies.command_result(reply)


DUE_AT_ONCE = 50
"""Maximum number of jobs of a bucket that a coordinator takes at once to sweep them."""
LEASE_MS = 2000
"""Time in milliseconds after which another coordinator takes a job. It is longer than the sweep of all jobs taken."""
MAX_SWEEPS = 100
"""Maximum number of sweeps of one job in a row. The other due jobs wait for them."""


class JobStore:
    """Commands for all jobs of a store.

    :attr:`actions` contains the actions of operators and clients, and :attr:`reads` the read-only operations.

    ``now_ms`` is for tests. By default, a command uses the time of Redis. ``audit`` is the actor and the reason.
    ``quota`` is the caller's limit on the substreams of a job. For the other arguments, see the command in
    :mod:`tidegate.domain.batches` or :mod:`tidegate.domain.commands`.
    """

    def __init__(
        self,
        servers: Redis | Servers,
        unattended_after_ms: int | None = None,
        guard: ClockGuard | None = None,
        capacity: Capacity | None = None,
        around: AroundCommand = unobserved,
        clock: Callable[[], int] | None = None,
        sweep_interval_ms: int = 0,
    ) -> None:
        self.servers = OneServer(servers) if isinstance(servers, Redis) else servers
        self.capacity = capacity or Capacity()
        self._functions = Functions(self.servers, unattended_after_ms, guard, around, clock, sweep_interval_ms)
        self._merging = Merging(self._functions)
        self.reads, self.actions = JobReads(self._functions), JobActions(self._functions, self.capacity)

    @property
    def redis(self) -> Redis:
        """The client of a server: the only one, or any primary of a Redis Cluster."""
        return self.servers.any().redis

    async def configure(
        self,
        job: str,
        config: JobConfig,
        document: Mapping[str, Any],
        version: ConfigVersion | None,
        audit: AuditInfo = NO_AUDIT,
        now_ms: int | None = None,
        quota: JobQuota | None = None,
    ) -> Configured:
        """Create a job if ``version`` is None; otherwise change the configuration of the job.

        ``document`` is the configuration as the client sent it. A change requires that the configuration of the job has
        this version.

        Raises:
            InvalidConfig, JobExists, JobNotFound, JobDeleted, RevisionMismatch, TooManyJobs: See
                :mod:`tidegate.domain.errors`.
        """
        config.check_patterns()
        elsewhere: dict[str, Any] = await self._elsewhere(job, quota) if version is None else {}
        reply = await self._functions.run(
            "configure",
            job,
            now_ms,
            version=version,
            state_epoch=secrets.token_hex(8),
            config=json.dumps(document, sort_keys=True),
            compiled_config=compile_config(config),
            max_jobs=self.capacity.jobs,
            quota=quota,
            **elsewhere,
            **asdict(audit),
        )
        return Configured.of(reply)

    async def delete(self, job: str, version: ConfigVersion = ANY_VERSION, now_ms: int | None = None) -> None:
        """Delete a job whose configuration has a version. A repeated delete succeeds.

        Raises:
            JobNotFound, RevisionMismatch: See :mod:`tidegate.domain.errors`.
        """
        tombstones = max(1, TOMBSTONES_KEPT // len(self.servers.keys.buckets))
        await self._functions.run("delete", job, now_ms, version=version, tombstones=tombstones)

    async def report(
        self,
        job: str,
        pieces: Pieces,
        token: TokenClaim | None = None,
        now_ms: int | None = None,
        quota: int | None = None,
    ) -> Effect:
        """Apply a report without a batch, with the columns of :func:`direct_pieces`. Small reports may be merged."""
        return await self._merging.report(
            job, PendingReport(pieces, token), self.capacity.max_substreams(quota), now_ms
        )

    async def stage(
        self,
        job: str,
        run: Run,
        batch_id: int,
        partition: int,
        pieces: Pieces,
        token: TokenClaim | None = None,
        now_ms: int | None = None,
        quota: int | None = None,
    ) -> Effect:
        """Stage the report of a partition, with the columns of :func:`partition_pieces`."""
        return await self._run(
            "stage",
            job,
            now_ms,
            pieces,
            max_substreams=self.capacity.max_substreams(quota),
            token=token,
            run=run,
            batch_id=batch_id,
            partition=partition,
        )

    async def begin(
        self,
        job: str,
        run: Run,
        batch_id: int,
        options: BeginOptions = DEFAULTS,
        token: TokenClaim | None = None,
        now_ms: int | None = None,
    ) -> Begun:
        """Begin a batch."""
        reply = await self._functions.run_commit(
            "begin",
            job,
            run.query,
            now_ms,
            Pieces(),
            token=token,
            run=run,
            batch_id=batch_id,
            known=options.sent is not None,
            pinned_watermark=options.sent and options.sent.value,
            keep=max(options.keep, PINNED_WATERMARKS_KEPT),
            waited_ms=options.waited_ms,
            input_age_ms=options.input_age_ms,
            tells_output=options.tells_output,
            output_watermark=options.output_watermark,
            outputs=_output_argument(options.outputs),
        )
        return replies.begin_result(reply)

    async def commit(
        self,
        job: str,
        run: Run,
        batch_id: int,
        pieces: Pieces,
        waited_ms: int = 0,
        reported: int | None = None,
        token: TokenClaim | None = None,
        now_ms: int | None = None,
        caught_up: CaughtUp | None = None,
        offsets: BatchOffsets | None = None,
        outputs: Sequence[TableVersion] = (),
    ) -> Committed:
        """Commit a batch, with the columns of :func:`accounting_pieces`."""
        reply = await self._functions.run_commit(
            "commit",
            job,
            run.query,
            now_ms,
            pieces,
            token=token,
            run=run,
            batch_id=batch_id,
            waited_ms=waited_ms,
            reported=reported,
            caught_up=caught_up and members(run.query, caught_up.substreams),
            caught_up_age_ms=caught_up and caught_up.age_ms,
            outputs=_output_argument(outputs),
            **_offset_arguments(batch_id, offsets),
        )
        return replies.commit_result(reply)

    async def heartbeat(
        self,
        job: str,
        run: Run,
        caught_up_ms: int,
        waited_ms: int = 0,
        after_batch: int | None = None,
        token: TokenClaim | None = None,
        now_ms: int | None = None,
        caught_up: Sequence[str] | None = None,
        offsets: BatchOffsets | None = None,
        tells_output: bool = False,
        output_watermark: int | None = None,
        outputs: Sequence[TableVersion] = (),
    ) -> Effect:
        """Record that a query, or some of its substreams, was caught up, its offsets, and what it has written."""
        return await self._run(
            "heartbeat",
            job,
            now_ms,
            token=token,
            run=run,
            observed_ms=caught_up_ms,
            waited_ms=waited_ms,
            after_batch=after_batch,
            caught_up=None if caught_up is None else members(run.query, caught_up),
            tells_output=tells_output,
            output_watermark=output_watermark,
            outputs=_output_argument(outputs),
            **_offset_arguments(after_batch, offsets),
        )

    async def consume(
        self,
        job: str,
        consumer: str,
        owner: str,
        lease_ms: int,
        position: ConsumerPosition | None = None,
        release: bool = False,
        now_ms: int | None = None,
    ) -> Consumed:
        """Take or renew the lease of a consumer, and move its position."""
        reply = await self._functions.run(
            "consume",
            job,
            now_ms,
            consumer=consumer,
            owner=owner,
            lease_ms=lease_ms,
            position=None if position is None else asdict(position),
            release=release or None,
        )
        return Consumed(replies.watermark_state(reply), replies.consumer(reply["consumer"]))

    async def sweep(self, job: str, now_ms: int | None = None) -> JobWatermark:
        """Evaluate a job because time has passed, and return its watermark."""
        return replies.watermark_state(await self._functions.run("sweep", job, now_ms))

    async def read_watermark(self, job: str, now_ms: int | None = None) -> JobWatermark:
        """Return the watermark of a job after a sweep. A read of an empty job records nothing."""
        return replies.watermark_state(await self._functions.run("sweep", job, now_ms, is_read=True))

    async def sweep_due(self, jobs: Sequence[str]) -> list[Exception | None]:
        """Evaluate jobs because time has passed, in one round trip, and return the error of each job.

        The sweeps do not wait for replicas. If no replica answered, each would otherwise take the whole timeout.
        """
        replies = await self._functions.run_for_each("sweeps", "sweep", jobs)
        return [await self._swept(job, reply) for job, reply in zip(jobs, replies, strict=True)]

    async def _swept(self, job: str, reply: Any) -> Exception | None:
        """Sweep a job again until no change is due; return its error.

        A sweep applies a bounded number of changes, so a job with more changes is swept several times.
        """
        try:
            if isinstance(reply, Exception):
                raise reply
            found = map_of(reply)
            for _ in range(MAX_SWEEPS):
                if "steps" not in found and not reply_of(found).get("unfinished"):
                    break
                found = await self._functions.run_unconfirmed("sweep", job)
        except (DomainError, RedisError) as error:
            return error
        return None

    async def watch(self, job: str, known: str | None, most: int, now_ms: int | None = None) -> Watched:
        """Sweep a job, and return at most ``most`` records after the record with the id ``known``."""
        return Watched.of(await self._functions.run("watch", job, now_ms, after=known, most=most))

    async def due(self, by_ms: Sequence[int | RedisError]) -> list[list[str] | RedisError]:
        """Take at most ``DUE_AT_ONCE`` jobs of each bucket whose sweep is due, earliest first.

        Other coordinators do not get the jobs, unless this one does not sweep them within ``LEASE_MS``.

        Args:
            by_ms: The answer of :meth:`read_clock`, by which jobs are due.

        Returns:
            The jobs of each bucket, or the error of its server.

        Raises:
            ClockJumped: If the clock of a server has jumped since.
        """
        return await self._functions.due(by_ms, DUE_AT_ONCE, LEASE_MS)

    async def read_clock(self) -> list[int | RedisError]:
        """Return the time of the server of each bucket, or its error, and let the guard accept the earliest time.

        Raises:
            ClockJumped: If the clocks of all servers jumped.
        """
        times_ms = await self._functions.times_ms()
        read_ms = [time_ms for time_ms in times_ms if isinstance(time_ms, int)]
        if self._functions.guard is not None and read_ms:
            self._functions.guard.accept(min(read_ms))
        return times_ms

    async def states(self) -> list[ServerState]:
        """Return the state of each server."""
        return await self._functions.states()

    async def check(self) -> None:
        """Raise RedisError if no server runs the functions and accepts writes."""
        states = await self.states()
        if all(state.error for state in states):
            raise_first([state.error for state in states])

    async def _elsewhere(self, job: str, quota: JobQuota | None) -> dict[str, int]:
        """Return the numbers of jobs in the other buckets, for the limits on jobs."""
        keys = self.servers.keys
        others = [bucket.jobs for bucket in keys.buckets if bucket != keys.bucket(job)]
        if not others:
            return {}
        counts = await self.servers.each([(name, ("SCARD", name)) for name in others])
        raise_first(counts)
        if quota is None:
            return {"jobs_elsewhere": sum(counts)}
        names = await self.reads.jobs()
        in_quota = sum(name.startswith(quota.prefix) and keys.bucket(name) != keys.bucket(job) for name in names)
        return {"jobs_elsewhere": sum(counts), "in_quota_elsewhere": in_quota}

    async def _run(
        self, command: str, job: str, now_ms: int | None, pieces: Pieces | None = None, **arguments: Any
    ) -> Effect:
        return replies.command_result(await self._functions.run(command, job, now_ms, pieces, **arguments))


DERIVED = ("follows_clock", "initial_lag", "limit", "accepts_watermarks", "late_share", "enough", "window", "slide")
"""Derived values of a policy or a throttle that the functions need in addition to its parameters."""

UNUSED = ("max_lag_ms",)
"""Settings that the functions do not need, because they change neither a watermark nor a record."""


def _output_argument(outputs: Sequence[TableVersion]) -> list[dict[str, str]] | None:
    return [asdict(each) for each in outputs] or None


def _offset_arguments(batch_id: int | None, offsets: BatchOffsets | None) -> dict[str, Any]:
    """Return the offsets as arguments. A Lua table has no nil, so False stands for None.

    ``batch_id`` is the batch of the offsets, unless they name another one.
    """
    if offsets is None:
        return {}

    def known(column: Sequence[int | None]) -> list[int | bool]:
        return [False if value is None else value for value in column]

    columns = {
        "partitions": offsets.partitions,
        "starts": known(offsets.starts),
        "ends": offsets.ends,
        "latest": known(offsets.latest),
        "behind_ms": known(offsets.behind_ms),
        "open_transactions": offsets.open_transactions,
        "substream_columns": offsets.substream_columns,
    }
    return {"offsets": columns, "offset_batch_id": batch_id if offsets.batch_id is None else offsets.batch_id}


def compile_config(config: JobConfig) -> str:
    """Return the JSON text for the functions in Redis.

    ``policies`` contains the policy of the job, then the policies of the overrides with the ``pieces`` of their
    patterns.
    """
    compiled = {
        "policies": [
            _compiled(config.policy),
            *(
                {**_compiled(override.policy), "pieces": re.split(r"\*+", override.pattern)}
                for override in config.overrides
            ),
        ],
        "throttle": _compiled(config.throttle),
        "arrivals": None if (arrivals := config.arrival_policy()) is None else _compiled(arrivals),
        "frames": None if config.frames is None else _compiled_frames(config.frames),
        "expected_queries": list(config.expected_queries),
        **{name: getattr(config, name) for name in declarations(config) if name not in UNUSED},
        "freezes_idle": config.freezes_idle or None,
    }
    return json.dumps({name: value for name, value in compiled.items() if value is not None})


def _compiled_frames(frames: Frames) -> dict[str, Any]:
    compiled: dict[str, Any] = {
        "every": frames.every if frames.is_calendar else frames.length,
        "offset_ms": frames.offset_ms,
        "correction_delay_ms": frames.correction_delay_ms,
        "declared": " ".join(map(str, frames.identity)),
    }
    if frames.is_calendar:
        compiled |= {"offsets": frames.zone.offsets, "changes": frames.zone.changes}
    if isinstance(frames.every, str):
        compiled["unit"] = frames.every
    if frames.time_zone is not None:
        compiled["time_zone"] = frames.time_zone
    return compiled


def _compiled(strategy: Policy | Throttle) -> dict[str, Any]:
    values = {name: getattr(strategy, name, None) for name in (*declarations(strategy), *DERIVED)}
    return {"type": strategy.type, **{name: value for name, value in values.items() if value is not None}}
