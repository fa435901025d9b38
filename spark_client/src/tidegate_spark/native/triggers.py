"""Detection of native queries that Spark runs as a single batch under ``availableNow``; the source refuses them.

Before version 4.2 Spark executes ``availableNow`` as a single batch where one of the sources is in Python. The source
reports a batch when Spark plans the next one, so a single-batch run would end unreported. If the job is then completed,
the windows of that run would never close. Spark does not tell a source the trigger.
"""

import atexit
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from tidegate_spark.checkpoint import Checkpoint

SINGLE_BATCH = "single_batch"
"""The document that refuses a run, among those of a native input."""


class SingleBatchRuns(StreamingQueryListener):
    """Marks runs of this checkpoint under ``availableNow`` by a document; a run under another trigger deletes it.

    Spark calls it before the query plans its first batch.
    """

    def __init__(self, spark: SparkSession, checkpoint: str, documents: Checkpoint) -> None:
        self._spark, self._checkpoint, self._documents = spark, checkpoint, documents

    def listen(self) -> None:
        """Listen until the program ends."""
        self._spark.streams.addListener(self)
        # A session may outlive the program, and would go on to call it.
        atexit.register(self._spark.streams.removeListener, self)

    def onQueryStarted(self, event: Any) -> None:
        checkpoint, query_id = Checkpoint(self._checkpoint), str(event.id)
        if not checkpoint.started() or checkpoint.query_id != query_id:
            return
        query: Any = self._spark.streams.get(query_id)
        trigger = query._jsq.streamingQuery().trigger().toString()
        if trigger == "AvailableNowTrigger":
            self._documents.write(SINGLE_BATCH, {"version": self._spark.version})
        else:
            self._documents.delete(SINGLE_BATCH)

    def onQueryProgress(self, event: Any) -> None:
        pass

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass
