"""The trigger of a native query, for versions of Spark that run ``availableNow`` as a single batch.

Before version 4.2, Spark runs ``availableNow`` as a single batch if one of the sources is written in Python. The source
reports a batch when Spark plans the next one, so a single-batch run would end unreported. If the job was then
completed, the windows of that run would never close. A source cannot read the trigger, so a listener records it.
"""

import atexit
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from tidegate_spark.errors import InvalidUsage
from tidegate_spark.protocol.checkpoint import Checkpoint

TRIGGER = "trigger"
"""Name of the document that records the trigger of a run of a native input."""

_listeners: dict[tuple[int, str, str], "Triggers"] = {}


def write_triggers(spark: SparkSession, checkpoint: str, query: str, documents: Checkpoint) -> None:
    """Record the trigger of each run on a checkpoint, until the program ends."""
    of = id(spark), checkpoint, query
    if of not in _listeners:
        _listeners[of] = listener = Triggers(spark, checkpoint, documents)
        spark.streams.addListener(listener)
        # A session may continue after the program, and would then still call the listener.
        atexit.register(spark.streams.removeListener, listener)


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


class Triggers(StreamingQueryListener):
    """A listener that records the trigger of each run on one checkpoint, before the first batch of the run."""

    def __init__(self, spark: SparkSession, checkpoint: str, documents: Checkpoint) -> None:
        self._spark, self._checkpoint, self._documents = spark, checkpoint, documents

    def onQueryStarted(self, event: Any) -> None:
        checkpoint, query_id = Checkpoint(self._checkpoint), str(event.id)
        if checkpoint.started() and checkpoint.query_id == query_id:
            query: Any = self._spark.streams.get(query_id)
            trigger = query._jsq.streamingQuery().trigger().toString()
            self._documents.write(TRIGGER, {"trigger": trigger, "version": self._spark.version})

    def onQueryProgress(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass
