"""A stream whose watermark in Spark is the job's watermark.

The stream is a union of three streams. The *markers* have a row whenever the job's watermark moves. Spark's watermark
is the highest event time of the markers, and a filter removes the markers. The *folds* have no rows: their tasks fold
the event times of a batch and store the folds for the driver. The third stream has the user's rows.

Invariants:

1. The markers come first, because a union has the watermark of its first stream. (With another stream first, Spark
   refuses to run a window. If that stream also has a watermark and the policy is ``max``, rows are lost.)
2. Spark moves no filter, neither the client's nor the user's, below the watermark node of the markers. A filter there
   would remove the markers, and Spark's watermark would stay at zero without an error. Spark's optimizer moves filters
   towards the sources, but not past a nondeterministic column. Therefore the column that marks the markers is
   nondeterministic. The optimizer also replaces columns whose values it knows. Therefore the source of markers returns
   the null columns too.
3. Spark moves no operator of the user below the union. It would move a left semi join into each of the three streams,
   and then remove the joins of streams without rows in the batch. The number of stateful operators would depend on the
   batch, and Spark refuses a checkpoint with another number. Therefore the filter after the union is nondeterministic.
4. ``dropDuplicatesWithinWatermark`` forgets a key when Spark's watermark is the *delay* of ``withWatermark()`` above
   the event time of the key's row. It is the only operator that uses the delay. Spark's watermark is the highest event
   time of the markers minus the delay, so the event time of a marker is the watermark plus the delay.
"""

import json
import logging
import uuid
from dataclasses import asdict, dataclass, replace

from pyspark.errors import PySparkNotImplementedError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from tidegate_spark.columns import Columns, quoted
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.frame import RESERVED_PREFIX, Frame
from tidegate_spark.hook.delays import needs_delays
from tidegate_spark.hook.plan import check_partitions
from tidegate_spark.logs import QueryLog
from tidegate_spark.native.folding import Folding, check_policy, documents_of
from tidegate_spark.native.listener import listen
from tidegate_spark.native.options import NativeOptions
from tidegate_spark.native.source import MarkerSource, NativeInput
from tidegate_spark.protocol.choices import QueryChoices
from tidegate_spark.protocol.connection import JobConnection
from tidegate_spark.sources.plan import StreamSources, partition_names, sources_of
from tidegate_spark.sources.running import ProgressEvidenceReader
from tidegate_spark.spark_session import BATCHES_RETAINED, is_connect
from tidegate_spark.start import located
from tidegate_spark.windows.builder import check_column_names

log = logging.getLogger("tidegate")

_MARKER = f"{RESERVED_PREFIX}marker"
_WATERMARK_OF_SPARK = "spark.watermarkDelayMs"
"""Metadata key of a column with a watermark from ``withWatermark()``."""
_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
_MULTIPLE = "spark.sql.streaming.statefulOperator.allowMultiple"


