"""The evidence of silence in the offsets of a running query.

In the driver of a classic session, the client reads the offsets of each batch before the batch begins
(:class:`DriverEvidenceReader`). Under Spark Connect and in a native query, it reads the progress after each batch
(:class:`ProgressEvidenceReader`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import SourceProgress

from tidegate_spark.logs import QueryLog
from tidegate_spark.protocol.evidence import NOTHING_KNOWN, BatchInput, Evidence, ProcessingTime
from tidegate_spark.sources.offsets import (
    Partition,
    PartitionNames,
    SourceOffsets,
    input_of,
    partitions_of,
    partitions_read,
)
from tidegate_spark.sources.plan import StreamSources
from tidegate_spark.sources.transactions import PartitionEnds, with_ends

_TELLS = "org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl"
"""The interface of sources that may tell their latest offset."""

_FILES = "FileStreamSource"
_TABLES = ("DeltaSource", "SparkMicroBatchStream")
"""Names of the sources of Delta Lake and Apache Iceberg."""

_NO_LATEST = (None, "null", "None")
"""What PySpark makes of a latest offset that the source does not tell: Spark Connect and classic sessions differ."""

_COMPLETE = ("MemoryStream", "RateStream", "RatePerMicroBatch", "TextSocket")
"""Beginnings of the names of sources whose batches contain all input."""


def is_complete(source: str, sources: StreamSources) -> bool:
    """Return whether each batch of a source contains all input, given the name of its class or its description."""
    if sources.are_complete or source.startswith(_COMPLETE):
        return True
    return source.startswith(_FILES) and not sources.has_file_limit


class QueryOffsets:
    """The offsets of the sources of a running query, from Spark's driver."""

    def __init__(self, spark: SparkSession, query: str, sources: StreamSources) -> None:
        self._spark, self._query, self._sources = spark, query, sources
        self._execution: Any = None
        self._tells: dict[str, bool] = {}

    def read(self, is_idle: bool = False) -> list[SourceOffsets]:
        """Return the offsets of each source; an empty list if the query is not running.

        Unless a trigger has found no input, ask tables whether they have more input than the batch contains. Take a
        few milliseconds. Read the latest offset first: if the end and the committed offset are the same, no
        batch was planned in between.
        """
        execution = self._execution = self._execution or self._find()
        if execution is None:
            return []
        found, sources = [], execution.sources()
        for index in range(sources.size()):
            source = sources.apply(index)
            kind = source.getClass()
            latest = self._latest(source, str(kind.getName()))
            end, committed = (
                progress.get(source) for progress in (execution.availableOffsets(), execution.committedOffsets())
            )
            name = str(kind.getSimpleName())
            complete = is_complete(name, self._sources)
            if name in _TABLES and end.isDefined() and not is_idle and not complete:
                complete = not self._has_more(source, end)
            found.append(SourceOffsets(_json(end), latest, _json(committed), complete))
        return found

    def _has_more(self, source: Any, end: Any) -> bool:
        """Return whether a table has a file after the end of the batch: ask as Spark does for the next batch."""
        jvm: Any = self._spark._jvm
        one_file = jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.maxFiles(1)
        following = source.latestOffset(end.get(), one_file)
        return following is not None and following.json() != end.get().json()

    def _find(self) -> Any:
        """Return Spark's execution of the query. A query is active before its first batch."""
        session: Any = self._spark._jsparkSession
        for query in session.streams().active():
            if query.name() == self._query:
                is_wrapper = str(query.getClass().getSimpleName()).endswith("Wrapper")
                return query.streamingQuery() if is_wrapper else query
        return None

    def _latest(self, source: Any, kind: str) -> str | None:
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
            if "does not exist" in str(error):  # py4j finds no default method of an interface on some classes
                self._tells[kind] = False
                return None
            raise
        return None if latest is None else str(latest.json())


def _json(offset: Any) -> str | None:
    """Return the offset in an Option of Scala as JSON; None if it is empty."""
    return str(offset.get().json()) if offset.isDefined() else None


