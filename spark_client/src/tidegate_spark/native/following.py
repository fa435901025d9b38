"""A stream whose watermark is the coordinator's, as Spark's own operators understand it.

Three streams are made into one. The *markers* have a row whenever the coordinator's watermark moves, and Spark's
watermark is the highest of theirs; no user sees them. The *folds* have no rows: they read the event times of a batch
and leave them for the coordinator. The rest are the user's rows.

What holds it together:

1. The markers come first, for a union has the watermark of its first stream. (With another one first Spark refuses to
   run a window; with a watermark on both, and the policy ``max``, rows are lost.)
2. No filter gets below the markers' watermark, neither ours, that takes the markers out, nor any of the user's. Spark's
   optimizer moves filters towards the sources; one that drops the markers before their event time is looked at leaves
   Spark's watermark at zero for ever, without a word. It moves none past a column whose value is not determined, so the
   flag that says what is a marker is one; and it computes nothing from columns whose values it does not know, so those
   of the markers come from their source, though they are null.
"""

import json
import logging
import uuid
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.errors import PySparkNotImplementedError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from tidegate_spark.choice import Choice
from tidegate_spark.columns import Columns, column, quoted
from tidegate_spark.errors import InvalidUsage
from tidegate_spark.ids import checked_id
from tidegate_spark.measuring import needed_by
from tidegate_spark.native.folding import Folding, check_policy, documents_of
from tidegate_spark.native.source import Followed, Markers
from tidegate_spark.native.triggers import write_triggers
from tidegate_spark.session import BATCHES_RETAINED
from tidegate_spark.versions import AVAILABLE_NOW_OF_PYTHON_SOURCES, version_of
from tidegate_spark.windows.builder import OURS, check_not_ours
from tidegate_spark.windows.frame import Frame

if TYPE_CHECKING:
    from tidegate_spark.job import Job

log = logging.getLogger("tidegate")

_MARKER = f"{OURS}marker"
_WATERMARK_OF_SPARK = "spark.watermarkDelayMs"
"""What Spark notes of a column that has a watermark."""
_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
_MULTIPLE = "spark.sql.streaming.statefulOperator.allowMultiple"


def following(
    job: "Job",
    df: DataFrame,
    columns: Columns,
    query: str,
    checkpoint: str,
    frame: Frame | None,
    declared: tuple[str, ...],
    limited: bool | None,
    replaces_substreams: bool,
) -> DataFrame:
    """See :meth:`Job.native`."""
    spark = df.sparkSession
    _check(df, columns)
    if frame is None and (job.config or {}).get("throttle", {}).get("type") == "frame":
        log.warning(
            "%s/%s: the rules move the watermark from frame to frame, and with_watermark() without windows= leaves it "
            "a "
            "millisecond below: windows that end there close a frame later. Say windows=..., if there are any.",
            job.coordinator.job,
            query,
        )
    if needed_by(job.config or {}):
        log.warning(
            "%s/%s: with_watermark() measures no delays, so under rules that aim at a completeness the lag of its "
            "substreams "
            "stays that of a cold start.",
            job.coordinator.job,
            query,
        )
    checked_id("queryName", query)
    check_policy(spark.conf.get(_POLICY))
    followed = Followed(
        input=str(uuid.uuid4()),
        url=job.coordinator.url,
        job=job.coordinator.job,
        config=job.config,
        query=query,
        checkpoint=checkpoint,
        declared=declared,
        limited=limited,
        choice=asdict(Choice.of(columns.event_time, columns.substream)),
        replaces_substreams=replaces_substreams,
        frame=None if frame is None else asdict(frame),
        retained=int(spark.conf.get(BATCHES_RETAINED) or 1),
    )
    if version_of(spark) < AVAILABLE_NOW_OF_PYTHON_SOURCES:
        write_triggers(spark, checkpoint, query, documents_of(checkpoint, query))
    by_the_batch_before = str(spark.conf.get(_MULTIPLE, "true")).lower() == "true"
    keys = columns.keys()
    folding = Folding(followed.input, checkpoint, query, frame, len(keys), by_the_batch_before)
    markers = _markers(spark, followed, job.coordinator.key, df.schema)
    marked = markers.withWatermark(quoted(columns.event_time), "0 seconds").select(
        "*", (F.spark_partition_id() >= 0).alias(_MARKER)
    )
    max_event_times = df.select(
        F.unix_millis(F.current_timestamp()).alias("planned_ms"),  # of a stream's batch, that is when it was planned
        F.spark_partition_id().alias("partition"),
        *(key.alias(f"key_{index}") for index, key in enumerate(keys)),
        columns.raw_time().alias("time"),
    )
    try:
        folded = max_event_times.mapInArrow(folding, _nullable(df.schema))
    except PySparkNotImplementedError as error:
        raise InvalidUsage(
            f"with_watermark() cannot carry all of the stream's columns ({error}). Cast or drop those of the types "
            f"that Arrow "
            "has none for (intervals of years and months)."
        ) from None
    folds = folded.select("*", F.lit(False).alias(_MARKER))
    rows = df.select("*", F.lit(False).alias(_MARKER))
    # The filter names the event time as well, which by itself keeps Spark from moving it below the watermark.
    return marked.union(folds).union(rows).filter(~F.col(_MARKER) | column(columns.event_time).isNull()).drop(_MARKER)


def frame_of(windows: timedelta | None, slide: timedelta | None, offset: timedelta | None) -> Frame | None:
    """:raises InvalidUsage: for windows with gaps between them, and for a part of windows alone."""
    if windows is None:
        if slide is not None or offset is not None:
            raise InvalidUsage(f"{'offset' if slide is None else 'slide'} needs windows: their size.")
        return None
    return Frame.of(windows, slide, offset, of_timestamps=True, called="windows")


def _check(df: DataFrame, columns: Columns) -> None:
    columns.check(df)
    if not df.isStreaming:
        raise InvalidUsage("with_watermark() is for a stream (spark.readStream); this DataFrame is none.")
    kind = df.schema[columns.event_time].dataType
    if not isinstance(kind, TimestampType):
        how = "timestamp_millis(...)" if kind.simpleString() == "bigint" else "cast('timestamp')"
        raise InvalidUsage(
            f"Spark has watermarks for columns of the type timestamp only, and event_time={columns.event_time!r} is of "
            f"type {kind.simpleString()}. Turn it into one, with {how}, or use stream(), which needs none."
        )
    if watermarked := [field.name for field in df.schema.fields if _WATERMARK_OF_SPARK in field.metadata]:
        raise InvalidUsage(
            f"{', '.join(watermarked)} has a watermark of Spark's own already, and would be judged by both. Leave out "
            "withWatermark(): with_watermark() is in its place."
        )
    check_not_ours(df.columns)


def _markers(spark: SparkSession, followed: Followed, key: str | None, schema: StructType) -> DataFrame:
    spark.dataSource.register(Markers)
    options = {"followed": json.dumps(asdict(followed))}
    if key is not None:
        options["authorization_token"] = key  # a name that Spark redacts
    return spark.readStream.format(Markers.name()).schema(_nullable(schema)).options(**options).load()


def _nullable(schema: StructType) -> StructType:
    return StructType([StructField(field.name, field.dataType, True, field.metadata) for field in schema.fields])
