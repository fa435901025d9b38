"""A user's program in its own process: ``python -m tests.support.pipeline SETTINGS`` (JSON).

The program processes all its input on a given session, and writes a file for each call of its functions. The settings
can kill the program at a point of a batch, and can make tasks fail once or stall once.
"""

import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryListener

import tidegate_spark
from tests.support.points import AFTER_SPARKS_COMMIT, IN_THE_FUNCTION, Reached, watch
from tidegate_spark import Batch, Job, JobConfig, windows
from tidegate_spark.spark_session import add_listener
from tidegate_spark.testing import FileBatches, ensure_java

QUERY = "q"
SCHEMA = "k string, t long"
LAG = timedelta(seconds=10)


def with_frames() -> JobConfig:
    """Return the configuration of a job whose frames are corrected without a delay."""
    return tidegate_spark.limiting_lag(LAG, frames=timedelta(seconds=20), correction_delay=timedelta(0))


@dataclass
class Settings:
    """Settings of the pipeline.

    Attributes:
        session: The master, or the address of a Spark Connect server.
        url: The address of the coordinator.
        job: The name of the job.
        directory: The folder of the input, the checkpoint and the output.
        die: The point at which the driver dies; None: it does not die.
        of: The batch in which the driver dies.
        flaky: A folder with a mark for each task that has failed or stalled; None: no task fails or stalls.
        until_idle: Whether the pipeline runs until all substreams are idle, after a second of silence.
        windows: Size of the windows by ``k``, and their allowed lateness, in milliseconds; None: no windows.
        native: Whether the windows are Spark's own, without allowed lateness.
        kafka: The options of Kafka's source, whose partitions are the substreams; None: files, substreams by ``k``.
        has_frames: Whether the job declares frames.
        tables: Tables to which the functions append their rows once, too: paths of Delta Lake, names of Iceberg.
        conf: Spark's configuration.
    """

    session: str
    url: str
    job: str
    directory: str
    die: str | None = None
    of: int = 0
    flaky: str | None = None
    until_idle: bool = False
    windows: int | None = None
    native: bool = False
    kafka: dict[str, str] | None = None
    has_frames: bool = False
    tables: list[str] = field(default_factory=list)
    conf: dict[str, Any] = field(default_factory=dict)

    def argument(self) -> str:
        return json.dumps(asdict(self))


def session(settings: Settings) -> SparkSession:
    builder = SparkSession.builder.appName("pipeline")
    if settings.session.startswith("sc://"):
        builder = builder.remote(settings.session)
    else:
        ensure_java()
        builder = builder.master(settings.session)
    for name, value in settings.conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def input_of(spark: SparkSession, settings: Settings) -> DataFrame:
    """Return the input: the columns of ``SCHEMA``, and from Kafka also ``topic`` and ``partition``."""
    if settings.kafka is None:
        return FileBatches(Path(settings.directory) / "input", SCHEMA).stream(spark)
    values = F.from_json(F.col("value").cast("string"), SCHEMA).alias("v")
    read = spark.readStream.format("kafka").options(**settings.kafka).load()
    return read.select(values, "topic", "partition").select("v.*", "topic", "partition")


def keep(directory: Path, kind: str, df: DataFrame, batch: Batch) -> None:
    """Write the arguments of a call to a file."""
    rows = sorted((list(row) for row in df.collect()), key=lambda row: (row[1] is not None, row))
    given = {"batch": batch.batch_id, "pinned_watermark": batch.watermark, "replayed": batch.replayed, "rows": rows}
    name = f"{kind}-{batch.batch_id:03d}-{time.time_ns()}-{uuid.uuid4()}.json"
    path = directory / "out" / name
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(given))
    partial.rename(path)  # tests read the directory while this process writes, and kill it


def once(mark: Path) -> bool:
    """Return whether this is the first call with this mark."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def flaky(df: DataFrame, marks: Path) -> DataFrame:
    """Return the rows of ``df``, computed by tasks that fail once or stall once."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                if row["k"] == "fails" and once(marks / f"failed-{row['t']}"):
                    raise RuntimeError("this task fails once")
                if row["k"] == "stalls":
                    if once(marks / f"stalled-{row['t']}"):
                        time.sleep(60)
                    else:
                        once(marks / f"overtaken-{row['t']}")
            yield batch

    return df.repartition(4, F.col("k")).mapInArrow(rows, SCHEMA)


class AfterSparksCommit(StreamingQueryListener):
    """A listener that Spark calls when it has committed a batch."""

    def __init__(self, reached: Reached) -> None:
        self.reached = reached

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        if "addBatch" in event.progress.durationMs:
            self.reached(AFTER_SPARKS_COMMIT, event.progress.batchId)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


