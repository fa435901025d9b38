"""The listener to a native query in the driver's program. It writes documents that the source of markers reads.

The source runs in a process of its own, which sees neither the trigger of the query nor the offsets of its sources.

- **The trigger.** Before version 4.2, Spark runs ``availableNow`` as a single batch if one of the sources is written in
  Python. The source reports a batch when Spark plans the next one, so a single-batch run would end unreported. If the
  job was then completed, the windows of that run would never close.
- **What the offsets tell** in the progress of a batch: the substreams that are caught up, and the partitions.
"""

import atexit
import queue
import threading
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import SourceProgress, StreamingQueryListener

from tidegate_spark.errors import InvalidUsage
from tidegate_spark.logs import QueryLog
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.sources.running import ProgressEvidenceReader, unix_s
from tidegate_spark.spark_session import AVAILABLE_NOW_OF_PYTHON_SOURCES, version_of

TRIGGER = "trigger"
"""Name of the document that records the trigger of a run of a native input."""

CAUGHT_UP = "caught_up"
"""Name of the document with what the offsets of the latest batch tell."""

PAUSE_S = 1.0
"""Pause in seconds between two documents with evidence."""

_listeners: dict[tuple[int, str, str], "NativeListener"] = {}


def listen(
    spark: SparkSession, checkpoint: str, documents: Checkpoint, evidence: ProgressEvidenceReader | None, log: QueryLog
) -> None:
    """Listen to each run on a checkpoint, until the program ends.

    Args:
        spark: The session, which is not one of Spark Connect.
        checkpoint: The checkpoint of the query.
        documents: The documents of the native input.
        evidence: The evidence in the progress of the query; None if the source of markers needs none.
        log: The log of the query.
    """
    records_trigger = version_of(spark) < AVAILABLE_NOW_OF_PYTHON_SOURCES
    of = id(spark), checkpoint, documents.folder
    if before := _listeners.pop(of, None):
        before.leave()
    if records_trigger or evidence is not None:
        _listeners[of] = NativeListener(spark, checkpoint, documents, evidence, records_trigger, log)


def check_trigger(documents: Checkpoint) -> None:
    """Raise InvalidUsage if the trigger of the new run is unknown, or Spark would run it as a single batch."""
    document = documents.read(TRIGGER)
    if document is None:
        raise InvalidUsage(
            "The trigger of this query is unknown: the client could not write it to the checkpoint. See the log of "
            "Spark's driver, and start the query again."
        )
    documents.delete(TRIGGER)
    if document["trigger"] == "AvailableNowTrigger":
        raise InvalidUsage(
            f"with_watermark() does not support trigger(availableNow=True) on Spark {document['version']}, which runs "
            "a single batch: use Spark 4.2 or later, or a processing-time trigger with query.processAllAvailable() and "
            "query.stop()."
        )


@dataclass(frozen=True, slots=True)
class WrittenEvidence:
    """What the offsets of a batch tell, as the listener has written it.

    Attributes:
        batch_id: The batch.
        at_s: Unix time at which Spark began to plan the batch.
        caught_up: Whether there is evidence.
        substreams: The substreams that were caught up; None: all substreams of the query.
        partitions: The substreams that are partitions of the source, also those without a row.
        offsets: The offsets of the batch in the partitions of Kafka, as a document; None if they are not known.
    """

    batch_id: int
    at_s: float
    caught_up: bool
    substreams: list[str] | None
    partitions: list[str]
    offsets: dict[str, Any] | None = None

    @classmethod
    def read(cls, documents: Checkpoint) -> "WrittenEvidence | None":
        """Return the latest evidence; None if the listener has not written any."""
        document = documents.read(CAUGHT_UP)
        return None if document is None else cls(**document)

    def write(self, documents: Checkpoint) -> None:
        """Replace the latest evidence."""
        documents.write(CAUGHT_UP, asdict(self))


class NativeListener(StreamingQueryListener):
    """A listener that writes the trigger of each run on one checkpoint before its first batch, and the evidence.

    It writes the evidence on its own thread, so that Spark's event bus does not wait for the file system. Its methods
    take the events of the JVM: PySpark would convert the whole progress of each batch in about 400 calls.
    """

    class Java:
        """The interface that the JVM calls."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: str,
        documents: Checkpoint,
        evidence: ProgressEvidenceReader | None,
        records_trigger: bool,
        log: QueryLog,
    ) -> None:
        self._spark, self._checkpoint, self._documents = spark, checkpoint, documents
        self._evidence, self._records_trigger, self._log = evidence, records_trigger, log
        self._query_id: str | None = None
        self._waiting: queue.SimpleQueue[WrittenEvidence | None] = queue.SimpleQueue()
        spark.streams.addListener(self)
        # A session may continue after the program, and would then still call the listener.
        atexit.register(self.leave)
        if evidence is not None:
            threading.Thread(target=self._write, name="tidegate-native-evidence", daemon=True).start()

    @cached_property
    def _jlistener(self) -> Any:
        """The object that PySpark registers in the JVM."""
        jvm: Any = self._spark.sparkContext._jvm
        return jvm.PythonStreamingQueryListenerWrapper(self)

    def leave(self) -> None:
        """Remove the listener."""
        self._spark.streams.removeListener(self)
        atexit.unregister(self.leave)
        self._waiting.put(None)

    def onQueryStarted(self, event: Any) -> None:
        checkpoint, query_id = Checkpoint(self._checkpoint), str(event.id().toString())
        if not checkpoint.started() or checkpoint.query_id != query_id:
            return
        self._query_id = query_id
        if self._records_trigger:
            query: Any = self._spark.streams.get(query_id)
            trigger = query._jsq.streamingQuery().trigger().toString()
            self._documents.write(TRIGGER, {"trigger": trigger, "version": self._spark.version})

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress()
        if self._evidence is None or str(progress.id().toString()) != self._query_id:
            return
        if not progress.durationMs().containsKey("addBatch"):
            return
        sources = [SourceProgress.fromJObject(each) for each in progress.sources()]
        batch_input = self._evidence.of_progress(progress.batchId(), sources)
        of = None if batch_input.evidence is None else batch_input.evidence.substreams
        self._waiting.put(
            WrittenEvidence(
                progress.batchId(),
                unix_s(str(progress.timestamp())),
                batch_input.evidence is not None,
                None if of is None else sorted(of),
                sorted(batch_input.partitions),
                None if batch_input.offsets is None else asdict(batch_input.offsets),
            )
        )

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass

    def _write(self) -> None:
        has_failed = False
        while (latest := self._waiting.get()) is not None:
            while not self._waiting.empty():
                if (newer := self._waiting.get()) is None:
                    return
                latest = newer
            try:
                latest.write(self._documents)
            except Exception:  # noqa: BLE001 - mostly of the file system, which may recover; the thread must go on
                if not has_failed:
                    self._log.exception(
                        "the evidence of silence cannot be written; silent substreams hold the watermark"
                    )
                has_failed = True
            time.sleep(PAUSE_S)
