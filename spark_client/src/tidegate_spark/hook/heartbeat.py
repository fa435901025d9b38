"""The listener to Spark's events that sends the heartbeats of one query: evidence that the query is caught up.

The evidence is Spark's idle event: a trigger found no new data. The heartbeat reports the time of this event, because a
query that waits for its next trigger observes no input. Under Spark Connect, the progress of a batch is evidence, too:
it has the offsets, which the batch function cannot read, and the heartbeat tells them.
"""

import atexit
import queue
import threading
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from tidegate_spark.errors import TidegateError
from tidegate_spark.hook.publishing import WatermarkPublisher
from tidegate_spark.logs import HEARTBEATS_FAIL, FailureLog
from tidegate_spark.protocol.evidence import NOTHING_KNOWN, BatchInput
from tidegate_spark.protocol.session import DriverSession
from tidegate_spark.sources.running import EvidenceReader, unix_s


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a run."""

    run_id: str


class Terminated(Event):
    """The run has terminated."""


@dataclass(frozen=True, slots=True)
class Finished(Event):
    """The run has finished a batch, which Spark planned at ``at_s`` (Unix time) or later.

    ``told`` is what its progress tells; nothing if the calls about the batch have told it.
    """

    batch_id: int
    at_s: float = 0.0
    told: BatchInput = NOTHING_KNOWN


@dataclass(frozen=True, slots=True)
class Idle(Event):
    """A trigger found no new data at ``at_s`` (Unix time)."""

    at_s: float


class _FromJvm:
    """An adapter through which the JVM calls the listener.

    PySpark's own adapter converts the whole progress of each batch of each query, in about 400 calls to the JVM.
    """

    def __init__(self, listener: "HeartbeatListener") -> None:
        self._listener = listener

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress()
        if progress.durationMs().containsKey("addBatch"):
            self._listener.put(Finished(progress.runId().toString(), progress.batchId()))

    def onQueryIdle(self, event: Any) -> None:
        self._listener.onQueryIdle(QueryIdleEvent.fromJObject(event))

    def onQueryTerminated(self, event: Any) -> None:
        self._listener.put(Terminated(event.runId().toString()))

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


class HeartbeatListener(StreamingQueryListener):
    """A listener that sends heartbeats on its own thread, so that Spark's event bus never waits for HTTP."""

    def __init__(
        self,
        spark: SparkSession,
        session: DriverSession,
        evidence: EvidenceReader,
        publisher: WatermarkPublisher | None = None,
    ) -> None:
        self._spark, self._session, self._evidence, self._publisher = spark, session, evidence, publisher
        # The id of the run is unknown until the query has started. Until then, keep the events of all runs.
        self._run_id: str | None = None
        # The last batch that Spark has finished; None if it has finished none. Until the batch is known, send no
        # heartbeat: earlier runs may have read input that is not reported.
        self._finished: int | None = None
        self._knows_finished = False
        self._failures = FailureLog(session.log, *HEARTBEATS_FAIL)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def listen_to(self, query: StreamingQuery) -> None:
        """Start to send heartbeats for this run of the query."""
        # A Spark Connect client may be unable to read the id from the checkpoint.
        self._session.calls.query_id = str(query.id)
        self._run_id = str(query.runId)
        name = f"tidegate-heartbeat-{query.name}"
        threading.Thread(target=self._handle_events, args=(self._run_id,), name=name, daemon=True).start()
        # If the program ends without stopping Spark, Spark must not keep a listener of an ended process.
        atexit.register(self.leave)

    @cached_property
    def _jlistener(self) -> Any:
        """The object that PySpark registers in the JVM, unless the session uses Spark Connect."""
        jvm: Any = self._spark.sparkContext._jvm
        return jvm.PythonStreamingQueryListenerWrapper(_FromJvm(self))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        # If "addBatch" is missing, no batch ran. The progress then has the number of the next batch.
        progress = event.progress
        if "addBatch" in progress.durationMs:
            told = self._evidence.of_progress(progress.batchId, progress.sources)
            self.put(Finished(str(progress.runId), progress.batchId, unix_s(progress.timestamp), told))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self.put(Idle(str(event.runId), unix_s(event.timestamp)))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.put(Terminated(str(event.runId)))

    def put(self, event: Event) -> None:
        """Enqueue an event, unless it belongs to another run."""
        if self._run_id in (None, event.run_id):
            self._events.put(event)

    def leave(self) -> None:
        """Remove the listener."""
        self._spark.streams.removeListener(self)

    def _handle_events(self, run_id: str) -> None:
        unsent: Finished | None = None  # the last batch, if later events were waiting
        while not isinstance(event := self._next(run_id), Terminated):
            if isinstance(event, Finished):
                self._finished, self._knows_finished = event.batch_id, True
                unsent = None if event.told == NOTHING_KNOWN else event
                if unsent is not None and self._events.empty():
                    self._send(unsent.at_s, unsent.told)
                    unsent = None
            elif isinstance(event, Idle) and self._events.empty():
                offsets = None if unsent is None else unsent.told.offsets
                self._send(event.at_s, BatchInput(self._evidence.when_idle(), offsets=offsets))
                unsent = None
        if unsent is not None:
            self._send(unsent.at_s, unsent.told)
        self._session.close()
        self._evidence.close()
        if self._publisher is not None:
            self._publisher.close()
        self.leave()
        atexit.unregister(self.leave)

    def _next(self, run_id: str) -> Event:
        while (event := self._events.get()).run_id != run_id:
            pass
        return event

    def _send(self, at_s: float, told: BatchInput) -> None:
        """Send a heartbeat. Without evidence and offsets, it only tells that the query is alive."""
        # A failed heartbeat is not retried: the next event carries newer evidence.
        try:
            checkpoint = self._session.checkpoint
            if not self._knows_finished:
                if not checkpoint.started():
                    return
                self._finished, self._knows_finished = checkpoint.finished(), True
            age_s = max(0.0, time.time() - at_s)
            answer = self._session.run(
                self._session.protocol.heartbeat(age_s, self._finished, told.evidence, told.offsets)
            )
            # The windows of a query are written by its batches only, which publish their watermark.
            if answer is not None and self._publisher is not None and not self._session.settings.tells_output:
                self._publisher.offer(answer["watermark"], answer["incarnation"])
        except (TidegateError, OSError) as error:  # an OSError comes from the checkpoint's file system
            self._failures.failed(error)
        else:
            self._failures.succeeded()
