"""The same batches with Spark: the hook must lose the same rows, and close each hour at the same time.

Spark takes half a second or more for a batch, so the check covers the first day, with batches of an hour.
"""

import os
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.flink.batches import QUERY, TICK_MS, Case, JobRun, measure
from benchmarks.flink.clocked import ClockedCoordinator
from benchmarks.flink.replay import HOUR_MS, Outcome, Replay, demo_settings
from examples import flights
from examples.flights.spark import spark_session
from tidegate_spark import Committed, connect
from tidegate_spark.clock import Clock
from tidegate_spark.testing import FileBatches, ensure_java

DAYS = 1


class ReplayClock(Clock):
    """The clock of the client, which agrees with the clock of the coordinator.

    On a loaded machine, a call can take longer than a second. The client reports such a call as an outage, which does
    not count towards ``idle_timeout``. On this clock, calls take no time.
    """

    def __init__(self, coordinator: ClockedCoordinator) -> None:
        self._coordinator = coordinator

    def time(self) -> float:
        """Return the time of the data."""
        return self._coordinator.now_ms / 1000

    def monotonic(self) -> float:
        """Return the time of the data, which never goes back."""
        return self.time()


class SparkRun:
    """A run with Spark, with a file of landings for each batch. Each commit moves the clock to the next batch."""

    def __init__(self, coordinator: ClockedCoordinator, replay: Replay, case: Case) -> None:
        self._coordinator, self._replay = coordinator, replay
        self._run = JobRun(coordinator.port, 0, case, replay)
        self._ends_ms = range(replay.start_ms + case.interval_ms, replay.end_ms + 1, case.interval_ms)
        self._now_ms = replay.start_ms

    def measure(self, spark: SparkSession, out: Path) -> Outcome:
        """Run the query over all batches, and return the outcome."""
        source = FileBatches(out / "input", "destination string, departed_ms long")
        for end_ms in self._ends_ms:
            landed = self._run.landed.get(end_ms, [])
            source.add(*({"destination": one.destination, "departed_ms": one.departed_ms} for one in landed))
        self._advance(self._ends_ms[0])
        url = f"http://127.0.0.1:{self._coordinator.port}"
        job = connect(url, job=self._run.name, clock=ReplayClock(self._coordinator))
        stream = job.stream(source.stream(spark), event_time="departed_ms", substream="destination")
        stream = stream.declare(*self._replay.destinations).foreach_batch(_count).on_commit(self._committed)
        # The file of a batch contains all landings of its interval.
        stream = stream.complete_batches()
        query = stream.trigger(availableNow=True).start(queryName=QUERY, checkpointLocation=str(out / "checkpoint"))
        query.awaitTermination()
        return self._run.end()

    def _advance(self, to_ms: int) -> None:
        """Move the clock in the steps of the other runs."""
        while self._now_ms < to_ms:
            self._now_ms += TICK_MS
            self._coordinator.now_ms = self._now_ms
            self._run.read_watermark(self._now_ms)

    def _committed(self, committed: Committed) -> None:
        self._run.note_closed(self._now_ms, committed.watermark)
        if committed.batch.batch_id + 1 < len(self._ends_ms):
            self._advance(self._ends_ms[committed.batch.batch_id + 1])


def _count(df: DataFrame, batch_id: int) -> None:
    df.count()


def check(out: Path, replay: Replay, case: Case) -> Outcome:
    """Run a case over the first day with Spark, and return its outcome.

    Raises:
        RuntimeError: If the outcome differs from that of the calls without Spark.
    """
    replay = replay.until(replay.start_ms + DAYS * 24 * HOUR_MS)
    with ClockedCoordinator(out / "coordinator-of-calls", replay.start_ms) as coordinator:
        (expected,) = measure(coordinator, replay, [case], lambda _: None)
    # The Log4j configuration of the demo limits Spark's log to errors.
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(flights.__file__).parent / "conf"))
    ensure_java()
    settings = demo_settings(out)
    with (
        ClockedCoordinator(out / "coordinator-of-spark", replay.start_ms) as coordinator,
        spark_session(settings) as spark,
    ):
        found = SparkRun(coordinator, replay, case).measure(spark, out / "spark")
    if found != expected:
        raise RuntimeError(f"Spark: expected the outcome of the same calls, {expected}; found {found}.")
    return found
