"""The evidence of silence in the offsets of a running query.

In the driver of a classic session, the client reads the offsets of each batch before the batch begins
(:class:`DriverEvidenceReader`). Under Spark Connect and in a native query, it reads the progress after each batch
(:class:`ProgressEvidenceReader`).
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import SourceProgress

from tidegate_spark.logs import QueryLog
from tidegate_spark.protocol.evidence import NOTHING_KNOWN, BatchInput, BatchOffsets, Evidence, ProcessingTime
from tidegate_spark.sources.brokers import Brokers, with_ends
from tidegate_spark.sources.offsets import (
    LatestOffsets,
    Partition,
    PartitionNames,
    SourceOffsets,
    batch_offsets,
    input_of,
    partitions_of,
    partitions_read,
)
from tidegate_spark.sources.plan import StreamSources

_TELLS = "org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl"
"""The interface of sources that may tell their latest offset."""

_FILES = "FileStreamSource"
_TABLES = ("DeltaSource", "SparkMicroBatchStream")
"""Names of the sources of Delta Lake and Apache Iceberg."""

_NO_LATEST = (None, "null", "None")
"""What PySpark makes of a latest offset that the source does not tell: Spark Connect and classic sessions differ."""

_COMPLETE = ("MemoryStream", "RateStream", "RatePerMicroBatch", "TextSocket")
"""Beginnings of the names of sources whose batches contain all input."""


ATTEMPTS = 3
"""Number of batches in a row after which the client no longer asks Kafka, because it got no answer."""


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
        """Return whether a table has a file after the end of the batch: ask as Spark does for the next batch.

        Delta Lake sorts all files of the first version for each question. The offset tells that more of them follow.
        """
        if json.loads(str(end.get().json())).get("isStartingVersion"):
            return True
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
        sources: What the plan of the stream tells about its sources.
        names: The names of the substreams that are partitions of Kafka; None if they are not.
        brokers: The brokers of Kafka; None without Kafka, or if its sources have several brokers.
        log: The log of the query.
        is_stopped: A function that returns whether the query was stopped.
        now: A function that returns the processing time.
    """

    def __init__(
        self,
        offsets: QueryOffsets,
        sources: StreamSources,
        names: PartitionNames | None,
        brokers: Brokers | None,
        log: QueryLog,
        is_stopped: Callable[[], bool],
        now: Callable[[], ProcessingTime],
    ) -> None:
        self._offsets, self._names, self._brokers = offsets, names, brokers
        # With committed records only, an open transaction is input that Spark does not tell.
        self._reads_committed, self._reads_on = sources.reads_committed, sources.reads_on
        self._log, self._is_stopped, self._now = log, is_stopped, now
        self._ends_before: tuple[ProcessingTime | None, Mapping[Partition, int]] = None, {}
        self._past = LatestOffsets()
        self._has_failed = False
        self._firsts_fail = 0

    def of_batch(self) -> BatchInput:
        """Return what the running batch and earlier batches contain."""
        return self._read(is_idle=False)

    def of_progress(self, batch_id: int, sources: Iterable[SourceProgress]) -> BatchInput:
        """Return nothing: the begin of the batch has contributed its evidence, and its commit the offsets."""
        return NOTHING_KNOWN

    def when_idle(self) -> Evidence | None:
        """Return what the finished batches contain, after a trigger without a batch; None if nothing is proven."""
        return self._read(is_idle=True).evidence

    def close(self) -> None:
        """Close the client of Kafka, because the query has ended."""
        if self._brokers is not None:
            self._brokers.close()

    def _read(self, is_idle: bool) -> BatchInput:
        try:
            now, at, in_transaction = self._now(), None, frozenset[Partition]()
            sources = self._offsets.read(is_idle)
            if self._brokers is not None and self._reads_committed:
                sources, at, in_transaction = self._with_ends(self._brokers, now, sources, is_idle)
            found = input_of(partitions_read(sources, is_idle=is_idle), self._names)
            if self._reads_committed and self._brokers is None:
                return replace(found, evidence=None)
            if found.evidence is not None:
                found = replace(found, evidence=replace(found.evidence, at=at))
            if is_idle:
                return found
            return replace(found, offsets=self._offsets_of(sources, now.at_s, in_transaction))
        except Exception:  # noqa: BLE001 - the methods of Spark are not public, and any of them may be missing
            if not self._has_failed and not self._is_stopped():
                self._log.warning(
                    "the client cannot read the offsets of this query, so silent substreams hold the watermark",
                    exc_info=True,
                )
            self._has_failed = True
            return NOTHING_KNOWN

    def _with_ends(
        self, brokers: Brokers, now: ProcessingTime, sources: list[SourceOffsets], is_idle: bool
    ) -> tuple[list[SourceOffsets], ProcessingTime | None, frozenset[Partition]]:
        """Return the offsets with the ends of partitions, the time of these ends, and partitions in transactions.

        Records may arrive after Spark has planned a batch, and an open transaction may be committed. Therefore a batch
        is compared with the ends that were read before it was planned: for the batch before.
        """
        ends = brokers.ends(_partitions(sources))
        before_at, before = self._ends_before
        self._ends_before = now, ends
        if is_idle or before_at is None:
            return [with_ends(source, ends) for source in sources], None, frozenset()
        latest = {
            partition: offset for each in sources for partition, offset in (partitions_of(each.latest) or {}).items()
        }
        in_transaction = {partition for partition, offset in latest.items() if before.get(partition, 0) > offset}
        return [with_ends(source, before) for source in sources], before_at, frozenset(in_transaction)

    def _offsets_of(
        self, sources: list[SourceOffsets], at_s: float, in_transaction: frozenset[Partition]
    ) -> BatchOffsets | None:
        """Return the offsets of a batch. They are no evidence, so a failure leaves them unknown."""
        firsts: Mapping[Partition, int] = {}
        try:
            # A source that does not read on after deleted records fails the query.
            if self._brokers is not None and self._reads_on and self._firsts_fail < ATTEMPTS:
                firsts = self._brokers.firsts(_partitions(sources))
                self._firsts_fail = 0
        except Exception:  # noqa: BLE001 - of the JVM
            self._firsts_fail += 1
            if self._firsts_fail == ATTEMPTS and not self._is_stopped():
                self._log.warning("the client cannot ask Kafka which records it has deleted", exc_info=True)
        return batch_offsets(sources, self._past, at_s, firsts, in_transaction, self._names)


