"""Reads of jobs."""

import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from tidegate.domain.errors import JobNotFound
from tidegate.domain.journal import Record
from tidegate.domain.ledger import Entry
from tidegate.domain.names import PLACEHOLDER, SubstreamKey, member
from tidegate.domain.results import JobSummary, QueryRow, SubstreamRow, WatermarkState
from tidegate.domain.rows import HourCounts, RowCounts
from tidegate.domain.sketch import Sketch
from tidegate.domain.state import DelayStatistics, PinnedWatermark
from tidegate.store import replies
from tidegate.store.connection import is_failed_script
from tidegate.store.keys import JOBS, job_key, key_of
from tidegate.store.scripts import Reply, Scripts, record, reply_of
from tidegate.store.snapshot import Snapshot

RECORDS_AT_ONCE = 1000
ROWS_AT_ONCE = 250


@dataclass(frozen=True, slots=True)
class Status:
    """A job as a whole; ``config`` is its configuration as it was sent."""

    state: WatermarkState
    config: dict[str, Any]
    revision: int
    created_ms: int
    summary: JobSummary


@dataclass(frozen=True, slots=True)
class SubstreamTable:
    """Substreams by query and name, and the max watermark of their job."""

    state: WatermarkState
    max_watermark: int | None
    rows: list[SubstreamRow]


@dataclass(frozen=True, slots=True)
class Delays:
    """Delays of a job, and of the requested substreams that are known, each with its lag in force."""

    state: WatermarkState
    statistics: DelayStatistics
    substreams: dict[SubstreamKey, tuple[int | None, Sketch]]


@dataclass(slots=True)
class LateRows:
    """Late rows of a job or a substream, in total and by hour of event time.

    ``entries`` are the substreams and hours with late or updated rows. ``unattributed`` counts the rows of an hour that
    have no substream.
    """

    counts: RowCounts
    diverted: int
    unattributed: dict[int, int] = field(default_factory=dict)
    hours: dict[int, HourCounts] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)


