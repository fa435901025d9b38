"""The cost of coordination for a batch of ten million rows.

The benchmark compares each reporting mode with the same aggregate without coordination. The aggregate has hourly
windows by substream, read from Parquet and written to Parquet. Timestamps have 64 bits, as in table formats. The time
of a batch is ``triggerExecution`` in Spark's progress. The first batch of a query is not timed, because it includes the
start of the query, and queries usually run for months.
"""

import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.paired import BASELINE, CONTROL, compare, interleave
from benchmarks.results import Row, Spread, ratios
from tidegate_spark import Stream, limiting_lag
from tidegate_spark.testing import CoordinatorProcess, ensure_java

ROWS = 10_000_000
BATCHES = {256: 4, 1: 8}
"""Number of batches by number of substreams, so that a round takes long enough to measure."""
ONE = "native, one substream"
TARGETS = {256: {"driver": 1.8}, 1: {"driver": 1.4}}
"""Highest ratio by number of substreams and variant."""


def session(jars: str = "") -> SparkSession:
    """Start a session, with these jars in its class path."""
    ensure_java()
    builder = (
        SparkSession.builder.appName("overhead")
        .master("local[2]")
        .config("spark.driver.memory", "6g")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
    )
    spark = (builder.config("spark.jars", jars) if jars else builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def batches_of(start: Callable[[str], StreamingQuery], out: Path) -> list[Any]:
    """Run a query to its end on a checkpoint of its own, and return the progress of its batches."""
    checkpoint = out / f"checkpoint-{uuid.uuid4()}"
    query = start(str(checkpoint))
    query.awaitTermination()
    shutil.rmtree(checkpoint)
    return [progress for progress in query.recentProgress if "addBatch" in progress.durationMs]


def hourly(df: DataFrame) -> DataFrame:
    """Return the aggregate, which is the same with and without coordination."""
    return df.groupBy(F.window("t", "1 hour"), "k").agg(
        F.count("*").alias("rows"), F.sum("v").alias("sum"), F.avg("v").alias("mean"), F.max("v").alias("highest")
    )


@dataclass(frozen=True, slots=True)
class Durations:
    """The seconds of a query's batches, without the first batch.

    Attributes:
        of_all: Seconds of all batches.
        of_batches_with_rows: Seconds of the batches that read rows of the input.
    """

    of_all: float
    of_batches_with_rows: float


class Overhead:
    """The measurements for one number of substreams."""

    def __init__(self, spark: SparkSession, coordinator: CoordinatorProcess, out: Path, substreams: int) -> None:
        self._spark, self._coordinator, self._out, self.substreams = spark, coordinator, out, substreams
        self._batches = BATCHES[substreams]
        self._input = out / f"overhead-{substreams}-{self._batches}"
        if not (self._input / "_SUCCESS").exists():
            self._make()
        self._schema = spark.read.parquet(str(self._input)).schema

    def _make(self) -> None:
        """Write the input: for each batch, the rows of one day in two files.

        The substream and the disorder of a row depend on the row's number only.
        """
        number = F.col("id")
        for batch in range(self._batches):
            rows = self._spark.range(0, ROWS, 1, 2).select(
                F.format_string("substream-%03d", F.pmod(F.hash(number), F.lit(self.substreams))).alias("k"),
                F.timestamp_millis(
                    F.lit(1_700_000_000_000 + batch * 86_400_000)
                    + number * 8
                    + F.pmod(F.xxhash64(number), F.lit(60_000))
                ).alias("t"),
                (F.rand(batch) * 1000).alias("v"),
            )
            rows.write.mode("append").parquet(str(self._input))

    def _rows(self) -> DataFrame:
        reader = self._spark.readStream.schema(self._schema).option("maxFilesPerTrigger", 2)
        return reader.parquet(str(self._input))

    def _aggregate(self, df: DataFrame, batch_id: int) -> None:
        """Write hourly windows, as a user's function would do."""
        hourly(df).write.mode("overwrite").parquet(str(self._out / "windows" / str(batch_id)))

    def _timed(self, start: Callable[[str], StreamingQuery]) -> Durations:
        ran = batches_of(start, self._out)
        # Markers count as rows, and Spark may close windows in batches without rows.
        with_rows = [progress for progress in ran if progress.numInputRows >= ROWS]
        assert len(with_rows) == self._batches
        return Durations(
            *(sum(each.durationMs["triggerExecution"] for each in part[1:]) / 1000 for part in (ran, with_rows))
        )

    def bare(self) -> float:
        """Return the seconds of the query without coordination."""
        writer = self._rows().writeStream.foreachBatch(self._aggregate).trigger(availableNow=True)
        return self._timed(lambda checkpoint: writer.option("checkpointLocation", checkpoint).start()).of_all

    def coordinated(self, choose: Callable[[Stream], Stream], substream: str | None = "k") -> Callable[[], float]:
        """Return a function that returns the seconds of the query with coordination, in a new job.

        The function checks that the coordinator has counted all rows as on time.
        """

        def run() -> float:
            job = self._coordinator.job(config=limiting_lag(timedelta(minutes=2), frame=timedelta(hours=1)))
            stream = job.stream(self._rows(), event_time="t", substream=substream).foreach_batch(self._aggregate)
            stream = choose(stream).trigger(availableNow=True)
            seconds = self._timed(lambda at: stream.start(queryName="overhead", checkpointLocation=at)).of_all
            rows = job.status()["rows"]
            assert (rows["on_time"], rows["late"]) == (ROWS * self._batches, 0), rows
            return seconds

        return run

    def _windows(self, df: DataFrame) -> Callable[[str], StreamingQuery]:
        """Return a function that starts a query with Spark's own windows over a stream with a watermark."""
        writer = hourly(df).writeStream.format("parquet").outputMode("append").trigger(availableNow=True)
        to = str(self._out / f"windows-{uuid.uuid4()}")
        return lambda checkpoint: writer.start(to, checkpointLocation=checkpoint)

    def by_spark(self) -> Durations:
        """Return the durations of the query with Spark's own windows and Spark's own watermark."""
        return self._timed(self._windows(self._rows().withWatermark("t", "2 minutes")))

    def natively(self, substream: str | None) -> Callable[[], Durations]:
        """Return a function that returns the durations of Spark's own windows with the watermark of a new job."""

        def run() -> Durations:
            job = self._coordinator.job(config=limiting_lag(timedelta(minutes=2)))

            def start(checkpoint: str) -> StreamingQuery:
                followed = job.with_watermark(
                    self._rows(),
                    event_time="t",
                    substream=substream,
                    queryName="overhead",
                    checkpointLocation=checkpoint,
                    windows=timedelta(hours=1),
                )
                return self._windows(followed)(checkpoint)

            durations = self._timed(start)
            assert job.status()["rows"]["on_time"] + job.status()["rows"]["late"] == ROWS * self._batches
            return durations

        return run

    def variants(self) -> dict[str, Callable[[], float]]:
        if self.substreams == 1:
            return {
                "driver": self.coordinated(lambda stream: stream, None),
                "executor": self.coordinated(lambda stream: stream.reporting("executor")),
            }
        return {
            "driver": self.coordinated(lambda stream: stream),
            "executor": self.coordinated(lambda stream: stream.reporting("executor")),
            "driver, delays": self.coordinated(lambda stream: stream.measure_delays("batch")),
            "driver, persisted": self.coordinated(lambda stream: stream.persist(True)),
        }


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Measure all variants for each number of substreams."""
    rows = []
    with CoordinatorProcess(out / f"coordinator-{uuid.uuid4()}") as coordinator, session() as spark:
        for substreams, targets in TARGETS.items():
            show(f"{ROWS:,} rows per batch, {BATCHES[substreams]} batches, {substreams} substream(s):")
            overhead = Overhead(spark, coordinator, out, substreams)
            found = compare(overhead.bare, overhead.variants(), targets, rounds, show)
            rows += [replace(row, name=f"{substreams} substream(s): {row.name}") for row in found]
    return rows


def run_native(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Compare Spark's own windows under a job's watermark with the same windows under Spark's own watermark.

    At its end, a query has batches without rows: one with Spark's own watermark, and two with a job's watermark. Such a
    batch opens and commits every partition of the state.
    """
    with CoordinatorProcess(out / f"coordinator-{uuid.uuid4()}") as coordinator, session() as spark:
        overhead = Overhead(spark, coordinator, out, 256)
        show(f"{ROWS:,} rows per batch, {BATCHES[256]} batches, Spark's own windows:")
        variants = {CONTROL: overhead.by_spark, "native": overhead.natively("k"), ONE: overhead.natively(None)}
        durations = interleave({BASELINE: overhead.by_spark, **variants}, rounds, show)
    spark_s = durations.pop(BASELINE)
    rows = [Row(BASELINE, Spread.of(each.of_all for each in spark_s), "s")]
    for name, found in durations.items():
        of_all = ratios([each.of_all for each in found], [each.of_all for each in spark_s])
        with_rows = ratios(
            [each.of_batches_with_rows for each in found], [each.of_batches_with_rows for each in spark_s]
        )
        rows.append(Row(f"{name} / {BASELINE}", of_all, at_most=1.3 if name == "native" else None))
        rows.append(Row(f"{name} / {BASELINE}, batches with rows", with_rows))
    return rows
