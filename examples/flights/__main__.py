"""``python -m examples.flights``: the demo from end to end. See the README for what it shows."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from examples.flights import data
from examples.flights.settings import DemoError, Settings, load_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from examples.flights.spark import FlightsSource

SHOW_EVERY_S = 2.0


def main() -> int:
    began = time.monotonic()
    # Spark's own log, cut down to errors; to be set before anything of Spark is loaded.
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "conf"))
    try:
        settings = load_settings()
        print("Reading the flights of 2013 ...", flush=True)
        landings = data.load(settings)
        _prepare(settings)
        _run(settings, landings, began)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ndemo: stopped; the same command goes on from here.", file=sys.stderr)
        return 130
    return 0


def _prepare(settings: Settings) -> None:
    """A run that did not end is gone on with, if it was the same; else everything of the last run goes."""
    unfinished = settings.out / "unfinished.json"
    if unfinished.exists() and json.loads(unfinished.read_text()) == settings.document():
        print(f"Going on with the run that did not end ({settings.out}).", flush=True)
        return
    # Only what a demo made: DEMO_OUT may name a folder in which there is something else.
    if settings.out.exists():
        if any(settings.out.iterdir()) and not (settings.out / "state").is_dir():
            raise DemoError(f"{settings.out} holds something else than a demo's output; name another DEMO_OUT.")
        print(f"Replacing what an earlier run left in {settings.out}.", flush=True)
        shutil.rmtree(settings.out)
    (settings.out / "state").mkdir(parents=True)
    unfinished.write_text(json.dumps(settings.document()))


def _run(settings: Settings, landings: data.Slice, began: float) -> None:
    from examples.flights.coordinated import JOB
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
        with CoordinatorProcess(state / "coordinator") as coordinator:
            print(f"Coordinator at {coordinator.url}; watch the job at {coordinator.url}/jobs/{JOB}", flush=True)
            print("Starting Spark ...", flush=True)
            with spark_session() as spark:
                _stream(settings, landings, FlightsSource(spark, state / "landings"), coordinator.url, files, began)
    except (NoJava, CoordinatorFailed) as error:
        raise DemoError(str(error)) from error


def _stream(
    settings: Settings, landings: data.Slice, source: "FlightsSource", url: str, files: int, began: float
) -> None:
    import tidegate_spark
    from examples.flights.coordinated import JOB, Departures, rules
    from examples.flights.native import NativeDepartures
    from examples.flights.progress import Progress
    from examples.flights.summary import summarize, table, write_batches

    lag = timedelta(minutes=settings.lag_minutes)
    checkpoints = settings.out / "state" / "checkpoints"
    gate = tidegate_spark.connect(url, job=JOB, rules=rules(settings))
    progress = Progress(files, SHOW_EVERY_S)
    departures = Departures(settings, gate, progress.committed)
    native = NativeDepartures(settings.out)

    def start_departures() -> "StreamingQuery":
        return departures.start(source.stream(), checkpoints / "departures", landings.destinations)

    _await([start_departures(), native.start(source.stream(), checkpoints / "native", lag)], source.spark)
    watermark = departures.finish()
    _await([start_departures()], source.spark)
    batches = write_batches(departures, settings)
    summary = summarize(
        batches, settings, final_watermark_ms=watermark, left_out=landings.left_out, native_counted=native.counted(),
        late_under_global_maximum=data.late_under_global_maximum(landings, lag), seconds=time.monotonic() - began,
    )  # fmt: skip
    (settings.out / "unfinished.json").unlink()
    print("\n" + table(summary, batches, settings))


def _await(queries: "list[StreamingQuery]", spark: "SparkSession") -> None:
    """Until all queries have ended; Ctrl-C, or one that fails, ends the others.

    Ctrl-C is taken here, between two looks: in the midst of a call into Spark it would end in a page of stack traces.
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
                    query.awaitTermination()  # raises what it failed with
                    running.remove(query)
    finally:
        for query in queries:
            query.stop()
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    sys.exit(main())