class JobReads:
    """Reads of jobs; each is of one moment unless its description says otherwise."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts, self._redis = scripts, scripts.redis

    async def jobs(self) -> list[str]:
        """Return the names of all jobs, sorted."""
        return sorted(str(job) for job in await self._redis.smembers(JOBS))

    async def status(self, job: str, now_ms: int | None = None) -> Status:
        """Return the status of a job."""
        return _status(await self._scripts.run("status", job, now_ms))

    async def statuses(self, jobs: Collection[str]) -> dict[str, Status | Exception]:
        """Return the status of each job that exists, or the error of one that cannot be read."""
        calls = {job: self._scripts.call("status", job) for job in jobs}
        pipeline = self._redis.pipeline(transaction=False)
        for script, keys, argument in calls.values():
            await script(keys=keys, args=[argument], client=pipeline)
        with self._scripts.around("statuses"):
            answers: list[Any] = await pipeline.execute(raise_on_error=False)
        found: dict[str, Status | Exception] = {}
        for job, reply in zip(calls, answers, strict=True):
            if isinstance(reply, Exception):
                if not is_failed_script(reply):
                    raise reply
                found[job] = reply
            elif "error" not in record(reply):
                try:
                    found[job] = _status(reply_of(reply))
                except ValueError as error:
                    found[job] = error
        return found

    async def config(self, job: str) -> dict[str, Any]:
        """Return the configuration of a job as it was sent; raise JobNotFound if there is no live job."""
        text: Any = await self._redis.hget(job_key(job), "config")
        if text is None:
            raise JobNotFound()
        config: dict[str, Any] = json.loads(text)
        return config

    async def held(self, job: str, limit: int, now_ms: int | None = None) -> Snapshot:
        """Sweep a job, and return the part of it that explains its first ``limit`` holders and the next one."""
        return Snapshot(await self._scripts.run("explain", job, now_ms, limit=limit + 1))

    async def count_substreams(self, job: str) -> int:
        """Return the number of substreams, including placeholders of missing queries; 0 if there is no job."""
        return int(await self._redis.zcard(key_of(job, "max_event_times")))

    async def substream_keys(self, job: str) -> AsyncIterator[list[SubstreamKey]]:
        """Yield all substreams of a job once, in parts of about ``ROWS_AT_ONCE``, in no order.

        The parts keep Redis and this process responsive. A substream that is added or removed meanwhile may be missing.
        """
        cursor, seen = 0, set[SubstreamKey]()
        while True:
            cursor, found = await self._redis.zscan(key_of(job, "max_event_times"), cursor, count=ROWS_AT_ONCE)
            keys = [replies.substream_key(str(name)) for name, _ in found]
            new = [key for key in keys if key[1] != PLACEHOLDER and key not in seen]
            seen.update(new)
            yield new
            if cursor == 0:
                return

    async def substreams(
        self, job: str, keys: Sequence[SubstreamKey] | None = None, now_ms: int | None = None
    ) -> SubstreamTable:
        """Return the table of these substreams (None: of all) by query and name, without unknown ones.

        A large table is read in parts, because Redis serves no other client while a script runs; each part is of one
        moment.
        """
        if keys is None:
            keys = [key async for part in self.substream_keys(job) for key in part]
        rows: list[SubstreamRow] = []
        for first in range(0, max(len(keys), 1), ROWS_AT_ONCE):
            some = [member(key) for key in keys[first : first + ROWS_AT_ONCE]]
            reply = await self._scripts.run("substreams", job, now_ms, members=some)
            rows += map(replies.substream_row, reply["rows"])
        rows.sort(key=lambda row: (row.query, row.substream))
        return SubstreamTable(replies.watermark_state(reply), reply.get("max_watermark"), rows)

    async def queries(self, job: str, now_ms: int | None = None) -> tuple[WatermarkState, list[QueryRow]]:
        """Return the queries with their latest batches, by name."""
        reply = await self._scripts.run("queries", job, now_ms)
        rows = sorted(map(replies.query_row, reply["rows"]), key=lambda row: row.query)
        return replies.watermark_state(reply), rows

    async def pinned_watermark(self, job: str, query: str, batch_id: int) -> PinnedWatermark | None:
        """Return the pinned watermark of a batch; None if the batch was not begun, or is no longer kept."""
        kept: Any = await self._redis.hget(key_of(job, "pinned_watermarks", query), str(batch_id))
        return None if kept is None else PinnedWatermark(int(kept) if kept else None)

    async def delays(self, job: str, keys: Collection[SubstreamKey] = (), now_ms: int | None = None) -> Delays:
        """Return the delays of a job, and those of some of its substreams."""
        reply = await self._scripts.run("completeness", job, now_ms, members=[member(key) for key in keys])
        statistics = DelayStatistics(
            replies.sketch(reply.get("pool")),
            replies.sketch(reply.get("merged")),
            float(reply["wait_sum"] or 0),
            reply.get("wait_weight") or 0,
        )
        of_each = {
            replies.substream_key(of["member"]): (of.get("lag"), replies.sketch(of.get("sketch")))
            for of in map(record, reply["rows"])
        }
        return Delays(replies.watermark_state(reply), statistics, of_each)

    async def records(self, job: str, after: str = "-", limit: int | None = None) -> list[tuple[str, Record]]:
        """Return records with their ids, oldest first, from after the one with the id ``after``."""
        first = after if after == "-" else f"({after}"
        found: Any = await self._redis.xrange(key_of(job, "journal"), first, "+", limit)
        return [(entry_id, replies.journal_record(entry_id, details)) for entry_id, details in found]

    async def history(
        self,
        job: str,
        before: str | None = None,
        from_ms: int = 0,
        to_ms: int | None = None,
        kinds: Collection[str] = (),
        limit: int = 100,
    ) -> list[tuple[str, Record]]:
        """Return records with their ids, latest first.

        Args:
            job: The job.
            before: Only records before the one with this id.
            from_ms: Only records from this time on.
            to_ms: Only records up to this time, inclusive.
            kinds: Only records of these kinds; empty: of all.
            limit: Number of records.
        """
        end = "+" if to_ms is None else str(to_ms)
        if before is not None and (to_ms is None or int(before.partition("-")[0]) <= to_ms):
            end = f"({before}"
        found: list[tuple[str, Record]] = []
        if before is not None and replies.order(before) == (0, 0):
            return found  # no record precedes the first id; Redis rejects it as the end of a range
        while len(found) < limit:
            chunk: Any = await self._redis.xrevrange(key_of(job, "journal"), end, str(from_ms), RECORDS_AT_ONCE)
            read = [(entry_id, replies.journal_record(entry_id, details)) for entry_id, details in chunk]
            found += [(entry_id, one) for entry_id, one in read if not kinds or one.kind in kinds]
            if len(chunk) < RECORDS_AT_ONCE:
                break
            end = f"({chunk[-1][0]}"
        return found[:limit]

    async def late(self, job: str, key: SubstreamKey | None = None) -> LateRows:
        """Return the late rows of a job, or of one substream, known or not; the result is not of one moment."""
        of = "" if key is None else member(key)
        hours = [int(str(hour)) for hour in await self._redis.zrange(key_of(job, "hours"), 0, -1)]
        classes = [*(class_.name for class_ in fields(RowCounts)), "diverted"]
        async with self._redis.pipeline(transaction=False) as pipeline:
            if key is None:
                pipeline.hmget(job_key(job), classes)
            else:
                pipeline.hmget(key_of(job, "rows"), [f"{class_} {of}" for class_ in classes])
            for hour in hours:
                pipeline.hgetall(key_of(job, "hour_late", hour))
            counted, *found = await pipeline.execute()
        counts = dict(zip(classes, counted, strict=True))
        known = LateRows(replies.row_counts(counts), int(counts["diverted"] or 0))
        await self._add_hours(job, of, dict(zip(hours, map(replies.counts_by_member, found), strict=True)), known)
        return known

    async def _add_hours(
        self, job: str, of: str, late: Mapping[int, Mapping[str, Mapping[str, int]]], known: LateRows
    ) -> None:
        names = {hour: list(dict.fromkeys([of, *of_each])) for hour, of_each in late.items()}
        async with self._redis.pipeline(transaction=False) as pipeline:
            for hour, some in names.items():
                pipeline.hmget(key_of(job, "hour_rows", hour), ["?", *some])
            found = await pipeline.execute() if names else []
        for (hour, some), (unattributed, *rows) in zip(names.items(), found, strict=True):
            if unattributed:
                known.unattributed[hour] = int(unattributed)
            # After a commit between the two reads, late rows may be counted here and other rows not.
            counts = {
                name: HourCounts(
                    max(int(count or 0), sum(late[hour].get(name, {}).values())), **late[hour].get(name, {})
                )
                for name, count in zip(some, rows, strict=True)
            }
            if counts[of].rows:
                known.hours[hour] = counts[of]
            known.entries += [
                (replies.substream_key(name), hour, counts[name]) for name in some if name and name in late[hour]
            ]


def _status(reply: Reply) -> Status:
    return Status(
        replies.watermark_state(reply),
        json.loads(reply["config"]),
        int(reply["revision"]),
        int(reply["created"]),
        replies.summary(reply),
    )
