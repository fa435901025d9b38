"""The start of a coordinated query."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidegate_spark import days
from tidegate_spark.batch import utc_text
from tidegate_spark.columns import Columns
from tidegate_spark.config import check_id
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.frame import Frame
from tidegate_spark.hook.appends import TableAppends
from tidegate_spark.hook.batch_function import BatchFunction, BatchOptions
from tidegate_spark.hook.handlers import BatchHandler, RowHandler, UserFunction
from tidegate_spark.hook.heartbeat import HeartbeatListener
from tidegate_spark.hook.plan import check_partitions, keeps_partitions, reason_to_persist
from tidegate_spark.hook.publishing import WatermarkPublisher
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.protocol.choices import QueryChoices
from tidegate_spark.protocol.connection import JobConnection
from tidegate_spark.protocol.pinned_watermarks import KEPT, PinnedWatermarks
from tidegate_spark.protocol.registration import IDLE_TIMEOUT
from tidegate_spark.protocol.session import DriverSession
from tidegate_spark.protocol.settings import QuerySettings
from tidegate_spark.sources.brokers import Brokers
from tidegate_spark.sources.plan import StreamSources, partition_names, sources_of
from tidegate_spark.sources.running import DriverEvidenceReader, EvidenceReader, ProgressEvidenceReader, QueryOffsets
from tidegate_spark.spark_session import (
    AVAILABLE_NOW_OF_PYTHON_SOURCES,
    BATCHES_RETAINED,
    IDLE_EVENT_INTERVAL,
    PYTHON_SOURCES,
    add_listener,
    is_connect,
    setting,
    version_of,
)
from tidegate_spark.substreams import SOURCE_PARTITION
from tidegate_spark.tables import table_on
from tidegate_spark.windows.builder import WindowSettings
from tidegate_spark.windows.windowing import Windowing

log = logging.getLogger("tidegate")

HEARTBEAT_MS = 1000
PUBLISH_EVERY_S = 10.0
"""Shortest time in seconds between two watermarks that are published in a table."""
CHECKED_DAYS = 25_000
"""Number of days from 1970 on whose boundaries in Python are compared with those in Spark: until June 2038."""


@dataclass(frozen=True)
class StreamOptions(BatchOptions):
    """The options of a stream; :class:`Stream` describes them."""

    function: UserFunction | None = None
    windowed: WindowSettings | None = None
    declared: tuple[str, ...] = ()
    complete_batches: bool = False
    heartbeat_ms: int = HEARTBEAT_MS
    published_in: tuple[str, ...] = ()
    publish_every_s: float = PUBLISH_EVERY_S
    trigger: Mapping[str, Any] = field(default_factory=dict)
    writer: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class QueryStart:
    """One start of a query."""

    connection: JobConnection
    df: DataFrame
    columns: Columns
    options: StreamOptions
    query: str
    checkpoint: Checkpoint
    replaces_substreams: bool

    def start(self) -> StreamingQuery:
        """Start the query; see :meth:`Stream.start`."""
        spark, options = self.df.sparkSession, self.options
        sources = sources_of(self.df, options.complete_batches, asks=not is_connect(spark))
        session = DriverSession(self._settings(sources), self.checkpoint, owns_files=not is_connect(spark))
        of_timestamps = self.columns.are_timestamps(self.df)
        batch_options = replace(options, persist=self._persists())
        evidence = self._evidence(session, sources)
        of_batch = evidence if isinstance(evidence, DriverEvidenceReader) else None
        appends = TableAppends(session)
        publisher = self._publisher(session)
        handler = self._handler(appends)
        function = BatchFunction(
            session,
            self.columns,
            handler,
            batch_options,
            of_timestamps,
            appends,
            publisher,
            of_batch,
            self._may_have_fewer_tasks(sources),
        )
        check_partitions(session.log, self.columns, self.df)
        if options.windowed is not None:
            check_days(spark, options.windowed.frame)
        # Under Spark Connect, another process reads the checkpoint.
        finished = None if is_connect(spark) or not self.checkpoint.started() else self.checkpoint.finished()
        written = None if finished is None else handler.written_before(finished + 1)
        session.run(session.protocol.start())
        if sources.unknown and session.protocol.registration.config.get(IDLE_TIMEOUT):
            session.log.warning(
                "a batch may lack input of the source %s. A silent substream therefore becomes idle only if a trigger "
                "finds no new data; until then, it holds the watermark. If each batch contains all input, call "
                "complete_batches().",
                ", ".join(sources.unknown),
            )
        writer = self._writer(function)
        listener = HeartbeatListener(spark, session, evidence, publisher)
        add_listener(spark, listener)
        try:
            # A query copies the session's settings when it starts.
            with setting(spark, IDLE_EVENT_INTERVAL, f"{options.heartbeat_ms}ms"):
                query = writer.start()
        except BaseException:
            listener.leave()
            raise
        # Stopping a query waits for the running batch. The batch must then no longer wait for the coordinator.
        session.stop_when(lambda: not query.isActive)
        listener.listen_to(query)
        session.run(session.protocol.started(written, finished))
        return query

    def _evidence(self, session: DriverSession, sources: StreamSources) -> EvidenceReader:
        spark = self.df.sparkSession
        if is_connect(spark):
            return ProgressEvidenceReader(sources, None)
        names = partition_names(self.columns, self.df)
        offsets = QueryOffsets(spark, self.query, sources)
        brokers = None if sources.kafka_settings is None else Brokers(spark, sources.kafka_settings)
        return DriverEvidenceReader(
            offsets, sources, names, brokers, session.log, lambda: session.is_stopped(), session.calls.now
        )

    def _may_have_fewer_tasks(self, sources: StreamSources) -> bool:
        """Return whether a small batch may have fewer tasks than Kafka has partitions.

        With delays by row, the order of the rows in a task counts.
        """
        spark = self.df.sparkSession
        if is_connect(spark) or not sources.tasks_are_partitions or not keeps_partitions(self.df):
            return False
        if self.columns.substream is SOURCE_PARTITION or self.options.delays == "row":
            return False
        settings = spark.sparkContext.getConf()
        # With dynamic allocation, Spark adds executors for waiting tasks. The default parallelism is otherwise the
        # number of cores.
        is_dynamic = settings.get("spark.dynamicAllocation.enabled", "false") == "true"
        return not is_dynamic and not settings.contains("spark.default.parallelism")

    def _persists(self) -> bool:
        """Return whether batches are persisted while they run: the user's choice, or else what the input needs."""
        if self.options.persist is not None:
            return self.options.persist
        reason = reason_to_persist(self.df)
        if reason is None:
            log.info("%s: batches are read again for each use, because Spark can repeat the read", self.query)
            return False
        log.info(
            "%s: batches are persisted, because %s. To read again instead, call persist(False).", self.query, reason
        )
        return True

    def _settings(self, sources: StreamSources) -> QuerySettings:
        options = self.options
        retained = int(self.df.sparkSession.conf.get(BATCHES_RETAINED) or 0)
        return QuerySettings(
            self.connection,
            self.query,
            options.declared,
            PinnedWatermarks(max(KEPT, retained)),
            self._choices(),
            self.replaces_substreams,
            bool(options.trigger.get("availableNow")),
            options.complete_batches and not sources.has_kafka,
            tells_output=options.windowed is not None,
        )

    def _choices(self) -> QueryChoices:
        windowed, columns = self.options.windowed, self.columns
        if windowed is None:
            return QueryChoices.of(columns.event_time, columns.substream)
        frame = windowed.frame
        results = sorted(f"{name}={aggregate.kind}" for name, aggregate in windowed.aggregates.items())
        return QueryChoices.of(
            columns.event_time, columns.substream, [*frame.options().values()], [list(windowed.by), results]
        )

    def _publisher(self, session: DriverSession) -> WatermarkPublisher | None:
        options, spark = self.options, self.df.sparkSession
        if not options.published_in:
            return None
        for name in options.published_in:
            table_on(spark, name)  # finds a mistake before the query starts
        job = self.connection.job
        return WatermarkPublisher(spark, job, options.published_in, options.publish_every_s, session.log)

    def _handler(self, appends: TableAppends) -> BatchHandler:
        function, windowed = self.options.function, self.options.windowed
        assert function is not None
        if windowed is None:
            return RowHandler(function, appends)
        event_time = self.df.schema[self.columns.event_time].dataType
        return Windowing(windowed, event_time, function, self.checkpoint, appends)

    def _writer(self, function: BatchFunction) -> DataStreamWriter:
        writer = (
            self._with_markers()
            .writeStream.foreachBatch(function)
            .queryName(self.query)
            .option("checkpointLocation", self.checkpoint.location)
            .options(**self.options.writer)
        )
        return writer.trigger(**self.options.trigger) if self.options.trigger else writer

    def _with_markers(self) -> DataFrame:
        """Return the stream. With windows, it has a source that starts a batch when only the watermark moves."""
        if self.options.windowed is None:
            return self.df
        spark = self.df.sparkSession
        version = version_of(spark)
        has_sources = version >= PYTHON_SOURCES
        # A Spark Connect client may be unable to read the checkpoint.
        had_markers = None if is_connect(spark) else self.checkpoint.has_markers()
        if had_markers is not None and had_markers != has_sources:
            other = "3.5" if has_sources else "4.0 or later"
            raise InvalidUsage(
                f"This checkpoint is from Spark {other}, where a query with windows has other sources. Call "
                f"job.hand_over({self.query!r}, {self.query!r}), then start the query on a new checkpoint."
            )
        if not has_sources:
            log.warning(
                "%s: Spark %s runs no batch when only the watermark moves. Windows close with the next batch that has "
                "rows, and windows that are open at complete() are not emitted. To avoid this, use Spark 4.0 or later.",
                self.connection.job,
                spark.version,
            )
            return self.df
        if self.options.trigger.get("availableNow") and version < AVAILABLE_NOW_OF_PYTHON_SOURCES:
            log.warning(
                "%s: Spark %s runs windows under availableNow as a single batch and ignores limits such as "
                "maxFilesPerTrigger. For several batches, use Spark 4.2 or later, or a processing-time trigger.",
                self.connection.job,
                spark.version,
            )
        return self.df.union(self._markers(self.options.windowed.frame))

    def _markers(self, frame: Frame) -> DataFrame:
        """Return a stream without rows that causes a batch whenever a window closes."""
        # PySpark 3.5 has no data sources in Python, so the module cannot be imported there.
        from tidegate_spark.windows import markers

        spark = self.df.sparkSession
        for module in (days, markers):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        try:
            spark.dataSource.register(markers.Markers)
        finally:
            for module in (days, markers):
                cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
        options = {**self.connection.reader_options, **frame.options()}
        return spark.readStream.format(markers.Markers.name()).schema(self.df.schema).options(**options).load()


