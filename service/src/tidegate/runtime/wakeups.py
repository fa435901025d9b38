"""Waiting for a watermark without asking again and again.

A command that leaves a record announces so on a channel of Redis, whichever replica ran it; one subscription per
replica wakes the feeds of the jobs that somebody waits for here. An announcement may be lost (Redis keeps none), so
feeds also look for themselves every few seconds, and all of them after the subscription was renewed.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tidegate.domain.results import WatermarkState
from tidegate.runtime.feed import LOOK_S, RENEW_S, Feed, Step
from tidegate.store.jobs import JobStore
from tidegate.store.keys import WAKE

log = logging.getLogger(__name__)


class TooManyWait(Exception):
    """As many wait at this replica as may, which is ``most``."""

    def __init__(self, most: int) -> None:
        super().__init__(f"{most} clients wait")
        self.most = most


class WakeUps:
    """:meth:`run` it as a task; :meth:`wait` and :meth:`follow` from requests; :meth:`close` sends all home who wait.

    ``most_waiting``: how many may wait at once; ``longest_wait_s``: for how long, for a watermark.
    """

    def __init__(self, redis: Redis, store: JobStore, most_waiting: int, longest_wait_s: float) -> None:
        self._redis, self._store = redis, store
        self._most_waiting, self._longest_wait_s = most_waiting, longest_wait_s
        self._feeds: dict[str, _Running] = {}
        self._closing = False
        self.waiting = 0

    async def wait(self, job: str, at_least: int | None, timeout_s: float) -> WatermarkState:
        """The state of the watermark once it is ``at_least`` that, or after ``timeout_s``, or at once without a goal.

        :raises JobNotFound, JobDeleted: see the errors.
        :raises TooManyWait: for one who would have to wait.
        """
        deadline = time.monotonic() + min(timeout_s, self._longest_wait_s)
        answer = await self._store.sweep(job)
        while at_least is not None and not _reached(answer, at_least):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._closing:
                return answer
            with self._feed(job) as feed, feed.expect(at_least) as waiter:
                # Expected first and asked then: what comes in between is not missed.
                answer = await self._store.sweep(job)
                if _reached(answer, at_least):
                    return answer
                try:
                    async with asyncio.timeout(deadline - time.monotonic()):
                        told = await waiter
                except TimeoutError:
                    told = None
            answer = told or await self._store.sweep(job)
        return answer

    async def follow(
        self, job: str, known: str | None, pause_s: float, quota: AbstractContextManager[None]
    ) -> AsyncGenerator[Step, None]:
        """What happens to a job, see :meth:`Feed.follow`; first an empty list. Ends when this replica does.

        ``quota`` is entered for as long as it lasts.

        :raises JobNotFound, JobDeleted: once there is no such job any more.
        :raises TooManyWait: at the first step.
        """
        with quota, self._feed(job) as feed:
            yield []
            async with aclosing(feed.follow(known, pause_s)) as steps:
                async for step in steps:
                    yield step

    async def run(self) -> None:
        """Listens for announcements until cancelled."""
        while True:
            try:
                async with self._redis.pubsub() as subscription:
                    await subscription.psubscribe(WAKE + "*")
                    self._wake(*self._feeds)
                    while True:
                        message = await subscription.get_message(ignore_subscribe_messages=True, timeout=LOOK_S)
                        if message is not None:
                            self._wake(message["channel"].removeprefix(WAKE))
            except RedisError as error:
                log.warning("Lost the channel of announcements, renewing it: %s", error or type(error).__name__)
                await asyncio.sleep(RENEW_S)
            except Exception:
                # Somebody else's message, for one: without this task all would wait for the next look.
                log.exception("The channel of announcements failed, renewing it.")
                await asyncio.sleep(RENEW_S)

    def close(self) -> None:
        """From now on nobody waits: requests under way answer with what there is, and streams of events end."""
        self._closing = True
        for running in self._feeds.values():
            running.feed.end()

    @property
    def closing(self) -> bool:
        """Whether nobody may wait any more."""
        return self._closing

    @contextmanager
    def place(self) -> Iterator[None]:
        """One more who waits, for as long as this lasts.

        :raises TooManyWait: where there are as many as may.
        """
        if self.waiting >= self._most_waiting:
            raise TooManyWait(self._most_waiting)
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    def _wake(self, *jobs: str) -> None:
        for job in jobs:
            if job in self._feeds:
                self._feeds[job].feed.wake()

    @contextmanager
    def _feed(self, job: str) -> Iterator[Feed]:
        """The feed of a job, which runs as long as anybody uses it."""
        with self.place():
            running = self._feeds.get(job)
            if running is None or running.feed.ended:
                running = self._feeds[job] = _Running(Feed(self._store, job))
                if self._closing:
                    running.feed.end()
            running.users += 1
            try:
                yield running.feed
            finally:
                running.users -= 1
                if running.users == 0:
                    running.feed.end()
                    running.task.cancel()
                    if self._feeds.get(job) is running:
                        del self._feeds[job]


class _Running:
    def __init__(self, feed: Feed) -> None:
        self.feed, self.users = feed, 0
        self.task = asyncio.create_task(feed.run(), name="feed")


def _reached(answer: WatermarkState, at_least: int) -> bool:
    return answer.watermark is not None and answer.watermark >= at_least
