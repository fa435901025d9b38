"""Waiting for a watermark without asking again and again.

Scripts announce each emission on a channel of Redis, whichever replica ran them; one subscription per replica wakes the
requests that wait for that job. An announcement may be lost (Redis keeps none), so a waiting request also looks for
itself every few seconds, and everybody looks after the subscription was renewed.
"""

import asyncio
import logging
import time
from collections import defaultdict
from contextlib import suppress

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tidegate.domain.records import Answer
from tidegate.store.keys import WAKE
from tidegate.store.redis import JobStore

log = logging.getLogger(__name__)

LOOK_S = 5.0
RENEW_S = 0.5


class WakeUps:
    """:meth:`run` it as a task; :meth:`wait` from requests; :meth:`close` sends all that wait home."""

    def __init__(self, redis: Redis, store: JobStore) -> None:
        self._redis, self._store = redis, store
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._closing = False

    async def wait(self, job: str, at_least: int | None, timeout_s: float) -> Answer:
        """The state of the watermark once it is ``at_least`` that, or after ``timeout_s``, or at once without a goal.

        :raises JobNotFound, JobDeleted: see the errors.
        """
        deadline = time.monotonic() + timeout_s
        event = asyncio.Event()
        self._waiting[job].add(event)
        try:
            while True:
                event.clear()
                answer = await self._store.sweep(job)
                reached = at_least is None or (answer.watermark is not None and answer.watermark >= at_least)
                left_s = deadline - time.monotonic()
                if reached or left_s <= 0 or self._closing:
                    return answer
                with suppress(TimeoutError):  # time to look, or to give up
                    await asyncio.wait_for(event.wait(), min(left_s, LOOK_S))
        finally:
            self._waiting[job].discard(event)
            if not self._waiting[job]:
                del self._waiting[job]

    async def run(self) -> None:
        """Listens for emissions until cancelled."""
        while True:
            try:
                async with self._redis.pubsub() as subscription:
                    await subscription.psubscribe(WAKE + "*")
                    self._wake(*self._waiting)
                    while True:
                        message = await subscription.get_message(ignore_subscribe_messages=True, timeout=LOOK_S)
                        if message is not None:
                            self._wake(message["channel"].removeprefix(WAKE))
            except RedisError as error:
                log.warning("Lost the channel of emissions, renewing it: %s", error or type(error).__name__)
                await asyncio.sleep(RENEW_S)

    def close(self) -> None:
        """From now on nobody waits: requests under way answer with what there is."""
        self._closing = True
        self._wake(*self._waiting)

    def _wake(self, *jobs: str) -> None:
        for job in jobs:
            for event in self._waiting.get(job, ()):
                event.set()
