"""Heartbeats: a query tells its coordinator that it is caught up and found no new data.

The evidence is Spark's own: its idle event says that a trigger looked and found nothing, and when. Only that moment is
reported, in the coordinator's time; a query that waits for its next trigger has observed nothing since, and nothing is
claimed for it.
"""

import logging
import queue
import threading
import time
from datetime import datetime

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tidegate_spark.errors import TidegateError
from tidegate_spark.hook import Hook

log = logging.getLogger("tidegate")

IDLE_EVENT_INTERVAL = "spark.sql.streaming.noDataProgressEventInterval"


class Heartbeat(StreamingQueryListener):
    """Listens for one query, and speaks from a thread of its own: Spark's event bus must not wait for a network."""

    def __init__(self, spark: SparkSession, hook: Hook) -> None:
        self._spark, self._hook = spark, hook
        self._spark_run_id: str | None = None
        self._idle_at: queue.SimpleQueue[datetime | None] = queue.SimpleQueue()

    def listen_to(self, spark_run_id: str) -> None:
        """Begins to speak for the run of the query that Spark calls by this id."""
        self._spark_run_id = spark_run_id
        threading.Thread(target=self._speak, name=f"tidegate-heartbeat-{self._hook.query}", daemon=True).start()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        if str(event.runId) == self._spark_run_id:
            self._idle_at.put(datetime.fromisoformat(event.timestamp.replace("Z", "+00:00")))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if str(event.runId) == self._spark_run_id:
            self._idle_at.put(None)

    def _speak(self) -> None:
        while (idle_at := self._newest()) is not None:
            age_s = max(0.0, time.time() - idle_at.timestamp())
            try:
                self._hook.coordinator.heartbeat(self._hook.query, self._hook.run(), age_s)
            except TidegateError as error:
                # Not repeated: the next idle event carries the same news, and better.
                log.warning("%s: heartbeat not taken: %s", self._hook.query, error)
        self._spark.streams.removeListener(self)

    def _newest(self) -> datetime | None:
        """The latest of the idle events that came in, waiting for one; None at the end of the query."""
        newest = self._idle_at.get()
        while newest is not None and not self._idle_at.empty():
            newest = self._idle_at.get()
        return newest
