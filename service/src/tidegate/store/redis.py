"""The commands of a job, carried out by the scripts in ``lua/``: one call, one atomic transition.

The replies are the records of :mod:`tidegate.domain.records`; a refusal is raised as the domain's error. Nothing about
a job is kept here, so any number of replicas may serve it.
"""

import json
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass, field, fields
from typing import Any

from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from tidegate.domain.config import JobConfig
from tidegate.domain.disorder import Disorder
from tidegate.domain.errors import JobNotFound
from tidegate.domain.job import JobMachine
from tidegate.domain.journal import UNEXPLAINED, Record, Why
from tidegate.domain.ledger import Entry
from tidegate.domain.query import PINNED_WATERMARKS_KEPT, DelayedRows, PinnedWatermark, Run
from tidegate.domain.records import (
    Accounting,
    Answer,
    Begun,
    Counts,
    Effect,
    HourCounts,
    QueryRow,
    SubstreamRow,
    Summary,
)
from tidegate.domain.sketch import Sketch
from tidegate.domain.substream import PLACEHOLDER, SubstreamKey, member
from tidegate.store import replies, snapshot
from tidegate.store.arguments import Values, by_hour_of, column, delays_of, entries, members, of_why, text
from tidegate.store.clock import ClockGuard
from tidegate.store.connection import is_failed_script
from tidegate.store.keys import (
    JOBS,
    KEYS,
    PROBE,
    SECRET,
    SWEEPS,
    counts_key,
    hour_late_key,
    hour_rows_key,
    hours_key,
    job_key,
    log_key,
    pins_key,
    tops_key,
)
from tidegate.store.replies import REST, Reply
from tidegate.store.rules import rules
from tidegate.store.scripts import script

RECORDS_AT_ONCE = 1000
ROWS_AT_ONCE = 250
PROBE_KEPT_MS = 60_000
READS = ("status", "substreams", "queries", "disorder")
NONE: Values = {}
NO_DELAYS: Mapping[str, DelayedRows] = {}

AroundCommand = Callable[[str], AbstractContextManager[object]]
unobserved: AroundCommand = nullcontext


@dataclass(frozen=True, slots=True)
class TokenClaim:
    """What a valid token proves: this incarnation of the job emitted this watermark."""

    incarnation: int
    watermark: int | None


@dataclass(frozen=True, slots=True)
class Stored:
    """A job after a PUT: ``created`` tells a new one from one whose rules were changed."""

    answer: Answer
    created: bool
    revision: int


@dataclass(frozen=True, slots=True)
class Status:
    """A job as a whole. ``config`` is the document it was configured with."""

    answer: Answer
    config: dict[str, Any]
    revision: int
    created_ms: int
    summary: Summary


@dataclass(frozen=True, slots=True)
class Watched:
    """A job at one moment: its ``answer``, the id of its ``newest`` record, its ``records`` after one that is known.

    ``known``: that one; None where it is not kept, so that nobody can tell what came after it.
    """

    answer: Answer
    newest: str
    known: Record | None
    records: list[tuple[str, Record]]


@dataclass(frozen=True, slots=True)
class SubstreamTable:
    """Substreams by query and name, and the ``max_watermark`` of their job."""

    answer: Answer
    max_watermark: int | None
    rows: list[SubstreamRow]


@dataclass(frozen=True, slots=True)
class KnownDelays:
    """How far a job's rows come out of order. ``substreams``: of those that were asked for and are known, each with its
    lag in force.
    """

    answer: Answer
    disorder: Disorder
    substreams: dict[SubstreamKey, tuple[int | None, Sketch]]


@dataclass(slots=True)
class KnownLate:
    """What became of late rows, of the job or of the substream that was asked for: ``counts``, and how many were
    ``diverted``; and by hour of event time. ``entries``: the substreams and hours that had late rows, or updates.
    ``untold``: of hours, how many rows were told of no substream.
    """

    counts: Counts
    diverted: int
    untold: dict[int, int] = field(default_factory=dict)
    hours: dict[int, HourCounts] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What an explanation is computed from: the machine of the domain, once the job's document is read as rules."""

    reply: Reply

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.reply[REST])
        return document

    def machine(self, config: JobConfig) -> JobMachine:
        return snapshot.machine(self.reply, config)


