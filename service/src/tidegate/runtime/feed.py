"""What happens to one job, read once for all who wait for it at this replica."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from redis.exceptions import RedisError

from tidegate.domain.errors import ClockJumped, JobDeleted, JobNotFound
from tidegate.domain.journal import Record
from tidegate.domain.results import WatermarkState
from tidegate.store.jobs import JobStore, Watched
from tidegate.store.replies import order

log = logging.getLogger(__name__)

LOOK_S = 5.0
RENEW_S = 0.5
RECORDS_AT_ONCE = 500
RECORDS_KEPT = 1000
WOKEN_AT_ONCE = 100
"""After so many others get their turn: were thousands woken at once, the first of them would wait for the last."""


@dataclass(slots=True)
class Entry:
    """A record as those who watch get it. ``wire``: what it looks like on the way, made once for all of them."""

    id: str
    record: Record
    wire: bytes = b""


@dataclass(frozen=True, slots=True)
class State:
    """Where a job is after the record with that id. ``anew``: what was known of it before does not lead there."""

    id: str
    answer: WatermarkState
    anew: bool


Step = State | list[Entry]
"""What a follower gets: where the job is, or what happened next; an empty list where nothing did for a while."""

Waiter = asyncio.Future[WatermarkState | None]
"""Somebody who waits: for an answer, or (None) for word that there is something to look at."""


class Feed:
    """:meth:`run` it as a task for as long as anybody waits."""

    def __init__(self, store: JobStore, job: str) -> None:
        self._store, self._job = store, job
        self._news, self._positioned = asyncio.Event(), asyncio.Event()
        self._position: str | None = None
        self.entries: deque[Entry] = deque(maxlen=RECORDS_KEPT)
        self._floor = ""
        self._generation = 0
        self._goals: dict[Waiter, int] = {}
        self._bells: dict[Waiter, None] = {}
        self._gone: type[JobNotFound] | type[JobDeleted] | None = None
        self.ended = False

    # -- for those who wait ---------------------------------------------------------------------------------------

    @contextmanager
    def expect(self, at_least: int) -> Iterator[Waiter]:
        """The answer in which the watermark has come so far; None where it is better to ask for oneself."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._goals[waiter] = at_least
        if self.ended:
            waiter.set_result(None)
        try:
            yield waiter
        finally:
            self._goals.pop(waiter, None)

    async def follow(self, known: str | None, pause_s: float) -> AsyncGenerator[Step, None]:
        """What happens after the record with the id ``known``; without one, where the job is, and what happens then.

        After a reset, or where what came after ``known`` is not kept: where the job is, anew. An empty list after each
        ``pause_s`` without news. Ends with the feed. Who is slow holds up nobody: each reads at its own pace.

        :raises JobNotFound, JobDeleted: once there is no such job any more.
        """
        await self._positioned.wait()
        at, anew, generation = known, known is not None, -1
        resumes = known is not None
        while not self.ended:
            entries = self._after(at) if at is not None and generation == self._generation else None
            if entries is None:
                read_in = self._generation
                watched = await self._read(at)
                if watched is None:
                    yield []
                    continue
                generation = read_in
                # Who was told of a reset may not have been told yet where it led.
                reset = resumes and watched.known is not None and _is_reset(watched.known)
                resumes = False
                if watched.known is None or reset:
                    yield State(watched.newest, watched.state, anew)
                    at, anew = watched.newest, True
                    continue
                entries = [Entry(*found) for found in watched.records]
            if entries:
                until = next((i for i, entry in enumerate(entries, 1) if _is_reset(entry.record)), None)
                yield entries[:until]
                at = entries[-1].id if until is None else None
            elif not await self._heard(pause_s):
                yield []
        if self._gone is not None:
            if at is not None and generation == self._generation:
                yield self._after(at) or []
            raise self._gone

    def _after(self, known: str) -> list[Entry] | None:
        """The entries after that one; None where not all of them are here."""
        if self._position is None or order(known) < order(self._floor):
            return None
        found: list[Entry] = []
        for entry in reversed(self.entries):
            if order(entry.id) <= order(known):
                break
            found.append(entry)
        return found[::-1]

    async def _read(self, known: str | None) -> Watched | None:
        """The same from the store; None, after a while, where it cannot say."""
        try:
            return await self._store.watch(self._job, known, RECORDS_AT_ONCE)
        except (RedisError, ClockJumped):
            await asyncio.sleep(RENEW_S)
            return None

    async def _heard(self, within_s: float) -> bool:
        bell: Waiter = asyncio.get_running_loop().create_future()
        self._bells[bell] = None
        try:
            async with asyncio.timeout(within_s):
                await bell
        except TimeoutError:
            return False
        finally:
            self._bells.pop(bell, None)
        return True

    # -- for those who run it -------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be news."""
        self._news.set()

    async def run(self) -> None:
        """Looks when it is woken, and now and then, until there is no such job any more."""
        try:
            # Asked again and again: a cancellation that meets a command of the store's client may be lost in it.
            while not self.ended:
                self._news.clear()
                try:
                    await self._look()
                except (RedisError, ClockJumped) as error:
                    log.debug("Job %s: %s", self._job, error)
                    self._positioned.set()
                    # They ask for themselves, and are told what is the matter.
                    await _wake(list(self._goals))
                    await asyncio.sleep(RENEW_S)
                    continue
                self._positioned.set()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._news.wait()
        except (JobNotFound, JobDeleted) as error:
            self._gone = type(error)
        except Exception:
            # Those who wait begin anew with another feed; nobody else would ever hear of this.
            log.exception("The feed of job %s failed.", self._job)
        finally:
            self.end()

    def end(self) -> None:
        """Sends all home who wait."""
        self.ended = True
        self._positioned.set()
        self._news.set()
        for waiter in [*self._goals, *self._bells]:
            _resolve(waiter, None)

    async def _look(self) -> None:
        """Takes in what is new, and wakes those who wait for it."""
        while True:
            watched = await self._store.watch(self._job, self._position, RECORDS_AT_ONCE)
            if watched.known is not None:
                self.entries.extend(Entry(*found) for found in watched.records)
                if len(self.entries) == RECORDS_KEPT:
                    self._floor = self.entries[0].id
                if watched.records:
                    self._position = watched.records[-1][0]
            else:
                self.entries.clear()
                self._position = self._floor = watched.newest
                self._generation += 1
            reached = watched.state.watermark
            if reached is not None:
                await _wake([waiter for waiter, goal in self._goals.items() if goal <= reached], watched.state)
            if watched.records or watched.known is None:
                await _wake(list(self._bells))
            if self._position == watched.newest or self.ended:
                return


async def _wake(waiters: list[Waiter], answer: WatermarkState | None = None) -> None:
    for number, waiter in enumerate(waiters, 1):
        _resolve(waiter, answer)
        if number % WOKEN_AT_ONCE == 0:
            await asyncio.sleep(0)


def _resolve(waiter: Waiter, answer: WatermarkState | None) -> None:
    if not waiter.done():
        waiter.set_result(answer)


def _is_reset(record: Record) -> bool:
    return record.details.get("action") == "reset"