def _partitions(sources: Iterable[SourceOffsets]) -> set[Partition]:
    return {partition for source in sources for partition in partitions_of(source.end) or {}}


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
        self._past = LatestOffsets()

    def of_progress(self, batch_id: int, sources: Iterable[SourceProgress]) -> BatchInput:
        """Return what a finished batch and earlier batches contain.

        Args:
            batch_id: The batch.
            sources: The progress of the sources. Each latest offset is the one by which Spark planned the batch.
        """
        read = self._offsets(sources)
        # With another source of Kafka in the query, the partitions may be those of other substreams.
        names = self._names if sum(partitions_of(each.end) is not None for each in read) <= 1 else None
        offsets = batch_offsets(read, self._past, time.time(), {}, substreams=names)
        told = None if offsets is None else replace(offsets, batch_id=batch_id)
        return replace(input_of(partitions_read(read), names), offsets=told)

    def _offsets(self, sources: Iterable[SourceProgress]) -> list[SourceOffsets]:
        return [
            SourceOffsets(
                source.endOffset,
                None if source.latestOffset in _NO_LATEST else source.latestOffset,
                None if source.startOffset in _NO_LATEST else source.startOffset,
                is_complete=is_complete(source.description, self._sources),
            )
            for source in sources
        ]

    def when_idle(self) -> Evidence | None:
        """Return what the finished batches contain, after a trigger without a batch; None if nothing is proven.

        Under ``minOffsetsPerTrigger``, Spark is also idle if Kafka has less input than the minimum for a batch.
        """
        return None if self._sources.has_minimum else Evidence()

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


EvidenceReader = DriverEvidenceReader | ProgressEvidenceReader