def check_days(spark: SparkSession, frame: Frame) -> None:
    """Raise InvalidUsage if Spark and Python disagree about the days of a time zone.

    Spark assigns the rows to windows, and Python decides which windows are closed. The versions of their time zone data
    may differ.
    """
    if frame.time_zone is None:
        return
    noons = spark.range(0, CHECKED_DAYS, 3).selectExpr(f"id * {days.DAY_MS}L + {days.DAY_MS // 2}L AS noon")
    for noon, start in noons.selectExpr("noon", f"{frame.starts('noon')} AS start").collect():
        if frame.cut(noon) != start:
            raise InvalidUsage(
                f"Python and Java disagree about the day of {utc_text(noon)} in {frame.time_zone}. Update the time "
                "zones of the older one: the package tzdata for Python, or the Java runtime."
            )


def located(spark: SparkSession, location: str) -> str:
    """Return a checkpoint location as Spark resolves it: absolute, on Spark's default file system.

    Spark resolves a relative path by the directory in which Java was started. The program may have changed its own.
    Under Spark Connect, the process of the hook has Java's directory and resolves the location itself.
    """
    if ":" in location.partition("/")[0] or is_connect(spark):
        return location
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(location)
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    return str(path.getFileSystem(configuration).makeQualified(path).toString())


def check_start(method: str, query: str | None, checkpoint: str | os.PathLike[str] | None) -> tuple[str, str]:
    """Return a query's name and checkpoint location; raise InvalidUsage if one is missing or the name is invalid."""
    if query is None:
        raise InvalidUsage(f"{method}() needs queryName, the query's name in the job. Pass the same at every start.")
    if checkpoint is None:
        raise InvalidUsage(f"{method}() needs checkpointLocation: the client stores pinned watermarks there. Pass it.")
    if not isinstance(checkpoint, (str, os.PathLike)) or not isinstance(os.fspath(checkpoint), str):
        raise InvalidUsage(f"checkpointLocation must be a path as a text or a PathLike; it is {checkpoint!r}.")
    return check_id("queryName", query), os.fspath(checkpoint)