@dataclass(frozen=True)
class NativeStream:
    """One call of :meth:`Job.with_watermark`, with its arguments."""

    connection: JobConnection
    df: DataFrame
    columns: Columns
    query: str
    checkpoint: str
    frame: Frame | None
    declared: list[str]
    delay_ms: int
    options: NativeOptions

    def follow(self) -> DataFrame:
        """Return the stream with the job's watermark."""
        self._check()
        self._warn()
        return replace(self, checkpoint=located(self.df.sparkSession, self.checkpoint))._followed()

    def _followed(self) -> DataFrame:
        spark, event_time = self.df.sparkSession, self.columns.event_time
        check_policy(spark.conf.get(_POLICY))
        sources = sources_of(self.df, self.options.get("complete_batches", False), asks=False)
        native = self._input(sources)
        if not is_connect(spark):
            evidence = None
            if sources.has_kafka:  # no other source tells its latest offset
                evidence = ProgressEvidenceReader(sources, partition_names(self.columns, self.df))
            documents = documents_of(self.checkpoint, self.query)
            listen(spark, self.checkpoint, documents, evidence, QueryLog(self.connection.job, self.query))
        markers = self._markers(native).withWatermark(quoted(event_time), f"{self.delay_ms} milliseconds")
        marked = markers.select("*", (F.spark_partition_id() >= 0).alias(_MARKER))
        folds = self._folds(native).select("*", F.lit(False).alias(_MARKER))
        rows = self.df.select("*", F.lit(False).alias(_MARKER))
        # The filter refers to the event time so that Spark does not move it below the watermark. The last condition is
        # false for every row, and makes the filter nondeterministic.
        is_row = f"NOT {_MARKER} OR {quoted(event_time)} IS NULL OR spark_partition_id() < 0"
        return marked.union(folds).union(rows).filter(is_row).drop(_MARKER)

    def _input(self, sources: StreamSources) -> NativeInput:
        return NativeInput(
            input=str(uuid.uuid4()),
            url=self.connection.url,
            job=self.connection.job,
            config=self.connection.config,
            query=self.query,
            checkpoint=self.checkpoint,
            declared=self.declared,
            complete_batches=sources.are_complete and not sources.has_kafka,
            has_all_input=sources.has_all_input,
            is_idle_without_input=not sources.has_minimum,
            choices=asdict(QueryChoices.of(self.columns.event_time, self.columns.substream)),
            replaces_substreams=self.options.get("replaces_substreams", False),
            frame=None if self.frame is None else self.frame.options(),
            delay_ms=self.delay_ms,
            checks_delay=self.options.get("duplicates_within") is None,
            retained=int(self.df.sparkSession.conf.get(BATCHES_RETAINED) or 1),
        )

    def _markers(self, native: NativeInput) -> DataFrame:
        spark = self.df.sparkSession
        spark.dataSource.register(MarkerSource)
        options = {"native": json.dumps(asdict(native))}
        if self.connection.key is not None:
            options["authorization_token"] = self.connection.key  # a name that Spark redacts
        return spark.readStream.format(MarkerSource.name()).schema(_nullable(self.df.schema)).options(**options).load()

    def _folds(self, native: NativeInput) -> DataFrame:
        by_the_batch_before = str(self.df.sparkSession.conf.get(_MULTIPLE, "true")).lower() == "true"
        keys = self.columns.keys()
        folding = Folding(native.input, self.checkpoint, self.query, self.frame, len(keys), by_the_batch_before)
        event_times = self.df.selectExpr(
            "unix_millis(current_timestamp()) AS planned_ms",  # in a stream: when Spark planned the batch
            "spark_partition_id() AS partition",
            *(f"{key} AS key_{index}" for index, key in enumerate(keys)),
            f"{self.columns.raw_time()} AS time",
        )
        try:
            return event_times.mapInArrow(folding, _nullable(self.df.schema))
        except PySparkNotImplementedError as error:
            raise InvalidUsage(
                f"with_watermark() does not support a column of the stream ({error}). Cast or drop columns of types "
                "that Arrow lacks (intervals of years and months)."
            ) from None

    def _warn(self) -> None:
        check_partitions(QueryLog(self.connection.job, self.query), self.columns, self.df)
        config = self.connection.config or {}
        if self.frame is None and config.get("throttle", {}).get("type") == "frame":
            log.warning(
                "%s/%s: the job's throttle is frame, but with_watermark() got no windows. Spark's watermark is then "
                "1 ms below the job's, so windows close one frame later. If the query has windows, pass windows=....",
                self.connection.job,
                self.query,
            )
        if needs_delays(config):
            log.warning(
                "%s/%s: with_watermark() measures no delays, so the lag of its substreams under target_completeness "
                "stays at cold_start. To measure delays, use stream().",
                self.connection.job,
                self.query,
            )

    def _check(self) -> None:
        df, event_time = self.df, self.columns.event_time
        self.columns.check(df)
        kind = df.schema[event_time].dataType
        if not isinstance(kind, TimestampType):
            how = "timestamp_millis(...)" if kind.simpleString() == "bigint" else "cast('timestamp')"
            raise InvalidUsage(
                f"event_time={event_time!r} is of type {kind.simpleString()}: Spark supports watermarks only for "
                f"timestamps. Convert the column with {how}, or use stream(), which supports more types."
            )
        if watermarked := [field.name for field in df.schema.fields if _WATERMARK_OF_SPARK in field.metadata]:
            raise InvalidUsage(
                f"{', '.join(watermarked)} already has a watermark of Spark, which with_watermark() replaces. Remove "
                "the call of withWatermark()."
            )
        check_column_names(df.columns)


def _nullable(schema: StructType) -> StructType:
    return StructType([StructField(field.name, field.dataType, True, field.metadata) for field in schema.fields])
