"""Read-only operations on jobs."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from tidegate.domain.config import POLICY_LIMITS
from tidegate.domain.errors import UNAVAILABLE, JobDeleted, JobNotFound, StateDamaged
from tidegate.domain.history import FINE_MS, Record, Sample
from tidegate.domain.job import PinnedWatermark
from tidegate.domain.values import PLACEHOLDER, SubstreamKey, member
from tidegate.domain.views import SubstreamStatus
from tidegate.store import replies
from tidegate.store.connection import is_failed_function
from tidegate.store.functions import Functions, Reply, map_of, reply_of
from tidegate.store.keyspace import Keyspace
from tidegate.store.replies import (
    ConsumersReply,
    Delays,
    Distribution,
    FramesReply,
    HistoryReply,
    JobPageReply,
    JobPageRequest,
    LateReply,
    Learned,
    QueriesReply,
    Samples,
    Snapshot,
    Status,
    SubstreamsReply,
)
from tidegate.store.servers import Server, raise_first

RECORDS_AT_ONCE = 1000
ROWS_AT_ONCE = 200


class JobReads:
    """Read-only operations on jobs. Each read is consistent, unless its description says otherwise."""

    def __init__(self, functions: Functions) -> None:
        self._functions, self._servers, self._keys = functions, functions.servers, functions.servers.keys

    async def jobs(self) -> list[str]:
        """Return the names of all jobs, sorted."""
        found = await self._servers.each([(bucket.jobs, ("SMEMBERS", bucket.jobs)) for bucket in self._keys.buckets])
        raise_first(found)
        return sorted(str(job) for jobs in found for job in jobs)

    async def status(self, job: str, now_ms: int | None = None) -> Status:
        """Return the status of a job."""
        return Status.of(await self._functions.run("status", job, now_ms))

    async def statuses(self, jobs: Collection[str]) -> dict[str, Status | Exception]:
        """Return the status of each job that exists, or the error for a job whose stored state cannot be read."""
        answers = await self._functions.run_for_each("statuses", "status", jobs)
        found: dict[str, Status | Exception] = {}
        for job, reply in zip(jobs, answers, strict=True):
            if isinstance(reply, Exception):
                if not is_failed_function(reply):
                    raise reply
                found[job] = reply
                continue
            with suppress(JobNotFound, JobDeleted, *UNAVAILABLE):
                try:
                    # If another command is changing the job, wait for it.
                    busy = "steps" in map_of(reply)
                    found[job] = await self.status(job) if busy else Status.of(reply_of(reply))
                except StateDamaged as error:
                    found[job] = error
        return found

    async def held(
        self,
        job: str,
        most: int,
        now_ms: int | None = None,
        *,
        what_if_skew_ms: int | None = None,
        what_if_target: bool = False,
    ) -> Snapshot:
        """Sweep a job, and return the data that explains its first ``most`` holders and the next holder.

        Args:
            job: The job.
            most: Number of holders.
            now_ms: Processing time; None for the clock of Redis.
            what_if_skew_ms: Another limit on skew, of which the snapshot contains the effect.
            what_if_target: Whether the snapshot contains the measured arrival delays.
        """
        more: dict[str, Any] = {} if what_if_skew_ms is None else {"what_if_skew_ms": what_if_skew_ms}
        if what_if_target:
            more["what_if_target"] = True
        return Snapshot(await self._functions.run("explain", job, now_ms, most=most + 1, **more))

    async def count_substreams(self, job: str) -> int:
        """Return the number of substreams, including placeholders of missing queries; 0 if the job does not exist."""
        idle, active = _member_sets(self._keys, job)
        counts = await self._servers.each([(name, ("ZCARD", name)) for name in (*idle, *active)])
        raise_first(counts)
        return sum(counts)

    async def substream_keys(self, job: str) -> AsyncIterator[list[SubstreamKey]]:
        """Yield all substreams of a job once, unsorted, in parts of about ``ROWS_AT_ONCE``.

        Reading in parts keeps Redis and this process responsive. A substream that is added or removed, or changes its
        state twice, during the read may be missing.
        """
        seen, part = set[SubstreamKey](), list[SubstreamKey]()
        idle, active = _member_sets(self._keys, job)
        # The idle substreams are read again, because active ones may have become idle in the meantime.
        for name in (*idle, *active, *idle):
            cursor = None
            while cursor != 0:
                words = ("ZSCAN", name, cursor or 0, "COUNT", ROWS_AT_ONCE)
                cursor, found = await self._servers.at(name, partial(Server.execute, words=words))
                keys = [replies.substream_key(str(member)) for member, _ in found]
                new = [key for key in keys if key[1] != PLACEHOLDER and key not in seen]
                seen.update(new)
                part += new
                if len(part) >= ROWS_AT_ONCE:
                    yield part
                    part = []
        yield part

    async def substreams(
        self, job: str, keys: Sequence[SubstreamKey] | None = None, now_ms: int | None = None
    ) -> SubstreamsReply:
        """Return the known substreams among ``keys`` (None: all substreams), sorted by query and name.

        A large table is read in parts, because Redis serves no other client while a function runs. Only the rows of one
        part are consistent with each other.
        """
        if keys is None:
            keys = [key async for part in self.substream_keys(job) for key in part]
        rows: list[SubstreamStatus] = []
        for first in range(0, max(len(keys), 1), ROWS_AT_ONCE):
            some = [member(key) for key in keys[first : first + ROWS_AT_ONCE]]
            table = SubstreamsReply.of(await self._functions.run("substreams", job, now_ms, members=some))
            rows += table.rows
        rows.sort(key=attrgetter("query", "substream"))
        return replace(table, rows=rows)

    async def queries(self, job: str, now_ms: int | None = None) -> QueriesReply:
        """Return the queries with their latest batches, sorted by name."""
        return QueriesReply.of(await self._functions.run("queries", job, now_ms))

    async def pinned_watermark(self, job: str, query: str, batch_id: int) -> PinnedWatermark | None:
        """Return the pinned watermark of a batch; None if the batch has not begun or the store no longer keeps it."""
        key = self._keys.key_of(job, "pinned_watermarks", query)
        words = ("HGET", key, str(batch_id))
        kept = await self._servers.at(key, partial(Server.read, keys=self._keys.of_call(job), words=words))
        return None if kept is None else PinnedWatermark(int(kept) if kept else None)

    async def delays(
        self, job: str, keys: Collection[SubstreamKey] | None = None, now_ms: int | None = None
    ) -> tuple[Status, Delays]:
        """Return the status and the delays of a job, with the delays of the substreams in ``keys``.

        If ``keys`` is None, the result contains the delays of the substream that holds the watermark.
        """
        status, delays = await self._functions.run_together(
            "completeness", job, now_ms, ("status", {}), ("completeness", {"members": keys and [*map(member, keys)]})
        )
        return Status.of(status), Delays.of(delays)

    async def history(
        self,
        job: str,
        before: str | None = None,
        from_ms: int = 0,
        to_ms: int | None = None,
        kinds: Collection[str] = (),
        most: int = 100,
    ) -> HistoryReply:
        """Return records, latest first.

        Args:
            job: The job.
            before: Only records before the record with this id.
            from_ms: Only records at or after this time.
            to_ms: Only records at or before this time.
            kinds: Only records of these kinds. If empty, records of all kinds.
            most: Maximum number of records.
        """
        end = "+" if to_ms is None else str(to_ms)
        if before is not None and (to_ms is None or int(before.partition("-")[0]) <= to_ms):
            end = _end_before(before)
        at_once = RECORDS_AT_ONCE if kinds else min(most, RECORDS_AT_ONCE)
        found: list[tuple[str, Record]] = []
        while True:
            part = HistoryReply.of(
                await self._functions.run("history", job, most=at_once, first=str(from_ms), last=end)
            )
            found += [entry for entry in part.records if not kinds or entry[1].kind in kinds]
            if len(found) >= most or len(part.records) < at_once:
                return replace(part, records=found[:most])
            end = f"({part.records[-1][0]}"

    async def frames(
        self, job: str, first: int | None = None, last: int | None = None, most: int = 100, now_ms: int | None = None
    ) -> FramesReply:
        """Return at most ``most`` frames from that of ``first`` to that of ``last`` (None: no bound), latest first."""
        return FramesReply.of(await self._functions.run("frames", job, now_ms, first=first, last=last, most=most))

    async def frame(self, job: str, time: int, now_ms: int | None = None) -> FramesReply:
        """Return the frame that contains a time, also if it has not begun; no frame if it is before the first one."""
        return FramesReply.of(
            await self._functions.run("frames", job, now_ms, first=time, last=time, most=1, is_any=True)
        )

    async def consumers(self, job: str, now_ms: int | None = None) -> ConsumersReply:
        """Return the consumers of the frames of a job, sorted by name."""
        return ConsumersReply.of(await self._functions.run("consumers", job, now_ms))

    async def learned(self, job: str, now_ms: int | None = None) -> Learned:
        """Return what predicts when the open frames of a job will be complete."""
        return Learned.of(await self._functions.run("learned", job, now_ms, interval_ms=FINE_MS))

    async def late(self, job: str, key: SubstreamKey | None = None, now_ms: int | None = None) -> LateReply:
        """Return the late rows of a job or a substream. The substream may be unknown."""
        of = "" if key is None else member(key)
        return await self._late(job, of, await self._functions.run("late", job, now_ms, member=of), now_ms)

    async def page(self, job: str, request: JobPageRequest, now_ms: int | None = None) -> JobPageReply:
        """Sweep a job, and return the data of its page."""
        found = await self._functions.run_together("job_page", job, now_ms, *_page_commands(request))
        held, status, queries, delays, late, substreams, distribution, samples, history, frames, learned = found
        return JobPageReply(
            Snapshot(held),
            Status.of(status),
            QueriesReply.of(queries),
            Delays.of(delays),
            await self._late(job, "", late, now_ms),
            SubstreamsReply.of(substreams),
            Distribution.of(distribution),
            Samples.of(samples).samples,
            HistoryReply.of(history),
            FramesReply.of(frames),
            Learned.of(learned),
        )

    async def samples(self, job: str, interval_ms: int, most: int, now_ms: int | None = None) -> Samples:
        """Return the latest samples of a job's timeline."""
        reply = await self._functions.run("timeline", job, now_ms, interval_ms=interval_ms, most=most)
        return Samples.of(reply)

    async def timelines(self, jobs: Sequence[str], interval_ms: int, most: int) -> dict[str, list[Sample]]:
        """Return the latest samples of each job, oldest first. A job without a readable timeline has no samples."""
        keys = [self._keys.key_of(job, "timeline", interval_ms) for job in jobs]
        reads = [(self._keys.of_call(job), ("LRANGE", key, -most, -1)) for job, key in zip(jobs, keys, strict=True)]
        with self._functions.around("timelines"):
            found = await self._servers.read_each(reads)
        return {job: _samples(texts) for job, texts in zip(jobs, found, strict=True)}

    async def _late(self, job: str, of: str, reply: Reply, now_ms: int | None) -> LateReply:
        """Return the late rows in ``reply``, and read the remaining replies."""
        late = LateReply.of(reply)
        late.add_hours(of, reply)
        while reply.get("next") is not None:
            reply = await self._functions.run("late", job, now_ms, member=of, after=reply["next"])
            late.add_hours(of, reply)
        return late


