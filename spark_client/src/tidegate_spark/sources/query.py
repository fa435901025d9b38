"""The offsets of a running query, from Spark's driver. Spark Connect does not give them."""

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from tidegate_spark.logs import QueryLog
from tidegate_spark.sources.offsets import InputRead, PartitionNames, SourceOffsets, evidence_of

_TELLS = "org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl"
"""The interface of sources that may tell their latest offset."""


class QueryOffsets:
    """The offsets of the sources of a running query."""

    def __init__(self, spark: SparkSession, query: str) -> None:
        self._spark, self._query = spark, query
        self._execution: Any = None
        self._tells: dict[str, bool] = {}

    def read(self) -> list[SourceOffsets]:
        """Return the offsets of each source; an empty list if the query is not running.

        Take a few milliseconds. Read the latest offset first: if the end and the committed offset are the same, no
        batch was planned in between.
        """
        execution = self._execution = self._execution or self._find()
        if execution is None:
            return []
        found, sources = [], execution.sources()
        for index in range(sources.size()):
            source = sources.apply(index)
            latest = self._latest(source)
            end, committed = (
                progress.get(source) for progress in (execution.availableOffsets(), execution.committedOffsets())
            )
            found.append(SourceOffsets(_json(end), latest, _json(committed)))
        return found

    def _find(self) -> Any:
        """Return Spark's execution of the query. A query is active before its first batch."""
        session: Any = self._spark._jsparkSession
        for query in session.streams().active():
            if query.name() == self._query:
                is_wrapper = str(query.getClass().getSimpleName()).endswith("Wrapper")
                return query.streamingQuery() if is_wrapper else query
        return None

    def _latest(self, source: Any) -> str | None:
        kind = str(source.getClass().getName())
        if kind not in self._tells:
            jvm: Any = self._spark._jvm
            self._tells[kind] = bool(jvm.java.lang.Class.forName(_TELLS).isInstance(source))
        if not self._tells[kind]:
            return None
        try:
            latest = source.reportLatestOffset()
        except Exception as error:
            if "NullPointerException" in str(error):  # Kafka's source, until Spark has asked Kafka
                return None
            raise
        return None if latest is None else str(latest.json())


def _json(offset: Any) -> str | None:
    """Return the offset in an Option of Scala as JSON; None if it is empty."""
    return str(offset.get().json()) if offset.isDefined() else None


class ReadInput:
    """The input that a query has read, as the offsets of its sources prove it.

    Args:
        offsets: The offsets of the query.
        names: The names of the substreams that are partitions of Kafka; None if they are not.
        log: The log of the query.
        is_stopped: A function that returns whether the query was stopped.
    """

    def __init__(
        self, offsets: QueryOffsets, names: PartitionNames | None, log: QueryLog, is_stopped: Callable[[], bool]
    ) -> None:
        self._offsets, self._names, self._log, self._is_stopped = offsets, names, log, is_stopped
        self._has_failed = False

    def of_batch(self) -> InputRead | None:
        """Return the input that the running batch and earlier batches contain; None if the sources do not tell."""
        return self._read(committed=False)

    def when_idle(self) -> InputRead | None:
        """Return the input that the finished batches contain; None if the sources do not tell."""
        return self._read(committed=True)

    def _read(self, committed: bool) -> InputRead | None:
        try:
            return InputRead.of(evidence_of(self._offsets.read(), committed=committed), self._names)
        except Exception:  # noqa: BLE001 - the methods of Spark are not public, and any of them may be missing
            if not self._has_failed and not self._is_stopped():
                self._log.warning(
                    "the client cannot read the offsets of this query, so silent substreams hold the watermark",
                    exc_info=True,
                )
            self._has_failed = True
            return InputRead(frozenset())
