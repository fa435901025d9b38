"""Notifications for clients that wait for a watermark.

A function that writes a record announces it on a Redis channel. Each replica has one subscription, which wakes the
feeds of the jobs that its clients follow. Redis does not store announcements, so feeds also poll. When a replica renews
its subscription, all its feeds read the store.

The channels are ordinary channels, also on a Redis Cluster: any node then has the announcements of all nodes, so one
subscription suffices and outlives a slot that moves. Sharded channels would need a subscription to every primary.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager

from redis.exceptions import RedisError

from tidegate.domain.results import JobWatermark
from tidegate.domain.values import above
from tidegate.runtime.feed import POLL_S, RETRY_S, Feed, Goal, Step
from tidegate.store.jobs import JobStore
from tidegate.store.keyspace import WAKE
from tidegate.store.replies import FramesReply

log = logging.getLogger(__name__)


class TooManyWaiting(Exception):
    """Raised when a client cannot wait, because the replica has reached its limit on waiting clients."""

    code = "too_many_waiting"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"This replica has reached its limit of {limit} waiting clients; try again later, or raise "
            "TIDEGATE_MAX_WAITING."
        )


class WakeUps:
    """The waiting clients of a replica. :meth:`run` must run as a task.

    Args:
        store: The store of all jobs.
        max_waiting: Number of clients that can wait at the same time.
        max_wait_s: Longest time in seconds for which a client can wait for a watermark.
    """

    def __init__(self, store: JobStore, max_waiting: int, max_wait_s: float) -> None:
        self.waiting = 0
        self.closing = False
        self._store = store
        self._max_waiting, self._max_wait_s = max_waiting, max_wait_s
        self._feeds: dict[str, _Running] = {}

    async def wait(
        self, job: str, goal: Goal | None, timeout_s: float, before_wait: Callable[[], None] = lambda: None
    ) -> JobWatermark:
        """Return the state of a job when it has reached a goal, or after ``timeout_s`` seconds.

        Args:
            job: Name of the job.
            goal: Watermark to wait for, or None to return the state now.
            timeout_s: Longest wait in seconds.
            before_wait: Function that is called each time before the call waits.

        Raises:
            JobNotFound: If the job does not exist.
            JobDeleted: If the job was deleted.
            TooManyWaiting: If the call would have to wait, and too many clients are waiting.
        """
        deadline = time.monotonic() + min(timeout_s, self._max_wait_s)
        answer = await self._store.read_watermark(job)
        while goal is not None and not goal.reached_by(answer):
            if deadline <= time.monotonic() or self.closing:
                return answer
            with self._feed(job) as feed, feed.expect(goal) as waiter:
                # Read the watermark after registering the waiter, so that the client does not miss an advance.
                answer = await self._store.read_watermark(job)
                if goal.reached_by(answer):
                    return answer
                before_wait()
                await asyncio.wait([waiter], timeout=deadline - time.monotonic())
                reached = waiter.result() if waiter.done() else None
            answer = reached or await self._store.read_watermark(job)
        return answer

    async def wait_for_frame(
        self, job: str, at: int, timeout_s: float, before_wait: Callable[[], None] = lambda: None
    ) -> FramesReply:
        """Return the frame that contains a time when it is not open, or after ``timeout_s`` seconds.

        Raises:
            JobNotFound, JobDeleted, TooManyWaiting: As :meth:`wait`.
        """
        deadline = time.monotonic() + min(timeout_s, self._max_wait_s)
        while True:
            found = await self._store.reads.frame(job, at)
            left_s = deadline - time.monotonic()
            if not found.frames or found.frames[0].state != "open" or left_s <= 0 or self.closing:
                return found
            goal, state = Goal(found.frames[0].end), found.state
            if state.complete and not above(state.watermark, found.frames[0].start):  # after the end of the input
                return found
            if not goal.reached_by(state):
                await self.wait(job, goal, left_s, before_wait)
                continue
            # Frames without rows wait for evidence, and records about frames follow the watermark.
            with self._feed(job) as feed, feed.expect(None) as waiter:
                before_wait()
                await asyncio.wait([waiter], timeout=min(left_s, POLL_S))

    async def follow(
        self, job: str, known: str | None, pause_s: float, quota: AbstractContextManager[None]
    ) -> AsyncGenerator[Step, None]:
        """Yield an empty list, then the steps of :meth:`Feed.follow`, until this replica closes.

        Args:
            job: Name of the job.
            known: Id of the last record that the client has, or None if it has no record.
            pause_s: Seconds without records after which the generator yields an empty list.
            quota: Context manager that is active while the client follows the job.

        Raises:
            JobNotFound: If the job no longer exists.
            JobDeleted: If the job is deleted.
            TooManyWaiting: If too many clients are waiting at the first step.
        """
        with quota, self._feed(job) as feed:
            yield []
            async with aclosing(feed.follow(known, pause_s)) as steps:
                async for step in steps:
                    yield step

    async def run(self) -> None:
        """Receive announcements until cancelled."""
        while True:
            try:
                async with self._store.redis.pubsub() as subscription:
                    await subscription.psubscribe(WAKE + "*")
                    self._wake(*self._feeds)
                    while True:
                        message = await subscription.get_message(ignore_subscribe_messages=True, timeout=POLL_S)
                        if message is not None:
                            self._wake(message["channel"].removeprefix(WAKE))
            except RedisError as error:
                log.warning("Lost the subscription to announcements; renewing it: %s", error or type(error).__name__)
            except Exception:
                # A foreign message can raise any error. If this task ended, clients would wait for the next poll.
                log.exception("The subscription to announcements failed; renewing it.")
            await asyncio.sleep(RETRY_S)

    def close(self) -> None:
        """Answer all waiting clients, end all event streams, and let no further clients wait."""
        self.closing = True
        for running in self._feeds.values():
            running.feed.end()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Count one more waiting client while the block runs.

        Raises:
            TooManyWaiting: If too many clients are waiting.
        """
        if self.waiting >= self._max_waiting:
            raise TooManyWaiting(self._max_waiting)
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
        """Yield the feed of a job, which runs while clients use it."""
        with self.place():
            running = self._feeds.get(job)
            if running is None or running.feed.ended:
                running = self._feeds[job] = _Running(Feed(self._store, job))
                if self.closing:
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
