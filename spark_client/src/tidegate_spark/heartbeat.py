"""Heartbeats: a query tells its coordinator that it is caught up and found no new data.

The evidence is Spark's own: its idle event says that a trigger looked and found nothing, and when. Only that moment is
reported, in the coordinator's time; a query that waits for its next trigger has observed nothing since, and nothing is
claimed for it.
"""

import atexit
import queue
import threading
import time
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from tidegate_spark.delivery import Delivery
from tidegate_spark.errors import TidegateError
from tidegate_spark.logs import Failing
from tidegate_spark.versions import is_connect

CONNECT_PAUSE_S = 5.0
"""Pause before a listener of Spark Connect is removed.

Its client waits for its event thread under a lock that the thread needs, too. If the program stops the session at that
moment, as many do when their query has ended, it never ends.
"""

HEARTBEATS_FAIL = "heartbeats are not taken", "heartbeats are taken again"


@dataclass(frozen=True, slots=True)
class Event:
    """What Spark told of some query's run."""

    run_id: str


class Ended(Event):
    """The run has."""


@dataclass(frozen=True, slots=True)
class Finished(Event):
    """It has finished a batch, or found it finished; None: it found none."""

    batch_id: int | None


@dataclass(frozen=True, slots=True)
class Idle(Event):
    """It looked for data at a moment (Unix time, in seconds), and found nothing."""

    at_s: float


class Heartbeat(StreamingQueryListener):
    """Listens for one query, and speaks from a thread of its own: Spark's event bus must not wait for a network."""

    def __init__(self, spark: SparkSession, delivery: Delivery) -> None:
        self._spark, self._delivery = spark, delivery
        self._pause_s = CONNECT_PAUSE_S if is_connect(spark) else 0.0
        # Which run is ours is known once it has started; it may have told something by then, so all are listened to.
        self._run_id: str | None = None
        self._finished: Finished | None = None
        self._failing = Failing(delivery.log, *HEARTBEATS_FAIL)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def listen_to(self, query: StreamingQuery) -> None:
        """Begins to speak for this run of the query."""
        # Not from the checkpoint, which a client of Spark Connect may not be able to read.
        run = self._delivery.run(str(query.id))
        self._run_id = str(query.runId)
        name = f"tidegate-heartbeat-{query.name}"
        threading.Thread(target=self._speak, args=(self._run_id, run), name=name, daemon=True).start()
        # A program that ends without stopping Spark leaves it with a listener that nobody is behind any more.
        atexit.register(self.leave)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        # Only of a batch that ran: the progress of a look that found nothing bears the number of the next one.
        if "addBatch" in event.progress.durationMs:
            self._hear(Finished(str(event.progress.runId), event.progress.batchId))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        at = datetime.fromisoformat(event.timestamp.replace("Z", "+00:00"))
        self._hear(Idle(str(event.runId), at.timestamp()))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._hear(Ended(str(event.runId)))

    def _hear(self, event: Event) -> None:
        if self._run_id in (None, event.run_id):
            self._events.put(event)

    def _speak(self, spark_run_id: str, run: dict[str, str]) -> None:
        while not isinstance(event := self._next(spark_run_id), Ended):
            if isinstance(event, Finished):
                self._finished = event
            elif isinstance(event, Idle) and self._events.empty():
                self._beat(run, event)
        self._delivery.close()
        atexit.unregister(self.leave)
        time.sleep(self._pause_s)
        self.leave()

    def leave(self) -> None:
        """Stop listening."""
        self._spark.streams.removeListener(self)

    def _last_batch(self) -> tuple[bool, int | None]:
        """Whether it is known which batch the query has finished last, and that; None: none.

        Where the checkpoint cannot be read, that is not known until this run has finished one. The coordinator may not
        have heard of all that earlier runs took in.
        """
        checkpoint = self._delivery.checkpoint
        if self._finished is None and checkpoint.started():
            self._finished = Finished(self._run_id or "", checkpoint.finished())
        return self._finished is not None, self._finished.batch_id if self._finished else None

    def _beat(self, run: dict[str, str], idle: Idle) -> None:
        # One that fails is not repeated: the next idle event carries the same news, and better.
        try:
            known, finished = self._last_batch()
            if not known:
                return
            self._delivery.heartbeat(run, max(0.0, time.time() - idle.at_s), finished)
        except (TidegateError, OSError) as error:  # the latter of the checkpoint's file system
            self._failing.failed(error)
        else:
            self._failing.worked()

    def _next(self, spark_run_id: str) -> Event:
        """The next event of a run, waiting for one."""
        while (event := self._events.get()).run_id != spark_run_id:
            pass
        return event
