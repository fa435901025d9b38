"""The entry point of the demo: ``python -m examples.flights``. The README describes the output."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from examples.flights import data
from examples.flights.settings import LOCAL, DemoError, Settings, load_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from examples.flights.kafka import KafkaSource
    from examples.flights.spark import FlightsSource
    from tidegate_spark import Job

SHOW_EVERY_S = 2.0


def main() -> int:
    began = time.monotonic()
    # The Log4j configuration there limits Spark's log to errors. Set the variable before the first import of PySpark.
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "conf"))
    try:
        settings = load_settings()
        print("Reading the flights of 2013 ...", flush=True)
        landings = data.delay_first(data.load(settings), settings)
        job = _prepare(settings)
        _run(settings, job, landings, began)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ndemo: stopped; run the same command again to continue.", file=sys.stderr)
        return 130
    return 0


def _prepare(settings: Settings) -> str:
    """Continue an unfinished run if its settings are equal; otherwise, delete the output of the previous run.

    Returns:
        The name of the job.

    Raises:
        DemoError: If the output directory contains files but no state of a demo.
    """
    unfinished = settings.out / "unfinished.json"
    if unfinished.exists():
        begun = json.loads(unfinished.read_text())
        if begun.get("settings") == settings.document():
            print(f"Continuing the unfinished run in {settings.out}.", flush=True)
            return str(begun["job"])
    # Delete the output of a demo only: DEMO_OUT may name a directory with other files.
    if settings.out.exists():
        if any(settings.out.iterdir()) and not (settings.out / "state").is_dir():
            raise DemoError(
                f"{settings.out} contains other files: expected an empty directory or the output of a demo; "
                "set DEMO_OUT to another directory."
            )
        print(f"Replacing the output of an earlier run in {settings.out}.", flush=True)
        # Delete `state` last: it marks the directory as a demo's output if the deletion is interrupted.
        for left in sorted(settings.out.iterdir(), key=lambda path: path.name == "state"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    (settings.out / "state").mkdir(parents=True)
    # A coordinator that outlives the run still has the complete jobs of earlier runs, so this job needs a new name.
    job = "flights" if settings.coordinator is None else f"flights-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    unfinished.write_text(json.dumps({"job": job, "settings": settings.document()}))
    return job


def _run(settings: Settings, job_name: str, landings: data.Slice, began: float) -> None:
    import tidegate_spark
    from examples.flights.broker import local_broker
    from examples.flights.coordinated import config
    from examples.flights.kafka import KafkaSource
    from examples.flights.spark import FlightsSource, spark_session
    from tidegate_spark.testing import CoordinatorProcess, ensure_java
    from tidegate_spark.testing.java import NoJava
    from tidegate_spark.testing.server import CoordinatorFailed

    state = settings.out / "state"
    files = data.write_landings(landings, settings, state / "landings")
    print(
        f"{len(landings.flights):,} flights to {len(landings.destinations)} destinations, in {files} files.", flush=True
    )
    try:
        ensure_java()
        with ExitStack() as stack:
            url = settings.coordinator
            if url is None:
                url = stack.enter_context(CoordinatorProcess(state / "coordinator")).url
            shown = settings.public_url or url
            servers = settings.kafka
            if servers == LOCAL:
                servers = stack.enter_context(local_broker(state / "kafka"))
                print(f"Kafka at {servers}.", flush=True)
            print(f"Coordinator at {shown}. Starting Spark ...", flush=True)
            spark = stack.enter_context(spark_session(settings))
            job = tidegate_spark.connect(url, job=job_name, config=config(settings))
            source: FlightsSource | KafkaSource = FlightsSource(spark, state / "landings", landings.destinations)
            if servers is not None:
                source = KafkaSource(spark, servers, state / "landings", landings.destinations)
            _stream(settings, landings, source, job, f"{shown}/jobs/{job_name}", began)
    except (NoJava, CoordinatorFailed, tidegate_spark.TidegateError) as error:
        raise DemoError(str(error)) from error


def _stream(
    settings: Settings,
    landings: data.Slice,
    source: "FlightsSource | KafkaSource",
    job: "Job",
    page: str,
    began: float,
) -> None:
    from examples.flights.coordinated import Departures
    from examples.flights.progress import Progress
    from examples.flights.spark_watermark import NativeDepartures
    from examples.flights.summary import frames_of, frames_table, summarize, table, write_batches

    lag = timedelta(minutes=settings.lag_minutes)
    checkpoints = settings.out / "state" / "checkpoints"
    number = source.batches(len(landings.flights))
    print(f"Spark has started. Processing {number} batches; the first one takes the longest ...", flush=True)
    progress = Progress(number, SHOW_EVERY_S)
    departures = Departures(settings, job, progress.committed)
    native = NativeDepartures(settings.out)

    def start_departures() -> "StreamingQuery":
        return departures.start(source, checkpoints / "departures")

    queries = [start_departures()]
    print(f"Watch the job at {page}", flush=True)  # before its first start, the job has no page
    queries.append(native.start(source.stream(), checkpoints / "native", lag))
    _await(queries, source.spark)
    watermark = departures.finish()
    _await([start_departures()], source.spark)
    batches = write_batches(departures, settings)
    summary = summarize(
        batches,
        settings,
        final_watermark_ms=watermark,
        left_out=landings.left_out,
        native_counted=native.counted(),
        late_under_global_maximum=data.late_under_global_maximum(landings, lag),
        seconds=time.monotonic() - began,
    )
    (settings.out / "unfinished.json").unlink()
    print("\n" + table(summary, batches, settings) + "\n\n" + frames_table(frames_of(job)))


def _await(queries: "list[StreamingQuery]", spark: "SparkSession") -> None:
    """Wait until all queries have ended. After Ctrl-C or the failure of a query, stop all queries.

    The signal handler only sets an event. A ``KeyboardInterrupt`` inside a call to Spark would print long stack traces.
    """
    interrupted = threading.Event()
    before = signal.signal(signal.SIGINT, lambda _signal, _frame: interrupted.set())
    try:
        running = list(queries)
        while running:
            if interrupted.wait(0.2):
                spark.sparkContext.setLogLevel("OFF")
                raise KeyboardInterrupt
            for query in list(running):
                if not query.isActive:
                    query.awaitTermination()  # raises the error of a failed query
                    running.remove(query)
    finally:
        for query in queries:
            query.stop()
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    sys.exit(main())