def run_natively(
    settings: Settings,
    job: Job,
    df: DataFrame,
    checkpoint: str,
    write: Callable[[DataFrame, int, Batch], None],
    reached: Reached,
) -> None:
    """Run Spark's own windows on the job's watermark over all available input."""
    assert settings.windows is not None
    size = timedelta(milliseconds=settings.windows)
    followed = job.with_watermark(
        df.select("k", F.timestamp_millis("t").alias("t")),
        event_time="t",
        substream="k",
        queryName=QUERY,
        checkpointLocation=checkpoint,
        windows=size,
    )
    counted = followed.groupBy(F.window("t", f"{settings.windows} milliseconds"), "k").count()
    results = counted.select("k", F.unix_millis("window.start"), "count")
    listener = AfterSparksCommit(reached)
    add_listener(df.sparkSession, listener)
    try:
        query = (
            results.writeStream.foreachBatch(
                lambda df, batch_id: write(df, batch_id, Batch(batch_id, None, None, settings.job, QUERY, False))
            )
            .outputMode("append")
            .trigger(availableNow=True)
            .start(queryName=QUERY, checkpointLocation=checkpoint)
        )
        query.awaitTermination()
    finally:
        df.sparkSession.streams.removeListener(listener)


class Died(RuntimeError):
    """The driver of a pipeline in this process died, as if it were killed."""


def execute(spark: SparkSession, settings: Settings, reached: Reached) -> None:
    """Run the pipeline to the end of its input.

    Args:
        spark: The session.
        settings: The settings, with the point and the batch at which the driver dies.
        reached: Called at each point of each batch. It kills the driver at the point in ``settings``.
    """
    directory = Path(settings.directory)

    def append(df: DataFrame, kind: str, batch: Batch) -> None:
        ends = df.select("k", F.col("window.end").alias("t"), "rows") if "window" in df.columns else df
        for table in settings.tables:
            batch.write_once(ends.withColumn("kind", F.lit(kind)), table)

    def write(df: DataFrame, batch_id: int, batch: Batch) -> None:
        keep(directory, "on_time", df, batch)
        append(df, "on_time", batch)
        if settings.die == IN_THE_FUNCTION:
            reached(IN_THE_FUNCTION, batch_id)

    def write_late(df: DataFrame, batch_id: int, batch: Batch) -> None:
        keep(directory, "late", df, batch)
        append(df, "late", batch)

    checkpoint = str(directory / "checkpoint")
    df = input_of(spark, settings)
    if settings.flaky is not None:
        df = flaky(df, Path(settings.flaky))
    config = tidegate_spark.limiting_lag(LAG, idle_timeout=timedelta(seconds=1) if settings.until_idle else None)
    if settings.has_frames:
        config = with_frames()
    job = tidegate_spark.connect(settings.url, job=settings.job, config=config)
    if settings.native:
        run_natively(settings, job, df, checkpoint, write, reached)
        return
    substream = ["k"] if settings.kafka is None else ["topic", "partition"]
    # The executors of a cluster are other processes. With so few substreams, the driver would report by default.
    stream = job.stream(df, event_time="t", substream=substream).reporting("executor")
    if settings.windows is not None:
        stream = stream.windows(settings.windows).agg("k", rows=windows.count(), last=windows.max("t"))
        stream = stream.allowed_lateness(settings.windows)
    stream = stream.foreach_batch(write).late_output(write_late).show_progress()
    if settings.until_idle:
        query = stream.tuning(heartbeat_ms=200).start(queryName=QUERY, checkpointLocation=checkpoint)
        while not job.status()["substreams"]["all_idle"]:
            time.sleep(0.2)
        query.stop()
    else:
        query = stream.trigger(availableNow=True).start(queryName=QUERY, checkpointLocation=checkpoint)
        query.awaitTermination()


def kill_the_server() -> None:
    """Kill the Java process of Spark Connect, an ancestor of the hook's Python process."""
    [server] = [process for process in psutil.Process().parents() if process.name() == "java"]
    server.kill()


def main() -> None:
    """Run the pipeline with the settings in the first argument; at the point ``die``, kill it with SIGKILL."""
    settings = Settings(**json.loads(sys.argv[1]))

    def reached(point: str, batch_id: int) -> None:
        if (point, batch_id) == (settings.die, settings.of):
            if settings.session.startswith("sc://"):
                kill_the_server()
            os.killpg(0, signal.SIGKILL)

    if settings.die is not None:
        watch(reached)
    spark = session(settings)
    execute(spark, settings, reached)
    spark.stop()


if __name__ == "__main__":
    main()
