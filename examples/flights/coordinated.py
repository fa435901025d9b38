"""The coordinated query. It writes windows and late rows to files."""

import time
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import tidegate_spark
from examples.flights import data
from examples.flights.files import BatchFiles
from examples.flights.kafka import KafkaSource
from examples.flights.settings import Settings
from examples.flights.spark import FlightsSource
from tidegate_spark import Batch, Committed, Job, JobConfig, windows

QUERY = "departures"
FRAME = timedelta(hours=1)
MEASURED_BATCHES = 12
WINDOWS_SCHEMA = pa.schema(
    [
        ("origin", pa.string()),
        ("window_start", pa.timestamp("ms", "UTC")),
        ("window_end", pa.timestamp("ms", "UTC")),
        ("departures", pa.int64()),
        ("batch_id", pa.int64()),
        ("watermark", pa.timestamp("ms", "UTC")),
    ]
)
LATE_SCHEMA = data.SCHEMA.append(pa.field("batch_id", pa.int64())).append(
    pa.field("watermark", pa.timestamp("us", "UTC"))
)


def config(settings: Settings, idle_timeout: timedelta | None = None) -> JobConfig:
    """Return the job configuration. Its frame equals the window size of an hour."""
    lag = timedelta(minutes=settings.lag_minutes)
    return tidegate_spark.limiting_lag(lag, frame=FRAME, idle_timeout=idle_timeout, frames="hour")


class Departures:
    """The coordinated query and its output files. A replayed batch overwrites its files with the same content."""

    def __init__(self, settings: Settings, job: Job, show: Callable[[Committed], Any]) -> None:
        self.settings, self.job, self.show = settings, job, show
        self.windows = BatchFiles(settings.out / "windows", ".parquet")
        self.windows.write_empty(WINDOWS_SCHEMA)
        self.late = BatchFiles(settings.out / "late", ".parquet")
        self.late.write_empty(LATE_SCHEMA)
        self.batches = BatchFiles(settings.out / "state" / "batches", ".json")
        self._committed_at: list[float] = []

    def write(self, df: DataFrame, batch_id: int, batch: Batch) -> None:
        rows = df.select(
            "origin",
            F.col("window.start").alias("window_start"),
            F.col("window.end").alias("window_end"),
            "departures",
            *_judged(batch_id, batch.job_watermark),
        )
        in_order = rows.toArrow().cast(WINDOWS_SCHEMA).sort_by([("origin", "ascending"), ("window_start", "ascending")])
        self.windows.write_table(batch_id, in_order)

    def write_late(self, df: DataFrame, batch_id: int, batch: Batch) -> None:
        rows = df.select("*", *_judged(batch_id, batch.watermark))
        self.late.write_table(batch_id, rows.toArrow().select(LATE_SCHEMA.names).cast(LATE_SCHEMA))

    def committed(self, committed: Committed) -> None:
        self._committed_at.append(time.monotonic())
        held_by = committed.held_by
        self.batches.write_json(
            committed.batch.batch_id,
            {
                "pin_ms": committed.batch.watermark,
                "watermark_ms": committed.watermark,
                "rows": committed.rows,
                "on_time": committed.on_time,
                "late": committed.late,
                "null_event_time": committed.null_event_time,
                "held_by": held_by.substream if held_by else None,
                "seconds": committed.seconds,
            },
        )
        self._set_idle_timeout()
        self.show(committed)

    def _set_idle_timeout(self) -> None:
        """Set ``idle_timeout`` to the duration of ``idle_batches`` batches, after every ``MEASURED_BATCHES`` batches.

        ``idle_timeout`` is a duration in processing time, so the demo measures the duration of its batches first. It
        repeats this, because the first batches of a Spark query take several times as long as later ones.
        """
        timed = len(self._committed_at) - 1
        if not self.settings.idle_batches or timed < MEASURED_BATCHES or timed % MEASURED_BATCHES:
            return
        batch_s = median(later - earlier for earlier, later in pairwise(self._committed_at[-MEASURED_BATCHES - 1 :]))
        timeout = timedelta(milliseconds=max(1, round(1000 * batch_s * self.settings.idle_batches)))
        self.job.configure(config(self.settings, timeout))

    def start(self, source: FlightsSource | KafkaSource, checkpoint: Path) -> StreamingQuery:
        return (
            self.job.stream(source.stream(), event_time="departed_at", substream=source.substream)
            .declare(*source.names)
            .windows(FRAME)
            .agg("origin", departures=windows.count())
            .late_output(self.write_late)
            .foreach_batch(self.write)
            .on_commit(self.committed)
            .complete_batches(source.complete_batches)
            .tuning(report_tasks=1)
            .trigger(availableNow=True)
            .start(queryName=QUERY, checkpointLocation=str(checkpoint))
        )

    def finish(self) -> int:
        """End the input: mark every destination as done and complete the job.

        Returns:
            The emitted watermark, in epoch milliseconds. The next run of the query closes the last windows.
        """
        names = [row["substream"] for row in self.job.substreams() if row["query"] == QUERY]
        self.job.done(QUERY, names, "the replay is over")
        watermark = self.job.complete("the replay is over")
        assert watermark is not None, "flights were reported"
        return watermark


def _judged(batch_id: int, watermark: int | None) -> list[Column]:
    """Return the columns ``batch_id`` and ``watermark`` for the rows of a batch."""
    return [
        F.lit(batch_id).cast("long").alias("batch_id"),
        F.timestamp_millis(F.lit(watermark).cast("long")).alias("watermark"),
    ]