def _page_commands(request: JobPageRequest) -> list[tuple[str, dict[str, Any]]]:
    """Return the reads of the page of a job, after a sweep."""
    substreams: dict[str, Any] = {"members": [], "most": ROWS_AT_ONCE, "slowest": request.slowest}
    if request.after is not None:
        substreams["after"] = dict(zip(("watermark", "member"), request.after, strict=True))
    bins = {"more_than": ROWS_AT_ONCE, "widths": request.bin_widths_ms, "max_bins": request.bins}
    end = "+" if request.before is None else _end_before(request.before)
    return [
        ("explain", {"most": request.holders + 1}),
        ("status", {}),
        ("queries", {}),
        ("completeness", {}),
        ("late", {"member": ""}),
        ("substreams", substreams),
        ("distribution", bins),
        ("timeline", {"interval_ms": request.interval_ms, "most": request.samples}),
        ("history", {"first": "0", "last": end, "most": request.records}),
        ("frames", {"most": request.frames}),
        ("learned", {"interval_ms": FINE_MS}),
    ]


def _member_sets(keys: Keyspace, job: str) -> tuple[list[str], list[str]]:
    """Return the sorted sets of the idle and done substreams, and of the active ones, with placeholders."""
    active = [keys.key_of(job, "active"), *(keys.key_of(job, "lagged", limit) for limit in POLICY_LIMITS)]
    return [keys.key_of(job, "frozen"), keys.key_of(job, "idle_lagged")], active


def _samples(found: list[str] | Exception) -> list[Sample]:
    try:
        return [] if isinstance(found, Exception) else [*map(replies.sample, found)]
    except ValueError:  # another program has written to the key
        return []


def _end_before(entry_id: str) -> str:
    # Redis rejects the id 0-0 as an exclusive end. No record has a lower id, so an inclusive end is equivalent.
    return "0-0" if replies.order(entry_id) == (0, 0) else f"({entry_id}"