class DriverEvidenceReader:
    """The evidence of a query in a classic session.

    Args:
        offsets: The offsets of the query.
        names: The names of the substreams that are partitions of Kafka; None if they are not.
        ends: The ends of partitions with open transactions; None if the source reads uncommitted records.
        log: The log of the query.
        is_stopped: A function that returns whether the query was stopped.
        now: A function that returns the processing time.
    """

    def __init__(
        self,
        offsets: QueryOffsets,
        names: PartitionNames | None,
        ends: PartitionEnds | None,
        log: QueryLog,
        is_stopped: Callable[[], bool],
        now: Callable[[], ProcessingTime],
    ) -> None:
        self._offsets, self._names, self._ends, self._log = offsets, names, ends, log
        self._is_stopped, self._now = is_stopped, now
        self._ends_before: tuple[ProcessingTime | None, Mapping[Partition, int]] = None, {}
        self._has_failed = False

    def of_batch(self) -> BatchInput:
        """Return what the running batch and earlier batches contain."""
        return self._read(is_idle=False)

    def of_progress(self, sources: Iterable[SourceProgress]) -> BatchInput:
        """Return nothing: the begin of the batch has contributed its evidence."""
        return NOTHING_KNOWN

    def when_idle(self) -> Evidence | None:
        """Return what the finished batches contain, after a trigger without a batch; None if nothing is proven."""
        return self._read(is_idle=True).evidence

    def close(self) -> None:
        """Close the client of Kafka, because the query has ended."""
        if self._ends is not None:
            self._ends.close()

    def _read(self, is_idle: bool) -> BatchInput:
        try:
            sources, at = self._offsets.read(is_idle), None
            if self._ends is not None:
                sources, at = self._with_ends(self._ends, sources, is_idle)
            found = input_of(partitions_read(sources, is_idle=is_idle), self._names)
            return found if found.evidence is None else replace(found, evidence=replace(found.evidence, at=at))
        except Exception:  # noqa: BLE001 - the methods of Spark are not public, and any of them may be missing
            if not self._has_failed and not self._is_stopped():
                self._log.warning(
                    "the client cannot read the offsets of this query, so silent substreams hold the watermark",
                    exc_info=True,
                )
            self._has_failed = True
            return NOTHING_KNOWN

    def _with_ends(
        self, read: PartitionEnds, sources: list[SourceOffsets], is_idle: bool
    ) -> tuple[list[SourceOffsets], ProcessingTime | None]:
        """Return the offsets with the ends of partitions, and the time of these ends.

        Records may arrive after Spark has planned a batch, and an open transaction may be committed. Therefore a batch
        is compared with the ends that were read before it was planned: for the batch before.
        """
        at = self._now()
        partitions = {each for source in sources for each in partitions_of(source.end) or {}}
        ends = read.read(partitions) if partitions else {}
        before_at, before = self._ends_before
        self._ends_before = at, ends
        if is_idle or before_at is None:
            return [with_ends(source, ends) for source in sources], None
        return [with_ends(source, before) for source in sources], before_at


def unix_s(timestamp: str) -> float:
    """Return the Unix time of a timestamp of Spark."""
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()


class ProgressEvidenceReader:
    """The evidence of a query whose batches the client does not see when they begin.

    Args:
        sources: What the plan of the stream tells about its sources.
        names: The names of the substreams that are partitions of Kafka; None if they are not, or it is not known.
    """

    def __init__(self, sources: StreamSources, names: PartitionNames | None) -> None:
        self._sources, self._names = sources, names

    def of_progress(self, sources: Iterable[SourceProgress]) -> BatchInput:
        """Return what a finished batch and earlier batches contain.

        Args:
            sources: The progress of the sources. Each latest offset is the one by which Spark planned the batch.
        """
        found = [
            SourceOffsets(
                source.endOffset,
                None if source.latestOffset in _NO_LATEST else source.latestOffset,
                is_complete=is_complete(source.description, self._sources),
            )
            for source in sources
        ]
        return input_of(partitions_read(found), self._names)

    def when_idle(self) -> Evidence | None:
        """Return what the finished batches contain, after a trigger without a batch; None if nothing is proven.

        Under ``minOffsetsPerTrigger``, Spark is also idle if Kafka has less input than the minimum for a batch.
        """
        return None if self._sources.has_minimum else Evidence()

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


EvidenceReader = DriverEvidenceReader | ProgressEvidenceReader