@dataclass(frozen=True, slots=True)
class Limits:
    """How many there may be of what clients create; None: any number."""

    jobs: int | None = None
    substreams: int | None = None


UNLIMITED = Limits()


@dataclass(frozen=True, slots=True)
class JobQuota:
    """At most ``jobs`` jobs whose names begin with ``prefix``."""

    prefix: str
    jobs: int


class JobStore:
    """All jobs of one Redis. ``now_ms`` is for tests; without it the time is Redis's own.

    ``absent_after_ms``: a time without any command that is longer than this is nobody's silence (the coordinators, or
    Redis, were away). ``guard`` keeps a clock of Redis that leaps ahead from leaving its mark on a job. ``limits``: of
    jobs, and of the substreams of each. ``around``: what every command goes through, by its name. ``clock`` replaces
    Redis's time in all commands, for tests; it returns Unix milliseconds.
    """

    def __init__(
        self,
        redis: Redis,
        absent_after_ms: int | None = None,
        guard: ClockGuard | None = None,
        limits: Limits = UNLIMITED,
        around: AroundCommand = unobserved,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.redis = redis
        self._clock = clock
        self._around = around
        self.absent_after_ms, self._guard = absent_after_ms, guard
        self._most_jobs, self.most_substreams = text(limits.jobs), text(limits.substreams)
        self._scripts: dict[str, AsyncScript] = {}

    # -- the owner's and the operators' commands ------------------------------------------------------------------

    async def put(
        self,
        job: str,
        config: JobConfig,
        document: Mapping[str, Any],
        expected: int | None,
        why: Why = UNEXPLAINED,
        now_ms: int | None = None,
        quota: JobQuota | None = None,
    ) -> Stored:
        """Creates the job (``expected`` None) or changes the rules of the one at revision ``expected``.

        :raises JobExists, JobNotFound, JobDeleted, RevisionMismatch, TooManyJobs: see the errors.
        """
        reply = await self._run(
            "put",
            job,
            now_ms,
            self._most_jobs,
            quota.prefix if quota else "",
            text(quota.jobs if quota else None),
            text(expected),
            secrets.token_hex(8),
            json.dumps(document, sort_keys=True),
            rules(config),
            *of_why(why),
        )
        return Stored(replies.answer(reply), reply[REST] == "1", int(reply[REST + 1]))

    async def delete(self, job: str, expected: int | None = None, now_ms: int | None = None) -> None:
        """Deletes the job, if it is at revision ``expected`` (None: whatever it is at). Deleting twice is no error.

        :raises JobNotFound, RevisionMismatch: see the errors.
        """
        await self._run("delete", job, now_ms, text(expected))

    async def declare(
        self,
        job: str,
        query: str,
        names: Sequence[str],
        max_event_times: Values | None = None,
        why: Why = UNEXPLAINED,
        now_ms: int | None = None,
        quota: int | None = None,
    ) -> Effect:
        columns = column(members(query, names)), column([text((max_event_times or {}).get(name)) for name in names])
        return replies.effect(
            await self._run("declare", job, now_ms, self._most(quota), query, *columns[0], *columns[1], *of_why(why))
        )

    async def restore(
        self, job: str, query: str, watermarks: Values, why: Why = UNEXPLAINED, now_ms: int | None = None
    ) -> Effect:
        columns = *column(members(query, watermarks)), *column(map(str, watermarks.values()))
        return replies.effect(await self._run("restore", job, now_ms, query, *columns, *of_why(why)))

    async def idle(
        self, job: str, query: str, names: Sequence[str], why: Why = UNEXPLAINED, now_ms: int | None = None
    ) -> Effect:
        return await self._act_on("idle", job, query, names, why, now_ms)

    async def done(
        self, job: str, query: str, names: Sequence[str], why: Why = UNEXPLAINED, now_ms: int | None = None
    ) -> Effect:
        return await self._act_on("done", job, query, names, why, now_ms)

    async def evict(
        self, job: str, query: str, names: Sequence[str], why: Why = UNEXPLAINED, now_ms: int | None = None
    ) -> Effect:
        return await self._act_on("evict", job, query, names, why, now_ms)

    async def retire(
        self, job: str, query: str, successor: str | None, why: Why = UNEXPLAINED, now_ms: int | None = None
    ) -> Effect:
        return replies.effect(await self._run("retire", job, now_ms, query, successor or "", *of_why(why)))

    async def complete(
        self, job: str, why: Why = UNEXPLAINED, now_ms: int | None = None, up_to: int | None = None
    ) -> Effect:
        return replies.effect(await self._run("complete", job, now_ms, text(up_to), *of_why(why)))

    async def reopen(self, job: str, why: Why = UNEXPLAINED, now_ms: int | None = None) -> Effect:
        return replies.effect(await self._run("reopen", job, now_ms, *of_why(why)))

    async def reset(self, job: str, why: Why = UNEXPLAINED, now_ms: int | None = None) -> Answer:
        return replies.answer(await self._run("reset", job, now_ms, secrets.token_hex(8), *of_why(why)))

    async def hold(
        self,
        job: str,
        hold: str,
        at_most: int,
        duration_ms: int | None = None,
        why: Why = UNEXPLAINED,
        now_ms: int | None = None,
    ) -> Effect:
        return replies.effect(await self._run("hold", job, now_ms, hold, str(at_most), text(duration_ms), *of_why(why)))

    async def release(self, job: str, hold: str, why: Why = UNEXPLAINED, now_ms: int | None = None) -> Answer:
        return replies.answer(await self._run("release", job, now_ms, hold, *of_why(why)))

    # -- the reporters' commands ----------------------------------------------------------------------------------

    async def report(
        self,
        job: str,
        max_event_times: Values,
        *,
        min_event_times: Values = NONE,
        watermarks: Values = NONE,
        delays: Mapping[str, DelayedRows] = NO_DELAYS,
        token: TokenClaim | None = None,
        now_ms: int | None = None,
        quota: int | None = None,
    ) -> Effect:
        """Highest event times of reporters without batches."""
        seen = entries("", max_event_times, watermarks, min_event_times)
        return replies.effect(
            await self._run(
                "report",
                job,
                now_ms,
                self._most(quota),
                *_token(token),
                "",
                "",
                "",
                "0",
                "0",
                *seen,
                "0",
                "0",
                *delays_of("", delays),
            )
        )

    async def report_staged(
        self,
        job: str,
        run: Run,
        batch_id: int,
        partition: int,
        max_event_times: Values,
        counts: Values = NONE,
        *,
        watermarks: Values = NONE,
        future: Values = NONE,
        delays: Mapping[str, DelayedRows] = NO_DELAYS,
        token: TokenClaim | None = None,
        now_ms: int | None = None,
        quota: int | None = None,
    ) -> Effect:
        """Highest event times that one partition of a batch saw; rows seen, rows left out as future, rows by delay."""
        names = dict.fromkeys([*max_event_times, *watermarks, *counts, *future])
        rows = [text(counts.get(name)) for name in names] if counts else []
        left_out = [text(future.get(name)) for name in names] if future else []
        return replies.effect(
            await self._run(
                "report",
                job,
                now_ms,
                self._most(quota),
                *_token(token),
                run.query,
                run.query_id,
                run.run_id,
                str(batch_id),
                str(partition),
                *entries(run.query, max_event_times, watermarks, NONE, names),
                *column(rows),
                *column(left_out),
                *delays_of(run.query, delays),
            )
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
    ) -> Begun:
        return replies.begun(
            await self._run(
                "begin",
                job,
                now_ms,
                *_token(token),
                run.query,
                run.query_id,
                run.run_id,
                str(batch_id),
                "0" if known is None else "1",
                text(known.value if known else None),
                str(max(keep, PINNED_WATERMARKS_KEPT)),
                str(PINNED_WATERMARKS_KEPT),
                str(waited_ms),
                text(input_age_ms),
            )
        )

    async def commit(
        self,
        job: str,
        run: Run,
        batch_id: int,
        accounting: Accounting | None,
        waited_ms: int = 0,
        reported: int | None = None,
        token: TokenClaim | None = None,
        now_ms: int | None = None,
    ) -> Effect:
        names = accounting.substreams if accounting else ()
        counts = [astuple(row) for row in accounting.counts] if accounting else []
        columns = list(zip(*counts, strict=True)) or [()] * len(fields(Counts))
        return replies.effect(
            await self._run(
                "commit",
                job,
                now_ms,
                *_token(token),
                run.query,
                run.query_id,
                run.run_id,
                str(batch_id),
                str(waited_ms),
                text(reported),
                *column(members(run.query, names)),
                *(argument for rows in columns for argument in column(map(str, rows))),
                *by_hour_of(accounting),
            )
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
    ) -> Effect:
        return replies.effect(
            await self._run(
                "heartbeat",
                job,
                now_ms,
                *_token(token),
                run.query,
                run.query_id,
                run.run_id,
                str(observed_ms),
                str(PINNED_WATERMARKS_KEPT),
                str(waited_ms),
                "" if after_batch is None else str(after_batch),
            )
        )

    async def sweep(self, job: str, now_ms: int | None = None) -> Answer:
        """What time alone has brought about; and the watermark as it is now."""
        return replies.answer(await self._run("sweep", job, now_ms))

    async def watch(self, job: str, known: str | None, most: int, now_ms: int | None = None) -> Watched:
        """What time alone has brought about, and the records after the one with the id ``known``, at most so many."""
        reply = await self._run("watch", job, now_ms, known or "", str(most))
        newest, kept, found = reply[REST:]
        before = replies.records(kept)
        return Watched(replies.answer(reply), newest, before[0][1] if before else None, replies.records(found))

    async def due(self, most: int = 1000) -> list[str]:
        """The jobs that time alone has changed by now, longest due first, at most so many.

        :raises ClockJumped: where Redis's clock cannot be believed.
        """
        now_ms = await self._time_ms()
        if self._guard is not None:
            self._guard.hear(now_ms)
        until = str(now_ms)
        found = await self.redis.zrange(SWEEPS, "-inf", until, byscore=True, offset=0, num=most)
        return [str(job) for job in found]

    async def _time_ms(self) -> int:
        if self._clock is not None:
            return self._clock()
        seconds, micros = await self.redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    # -- reads ----------------------------------------------------------------------------------------------------

    async def delays(self, job: str, keys: Collection[SubstreamKey] = (), now_ms: int | None = None) -> KnownDelays:
        reply = await self._run("disorder", job, now_ms, *column(map(member, keys)))
        waited, weight, pool, merged, rows = reply[REST:]
        return KnownDelays(
            replies.answer(reply),
            Disorder(replies.sketch(pool), replies.sketch(merged), float(waited or 0), replies.number(weight) or 0),
            {replies.substream_key(of): (replies.number(lag), replies.sketch(seen)) for of, lag, seen in rows},
        )

    async def jobs(self) -> list[str]:
        """Names of all jobs, sorted."""
        return sorted(str(job) for job in await self.redis.smembers(JOBS))

    async def status(self, job: str, now_ms: int | None = None) -> Status:
        return _status(await self._run("status", job, now_ms))

    async def statuses(self, jobs: Collection[str]) -> dict[str, Status | Exception]:
        """Those of many jobs, each of one moment, sent together; without those that there are no more. What cannot be
        read of one of them is no reason not to tell of the others.
        """
        calls = {job: self._call("status", job, None) for job in jobs}
        pipeline = self.redis.pipeline(transaction=False)
        for call, keys, arguments in calls.values():
            await call(keys=keys, args=arguments, client=pipeline)
        with self._around("statuses"):
            answers: list[Reply | Exception] = await pipeline.execute(raise_on_error=False)
        found: dict[str, Status | Exception] = {}
        for job, reply in zip(calls, answers, strict=True):
            if isinstance(reply, Exception):
                if not is_failed_script(reply):
                    raise reply
                found[job] = reply
            elif reply[0] != "error":
                try:
                    found[job] = _status(reply)
                except ValueError as error:
                    found[job] = error
        return found

    async def document(self, job: str) -> dict[str, Any]:
        """The document that the job was configured with.

        :raises JobNotFound: where there is no live job.
        """
        text_: Any = await self.redis.hget(job_key(job), "config")
        if text_ is None:
            raise JobNotFound()
        document: dict[str, Any] = json.loads(text_)
        return document

    async def held(self, job: str, most: int, now_ms: int | None = None) -> Snapshot:
        """The job after a look, as far as it is held by the first ``most`` of those who hold it, and the one after."""
        return Snapshot(await self._run("explain", job, now_ms, str(most + 1)))

    async def count_substreams(self, job: str) -> int:
        """Return the number of a job's substreams, placeholders of missing queries included; 0 if there is no job."""
        return int(await self.redis.zcard(tops_key(job)))

    async def substream_keys(self, job: str) -> AsyncIterator[list[SubstreamKey]]:
        """Yield all substreams of a job in parts of about ``ROWS_AT_ONCE``, in no order.

        Neither Redis nor this process works on a large job for long without a pause. A substream that is added or
        removed meanwhile may be missing; each comes once.
        """
        cursor, seen = 0, set[SubstreamKey]()
        while True:
            cursor, found = await self.redis.zscan(tops_key(job), cursor, count=ROWS_AT_ONCE)
            keys = [replies.substream_key(str(name)) for name, _ in found]
            new = [key for key in keys if key[1] != PLACEHOLDER and key not in seen]
            seen.update(new)
            yield new
            if cursor == 0:
                return

    async def substreams(
        self, job: str, keys: Sequence[SubstreamKey] | None = None, now_ms: int | None = None
    ) -> SubstreamTable:
        """The table of these substreams (None: of all), by query and name; those that are not known are passed over.

        A large one is read in parts, for while a script runs nobody else is served; each part is of one moment.
        """
        if keys is None:
            keys = [key async for part in self.substream_keys(job) for key in part]
        rows: list[SubstreamRow] = []
        for first in range(0, max(len(keys), 1), ROWS_AT_ONCE):
            some = column(member(key) for key in keys[first : first + ROWS_AT_ONCE])
            reply = await self._run("substreams", job, now_ms, *some)
            rows += replies.substream_rows(reply[REST + 1])
        return SubstreamTable(replies.answer(reply), replies.number(reply[REST]), sorted(rows, key=_by_key))

    async def queries(self, job: str, now_ms: int | None = None) -> tuple[Answer, list[QueryRow]]:
        """The queries with their latest batches, by name."""
        reply = await self._run("queries", job, now_ms)
        return replies.answer(reply), replies.query_rows(reply[REST])

    async def pinned_watermark(self, job: str, query: str, batch_id: int) -> PinnedWatermark | None:
        """The pin of a batch; None: it was not begun, or so long ago that its pin is no longer kept."""
        kept: Any = await self.redis.hget(pins_key(job, query), str(batch_id))
        return None if kept is None else PinnedWatermark(replies.number(kept))

    async def records(self, job: str, after: str = "-", most: int | None = None) -> list[tuple[str, Record]]:
        """What the machine did, oldest first: each record with its id; those after the one with id ``after``."""
        first = after if after == "-" else f"({after}"
        found: Any = await self.redis.xrange(log_key(job), first, "+", most)
        return [(entry_id, replies.record(entry_id, details)) for entry_id, details in found]

    async def late(self, job: str, key: SubstreamKey | None = None) -> KnownLate:
        """What became of late rows: of all; or of those of one substream, known or not."""
        of = "" if key is None else member(key)
        hours = [int(str(hour)) for hour in await self.redis.zrange(hours_key(job), 0, -1)]
        async with self.redis.pipeline(transaction=False) as pipeline:
            classes = [*(class_.name for class_ in fields(Counts)), "diverted"]
            if key is None:
                pipeline.hmget(job_key(job), classes)
            else:
                pipeline.hmget(counts_key(job), [f"{class_} {of}" for class_ in classes])
            for hour in hours:
                pipeline.hgetall(hour_late_key(job, hour))
            (*counted, diverted), *found = await pipeline.execute()
        late = [replies.by_class(by_class) for by_class in found]
        names = [list(dict.fromkeys([of, *of_each])) for of_each in late]
        async with self.redis.pipeline(transaction=False) as pipeline:
            for hour, some in zip(hours, names, strict=True):
                pipeline.hmget(hour_rows_key(job, hour), ["?", *some])
            seen = await pipeline.execute() if hours else []
        known = KnownLate(replies.counts(counted), int(diverted or 0))
        for hour, of_each, some, (untold, *rows) in zip(hours, late, names, seen, strict=True):
            if untold:
                known.untold[hour] = int(untold)
            # Read one after the other: what came in between may have its late rows here, and not all the others.
            counts = {
                name: HourCounts(max(int(count or 0), sum(of_each.get(name, {}).values())), **of_each.get(name, {}))
                for name, count in zip(some, rows, strict=True)
            }
            if counts[of].rows:
                known.hours[hour] = counts[of]
            known.entries += [
                (replies.substream_key(name), hour, counts[name]) for name in some if name and name in of_each
            ]
        return known

    async def history(
        self,
        job: str,
        before: str | None = None,
        from_ms: int = 0,
        to_ms: int | None = None,
        kinds: Collection[str] = (),
        most: int = 100,
    ) -> list[tuple[str, Record]]:
        """The same, latest first: so many at the most, of these kinds (of all, where none is named).

        Of the records before that with id ``before``, and of the times from ``from_ms`` up to and with ``to_ms``.
        """
        end = "+" if to_ms is None else str(to_ms)
        if before is not None and (to_ms is None or int(before.partition("-")[0]) <= to_ms):
            end = f"({before}"
        found: list[tuple[str, Record]] = []
        if before is not None and replies.order(before) == (0, 0):
            return found  # nothing comes before the first id, and Redis takes that for a mistake
        while len(found) < most:
            chunk: Any = await self.redis.xrevrange(log_key(job), end, str(from_ms), RECORDS_AT_ONCE)
            read = [(entry_id, replies.record(entry_id, details)) for entry_id, details in chunk]
            found += [(entry_id, record) for entry_id, record in read if not kinds or record.kind in kinds]
            if len(chunk) < RECORDS_AT_ONCE:
                break
            end = f"({chunk[-1][0]}"
        return found[:most]

    async def used_keys(self, last_used: Mapping[str, float]) -> None:
        """Store when keys were last used: Unix seconds by the ids of the keys."""
        if last_used:
            await self.redis.hset(KEYS, mapping={key_id: str(round(at_s)) for key_id, at_s in last_used.items()})

    async def last_used_keys(self) -> dict[str, int]:
        """Return the Unix time in seconds at which each key was last used, by its id."""
        found: Any = await self.redis.hgetall(KEYS)
        return {str(key_id): int(at_s) for key_id, at_s in found.items()}

    async def secret(self) -> bytes:
        """The key of the tokens' MAC that all replicas share: made on first use."""
        await self.redis.set(SECRET, secrets.token_hex(32), nx=True)
        return bytes.fromhex(str(await self.redis.get(SECRET)))

    async def check(self) -> None:
        """Check that the server answers, runs scripts and takes writes.

        Raises:
            RedisError: If it does not.
        """
        await self.redis.eval("return 1", 0)
        await self.redis.set(PROBE, "1", px=PROBE_KEPT_MS)

    def _most(self, quota: int | None) -> str:
        """Return the limit on substreams of one job, for a caller with a quota of its own."""
        return self.most_substreams if quota is None else text(min(quota, int(self.most_substreams or quota)))

    async def _act_on(
        self, command: str, job: str, query: str, names: Sequence[str], why: Why, now_ms: int | None
    ) -> Effect:
        return replies.effect(
            await self._run(command, job, now_ms, query, *column(members(query, names)), *of_why(why))
        )

    async def _run(self, command: str, job: str, now_ms: int | None, *arguments: str) -> Reply:
        call, keys, all_arguments = self._call(command, job, now_ms, *arguments)
        with self._around(command):
            reply: Reply = await call(keys=keys, args=all_arguments)
        if reply[0] == "error":
            raise replies.refusal(reply[1], reply[2:])
        return reply

    def _call(
        self, command: str, job: str, now_ms: int | None, *arguments: str
    ) -> tuple[AsyncScript, list[str], list[str]]:
        if now_ms is None and self._clock is not None:
            now_ms = self._clock()
        if command not in self._scripts:
            self._scripts[command] = self.redis.register_script(script(command))
        latest = None if self._guard is None else self._guard.latest_ms()
        # A read changes nothing, so it does not judge what the time since the last command has been either.
        absent_after_ms = None if command in READS else self.absent_after_ms
        header = text(now_ms), text(absent_after_ms), text(latest)
        return self._scripts[command], [job_key(job), SWEEPS, JOBS], [*header, *arguments]


def _status(reply: Reply) -> Status:
    document, revision, created, *rest = reply[REST:]
    return Status(replies.answer(reply), json.loads(document), int(revision), int(created), replies.summary(rest))


def _by_key(row: SubstreamRow) -> SubstreamKey:
    return row.query, row.substream


def _token(token: TokenClaim | None) -> tuple[str, str]:
    return ("", "") if token is None else (str(token.incarnation), text(token.watermark))
