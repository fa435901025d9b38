"""The history records of one job. A replica reads them once for all its clients that follow the job."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from redis.exceptions import RedisError

from tidegate.domain.errors import UNAVAILABLE, JobDeleted, JobNotFound
from tidegate.domain.history import Record
from tidegate.domain.results import JobWatermark
from tidegate.store.jobs import JobStore
from tidegate.store.replies import Watched, order

log = logging.getLogger(__name__)

POLL_S = 5.0
RETRY_S = 0.5
RECORDS_AT_ONCE = 500
RECORDS_KEPT = 1000
WOKEN_AT_ONCE = 100
"""Number of waiters to wake before other tasks run. Otherwise, thousands of waiters would block the event loop."""


@dataclass(slots=True)
class Entry:
    """A record with its id.

    Attributes:
        wire: The encoded record, which all followers share. Empty until a follower encodes it.
    """

    id: str
    record: Record
    wire: bytes = b""


@dataclass(frozen=True, slots=True)
class State:
    """The watermark of a job after the record ``id``.

    Attributes:
        discontinuous: Whether records are missing between the follower's last record and this state.
    """

    id: str
    answer: JobWatermark
    discontinuous: bool


Step = State | list[Entry]
"""A state, or the next records. An empty list means that the job had no record for ``pause_s`` seconds."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A watermark that a client waits for.

    Attributes:
        at_least: The watermark.
        of_rows: Whether the client waits for the emitted watermark in place of the written watermark.
    """

    at_least: int
    of_rows: bool = False

    def reached_by(self, state: JobWatermark) -> bool:
        """Return whether a job has reached the goal."""
        watermark = state.watermark if self.of_rows else state.written_watermark
        return watermark is not None and watermark >= self.at_least


Waiter = asyncio.Future[JobWatermark | None]
"""The future of a waiting client. Its result is the answer, or None if the client must read the state."""


class Feed:
    """The records of one job. :meth:`run` must run as a task while clients use the feed."""

    def __init__(self, store: JobStore, job: str) -> None:
        self.entries: deque[Entry] = deque(maxlen=RECORDS_KEPT)
        self.ended = False
        self._store, self._job = store, job
        self._news, self._positioned = asyncio.Event(), asyncio.Event()
        self._position: str | None = None
        self._floor = ""
        self._generation = 0
        self._goals: dict[Waiter, Goal | None] = {}
        self._end_reason: type[JobNotFound] | type[JobDeleted] | None = None

    # -- for clients ----------------------------------------------------------------------------------------------

    @contextmanager
    def expect(self, goal: Goal | None) -> Iterator[Waiter]:
        """Yield a waiter for a goal, or for new records if the goal is None."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._goals[waiter] = goal
        if self.ended:
            waiter.set_result(None)
        try:
            yield waiter
        finally:
            self._goals.pop(waiter, None)

    async def follow(self, known: str | None, pause_s: float) -> AsyncGenerator[Step, None]:
        """Yield the records after the record ``known``, until the feed ends.

        A state replaces the records if ``known`` is None, after a reset, or if the store has discarded later records.

        Args:
            known: Id of the last record that the follower has, or None if it has no record.
            pause_s: Seconds without records after which the feed yields an empty list.

        Raises:
            JobNotFound: If the job no longer exists.
            JobDeleted: If the job is deleted.
        """
        await self._positioned.wait()
        at, generation = known, -1
        discontinuous = resumes = known is not None
        while not self.ended:
            entries = self._entries_after(at) if at is not None and generation == self._generation else None
            if entries is None:
                read_in = self._generation
                watched = await self._read(at, resumes=resumes)
                if watched is None:
                    yield []
                    continue
                generation, resumes = read_in, False
                if watched.known is None:
                    yield State(watched.newest, watched.state, discontinuous)
                    at, discontinuous = watched.newest, True
                    continue
                entries = [Entry(*record) for record in watched.records]
            if entries:
                entries, has_reset = _up_to_reset(entries)
                yield entries
                at = None if has_reset else entries[-1].id
            elif not await self._is_woken_within(pause_s):
                yield []
        if self._end_reason is not None:
            if at is not None and generation == self._generation:
                yield self._entries_after(at) or []
            raise self._end_reason

    async def _is_woken_within(self, timeout_s: float) -> bool:
        """Return whether new records arrive, or the feed ends, within a number of seconds."""
        with self.expect(None) as waiter:
            woken, _ = await asyncio.wait([waiter], timeout=timeout_s)
        return bool(woken)

    def _entries_after(self, known: str) -> list[Entry] | None:
        """Return the entries after ``known``, or None if this replica has discarded some."""
        if self._position is None or order(known) < order(self._floor):
            return None
        newer: list[Entry] = []
        for entry in reversed(self.entries):
            if order(entry.id) <= order(known):
                break
            newer.append(entry)
        return newer[::-1]

    async def _read(self, known: str | None, *, resumes: bool) -> Watched | None:
        """Return the records after ``known`` from the store, or None after a pause if the store fails.

        Args:
            known: Id of the last record that the follower has.
            resumes: Whether the follower reconnects. If ``known`` is a reset, the previous connection may have ended
                before the follower received the new state, so ``known`` is ignored.
        """
        try:
            watched = await self._store.watch(self._job, known, RECORDS_AT_ONCE)
        except (RedisError, *UNAVAILABLE):
            await asyncio.sleep(RETRY_S)
            return None
        if resumes and watched.known is not None and _is_reset(watched.known):
            return replace(watched, known=None)
        return watched

    # -- for the task ---------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Make the task read the store now."""
        self._news.set()

    async def run(self) -> None:
        """Read the store when woken, and every ``POLL_S`` seconds, until the job no longer exists."""
        try:
            # The loop checks `ended`, because the Redis client can lose a cancellation.
            while not self.ended:
                self._news.clear()
                try:
                    await self._advance()
                except (RedisError, *UNAVAILABLE) as error:
                    log.debug("Cannot read job %s; trying again: %s", self._job, error)
                    self._positioned.set()
                    # Waiting clients then read the store themselves, and receive its error.
                    await _wake([waiter for waiter, goal in self._goals.items() if goal is not None])
                    await asyncio.sleep(RETRY_S)
                    continue
                self._positioned.set()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), POLL_S)
        except (JobNotFound, JobDeleted) as error:
            self._end_reason = type(error)
        except Exception:
            # Waiting clients start another feed, so only this log line shows the failure.
            log.exception("The feed of job %s failed.", self._job)
        finally:
            self.end()

    def end(self) -> None:
        """End the feed, and wake all waiters."""
        self.ended = True
        self._positioned.set()
        self._news.set()
        for waiter in self._goals:
            _resolve(waiter, None)

    async def _advance(self) -> None:
        """Read new records, and wake the clients that wait for them."""
        while True:
            watched = await self._store.watch(self._job, self._position, RECORDS_AT_ONCE)
            self._take(watched)
            goals = [(waiter, goal) for waiter, goal in self._goals.items() if goal is not None]
            await _wake([waiter for waiter, goal in goals if goal.reached_by(watched.state)], watched.state)
            if watched.records or watched.known is None:
                await _wake([waiter for waiter, goal in self._goals.items() if goal is None])
            if self._position == watched.newest or self.ended:
                return

    def _take(self, watched: Watched) -> None:
        if watched.known is None:
            self.entries.clear()
            self._position = self._floor = watched.newest
            self._generation += 1
            return
        self.entries.extend(Entry(*record) for record in watched.records)
        if len(self.entries) == RECORDS_KEPT:
            self._floor = self.entries[0].id
        if watched.records:
            self._position = watched.records[-1][0]


async def _wake(waiters: list[Waiter], answer: JobWatermark | None = None) -> None:
    for number, waiter in enumerate(waiters, 1):
        _resolve(waiter, answer)
        if number % WOKEN_AT_ONCE == 0:
            await asyncio.sleep(0)


def _resolve(waiter: Waiter, answer: JobWatermark | None) -> None:
    if not waiter.done():
        waiter.set_result(answer)


def _up_to_reset(entries: list[Entry]) -> tuple[list[Entry], bool]:
    """Return the entries up to the first reset, and whether they contain a reset."""
    end = next((index for index, entry in enumerate(entries, 1) if _is_reset(entry.record)), None)
    return entries[:end], end is not None


def _is_reset(record: Record) -> bool:
    return record.details.get("action") == "reset"
