"""The time that coordination adds to small batches, and the duration of batches with windows."""

import statistics
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.overhead import batches_of, session
from benchmarks.paired import interleave
from benchmarks.results import Row, Spread
from tidegate_spark import JobConfig, Stream, limiting_lag, windows
from tidegate_spark.testing import CoordinatorProcess, FileBatches

ROWS, SUBSTREAMS = 100, 10
BATCHES, WARM_UP = 15, 5
"""Number of batches in a run, and number of first batches that are not measured."""
STEP_MS = 60_000
CONFIG = limiting_lag(timedelta(minutes=1), max_future_skew=None)


class Bench:
    """A stream of small batches, and the queries that process it."""

    def __init__(self, spark: SparkSession, coordinator: CoordinatorProcess, out: Path) -> None:
        self._spark, self._coordinator, self._out = spark, coordinator, out
        self._source = FileBatches(out / "input", "k string, t long")
        for batch in range(BATCHES):
            rows = ({"k": f"s{row % SUBSTREAMS}", "t": batch * STEP_MS + row} for row in range(ROWS))
            self._source.add(*rows)

    def bare(self) -> list[float]:
        """Return the seconds of each batch whose function counts rows, without coordination."""
        writer = self._source.stream(self._spark).writeStream.foreachBatch(_count).trigger(availableNow=True)
        return self._seconds(lambda checkpoint: writer.option("checkpointLocation", checkpoint).start())

    def coordinated(self, choose: Callable[[Stream], Stream], config: JobConfig = CONFIG) -> list[float]:
        """Return the seconds of each batch whose function counts rows, with coordination."""
        job = self._coordinator.job(config=config)
        stream = choose(job.stream(self._source.stream(self._spark), event_time="t", substream="k"))
        stream = stream.foreach_batch(_count).trigger(availableNow=True)
        seconds = self._seconds(lambda at: stream.start(queryName="small", checkpointLocation=at))
        assert job.status()["rows"]["on_time"] == ROWS * BATCHES
        return seconds

    def _seconds(self, start: Callable[[str], StreamingQuery]) -> list[float]:
        ran = [progress for progress in batches_of(start, self._out) if progress.numInputRows >= ROWS]
        assert len(ran) == BATCHES
        return [progress.durationMs["triggerExecution"] / 1000 for progress in ran[WARM_UP:]]


def _count(df: DataFrame, batch_id: int) -> None:
    df.count()


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Measure each kind of query in each round."""
    kinds: dict[str, Callable[[Stream], Stream]] = {
        "executors report": lambda stream: stream.reporting("executor"),
        "the driver reports": lambda stream: stream,
        "windows": lambda stream: stream.windows(STEP_MS).agg(rows=windows.count()),
    }
    with CoordinatorProcess(out / f"coordinator-{uuid.uuid4()}") as coordinator, session() as spark:
        bench = Bench(spark, coordinator, out / f"small-{uuid.uuid4()}")
        measurements: dict[str, Callable[[], list[float]]] = {"bare": bench.bare, "bare again": bench.bare}
        measurements |= {name: partial(bench.coordinated, choose) for name, choose in kinds.items()}
        batches = interleave(measurements, rounds, show)
    seconds = {name: [statistics.median(each) for each in found] for name, found in batches.items()}

    def added(name: str) -> Spread:
        return Spread.of(one - bare for one, bare in zip(seconds[name], seconds["bare"], strict=True))

    batch = f"batch of {ROWS} rows"
    return [
        Row(f"{batch} without coordination", Spread.of(seconds["bare"]), "s"),
        Row(f"{batch}: added by nothing (control)", added("bare again"), "s"),
        Row(f"{batch}: added if executors report", added("executors report"), "s"),
        Row(f"{batch}: added if the driver reports", added("the driver reports"), "s", at_most=0.1),
        Row(f"{batch} with windows", Spread.of(seconds["windows"]), "s", at_most=0.5),
    ]
