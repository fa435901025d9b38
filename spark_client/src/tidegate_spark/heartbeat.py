"""Heartbeats: a query tells its coordinator that it is caught up and found no new data.

The evidence is Spark's own: its idle event says that a trigger looked and found nothing, and when. Only that moment is
reported, in the coordinator's time; a query that waits for its next trigger has observed nothing since, and nothing is
claimed for it.
"""

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


class Heartbeat(StreamingQueryListener):
    """Listens for one query, and speaks from a thread of its own: Spark's event bus must not wait for a network."""

    def __init__(self, spark: SparkSession, delivery: Delivery) -> None:
        self._spark, self._delivery = spark, delivery
        self._spark_run_id: str | None = None
        self._run: dict[str, str] = {}
        self._finished: int | None = None
        self._idle: queue.SimpleQueue[Idle | None] = queue.SimpleQueue()

    def listen_to(self, query: StreamingQuery) -> None:
        """Begins to speak for this run of the query."""
        # Not from the checkpoint, which a client of Spark Connect may not be able to read.
        self._run = self._delivery.run(str(query.id))
        self._spark_run_id = str(query.runId)
        threading.Thread(target=self._speak, name=f"tidegate-heartbeat-{self._delivery.query}", daemon=True).start()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        # Only of a batch that ran: the progress of a look that found nothing bears the number of the next one.
        if str(event.progress.runId) == self._spark_run_id and "addBatch" in event.progress.durationMs:
            self._finished = event.progress.batchId

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        if str(event.runId) == self._spark_run_id:
            at = datetime.fromisoformat(event.timestamp.replace("Z", "+00:00"))
            self._idle.put(Idle(at.timestamp(), self._finished))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if str(event.runId) == self._spark_run_id:
            self._idle.put(None)

    def _speak(self) -> None:
        delivery = self._delivery
        while (idle := self._newest()) is not None:
            if idle.after_batch is None and delivery.behind:
                continue  # what an earlier run saw is still untold, so that its end proves no silence
            age_s = max(0.0, time.time() - idle.at_s)
            try:
                delivery.coordinator.heartbeat(delivery.query, self._run, age_s, idle.after_batch)
            except TidegateError as error:
                # Not repeated: the next idle event carries the same news, and better.
                delivery.log.warning("heartbeat not taken: %s", error)
        delivery.close()
        self._spark.streams.removeListener(self)

    def _newest(self) -> "Idle | None":
        """The latest of the idle events that came in, waiting for one; None at the end of the query."""
        newest = self._idle.get()
        while newest is not None and not self._idle.empty():
            newest = self._idle.get()
        return newest


@dataclass(frozen=True, slots=True)
class Idle:
    """Spark looked at a moment (Unix time, in seconds) and found nothing after the last batch that it finished."""

    at_s: float
    after_batch: int | None
