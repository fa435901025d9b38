"""The cost of coordination for a batch of ten million rows.

The benchmark compares each reporting mode with the same aggregate without coordination, and with two passes over the
rows that are written by hand. The aggregate has hourly windows by substream, read from Parquet and written to Parquet.
Timestamps have 64 bits, as in table formats. The time of a batch is ``triggerExecution`` in Spark's progress. The first
batch of a query is not timed, because it includes the start of the query, and queries usually run for months.
"""

import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.paired import BASELINE, CONTROL, COORDINATED, compare, interleave
from benchmarks.results import Row, Spread, ratios
from tidegate_spark import JobConfig, Stream, limiting_lag
from tidegate_spark.testing import CoordinatorProcess, ensure_java

ROWS = 10_000_000
BATCHES = {256: 4, 64: 4, 1: 8}
"""Number of batches by number of substreams, so that a round takes long enough to measure."""
ONE = "native, one substream"
TARGETS = {256: {COORDINATED: 1.8}, 64: {}, 1: {COORDINATED: 1.4}}
"""Highest ratio to the query without coordination, by number of substreams and variant."""
CONFIG = limiting_lag(timedelta(minutes=2), frame=timedelta(hours=1))
FILE_LIMITS = {
    "parquet": "maxFilesPerTrigger",
    "delta": "maxFilesPerTrigger",
    "iceberg": "streaming-max-files-per-micro-batch",
}
"""The option of each source that limits the files of a batch."""


def session(settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start a session, with these settings and those of all benchmarks."""
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
        .config("spark.sql.streaming.schemaInference", True)
        .config(map=dict(settings or {}))
    )
    spark = builder.getOrCreate()
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


def two_passes(
    function: Callable[[DataFrame, int], None], keys: list[str], persist: bool
) -> Callable[[DataFrame, int], None]:
    """Return a function that takes the max event time of each substream, and then calls ``function``.

    A client must look at all rows of a batch before it hands them over, so this is the least that it can do.
    """

    def run(df: DataFrame, batch_id: int) -> None:
        if persist:
            df.persist()
        df.groupBy(*keys).agg(F.max("t")).collect()
        function(df, batch_id)
        if persist:
            df.unpersist()

    return run


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
    """The measurements for one source and one number of substreams.

    The two passes by hand read a batch twice, as the client does, because this is cheaper: if they persisted it, they
    took 1.9 times as long for Parquet, 2.0 times for Delta Lake and 1.6 times for Iceberg.
    """

    def __init__(
        self, spark: SparkSession, coordinator: CoordinatorProcess, out: Path, substreams: int, source: str = "parquet"
    ) -> None:
        self._spark, self._coordinator, self._out, self._source = spark, coordinator, out, source
        self._substreams, self._batches = substreams, BATCHES[substreams]
        self._keys = [] if substreams == 1 else ["k"]
        name = f"{source}_{substreams}_{self._batches}"
        self._input, made = str(out / "inputs" / name), out / f"{name}.made"
        self._table = f"lake.inputs.{name}" if source == "iceberg" else self._input
        if not made.exists():
            self._make()
            made.touch()

    def _make(self) -> None:
        """Write the input: for each batch, the rows of one day in two files.

        The substream and the disorder of a row depend on the row's number only.
        """
        shutil.rmtree(self._input, ignore_errors=True)  # from a run that was stopped
        number = F.col("id")
        for batch in range(self._batches):
            rows = self._spark.range(0, ROWS, 1, 2).select(
                F.format_string("substream-%03d", F.pmod(F.hash(number), F.lit(self._substreams))).alias("k"),
                F.timestamp_millis(
                    F.lit(1_700_000_000_000 + batch * 86_400_000)
                    + number * 8
                    + F.pmod(F.xxhash64(number), F.lit(60_000))
                ).alias("t"),
                (F.rand(batch) * 1000).alias("v"),
            )
            rows.write.format(self._source).mode("append" if batch else "errorifexists").save(self._table)

    def _rows(self) -> DataFrame:
        reader = self._spark.readStream.format(self._source).option(FILE_LIMITS[self._source], 2)
        return reader.load(self._table)

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
        return self._written(self._aggregate)

    def by_hand(self) -> float:
        """Return the seconds of the query with two passes over the rows."""
        return self._written(two_passes(self._aggregate, self._keys, persist=False))

    def _written(self, function: Callable[[DataFrame, int], None]) -> float:
        writer = self._rows().writeStream.foreachBatch(function).trigger(availableNow=True)
        return self._timed(lambda checkpoint: writer.option("checkpointLocation", checkpoint).start()).of_all

    def coordinated(
        self, choose: Callable[[Stream], Stream] = lambda stream: stream, config: JobConfig = CONFIG
    ) -> Callable[[], float]:
        """Return a function that returns the seconds of the query with coordination, in a new job.

        The function checks that the coordinator has counted all rows as on time.
        """

        def run() -> float:
            job = self._coordinator.job(config=config)
            stream = job.stream(self._rows(), event_time="t", substream=self._keys or None)
            stream = choose(stream.foreach_batch(self._aggregate)).trigger(availableNow=True)
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

    def compare(
        self,
        rounds: int,
        show: Callable[[str], None],
        variants: Mapping[str, Callable[[], float]] | None = None,
        targets: Mapping[str, float] | None = None,
    ) -> list[Row]:
        """Compare the coordinated query and its ``variants`` with the queries that use no client."""
        name = f"{self._source}, {self._substreams} substream(s)"
        measured = {COORDINATED: self.coordinated(), **(variants or {})}
        return compare(name, self.bare, self.by_hand, measured, rounds, show, targets)

    def variants(self) -> dict[str, Callable[[], float]]:
        """Return the coordinated query with other options than the default ones."""
        executor = {"executor": self.coordinated(lambda stream: stream.reporting("executor"))}
        if self._substreams < 256:
            return executor
        return executor | {
            "delays": self.coordinated(lambda stream: stream.measure_delays("batch")),
            "persisted": self.coordinated(lambda stream: stream.persist(True)),
        }


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Measure all variants for each number of substreams."""
    rows = []
    with CoordinatorProcess(out / f"coordinator-{uuid.uuid4()}") as coordinator, session() as spark:
        for substreams, targets in TARGETS.items():
            overhead = Overhead(spark, coordinator, out, substreams)
            rows += overhead.compare(rounds, show, overhead.variants(), targets)
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
