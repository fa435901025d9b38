"""An exercise on allowed lateness, with a real query over windows and a real coordinator.

The stream has 20,000 events, one for each half unit of event time. Each event is delayed by
``min(expovariate(1/6), 25)``, with the seed 7. The windows have a size of 10, the lag is 5, and the allowed lateness
``G`` varies.

In the exercise, the watermark follows each event. Here, a batch ends at each event whose watermark closes a window,
either for on-time rows or, after the allowed lateness, for all rows. The pinned watermark of the batch then classifies
its events as in the exercise.

The same run shows the state that a query of a thousand batches keeps, its versions, and the memory of its processes.
"""

import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil
from pyspark.sql import DataFrame, SparkSession

from benchmarks.overhead import session
from benchmarks.results import Row, Spread
from tidegate_spark import Committed, limiting_lag, windows
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.testing import CoordinatorProcess, FileBatches

EVENTS = 20_000
LAG, SIZE = 5, 10
GRACES = (0, 5, 15, 30)
HALVES = 2
"""Number of event time units of the benchmark per unit of the exercise. Event times are thus whole numbers."""


def arrivals(events: int) -> list[int]:
    """Return event times in halves, in the order of arrival."""
    chance = random.Random(7)
    arrived = sorted((i / HALVES + min(chance.expovariate(1 / 6), 25), i) for i in range(events))
    return [i for _, i in arrived]


def batches(times: Iterable[int], grace: int) -> list[list[int]]:
    """Split the event times into batches.

    The first event is a batch. Each later batch ends with an event whose watermark closes a window, either for on-time
    rows or, after the allowed lateness, for all rows.
    """
    cut: list[list[int]] = [[]]
    max_event_time: int | None = None
    for time in times:
        cut[-1].append(time)
        before, max_event_time = max_event_time, time if max_event_time is None else max(max_event_time, time)
        if before is None or any(_closed(before, lag) != _closed(max_event_time, lag) for lag in (LAG, LAG + grace)):
            cut.append([])
    return [batch for batch in cut if batch]


def _closed(max_event_time: int, lag: int) -> int:
    return (max_event_time - HALVES * lag) // (HALVES * SIZE)


@dataclass(frozen=True)
class Outcome:
    """The result of one run.

    Attributes:
        grace: Allowed lateness, in units of the exercise.
        on_time: Number of rows on time.
        updated: Number of rows that changed a closed window.
        late: Number of late rows.
        windows: Number of emitted windows.
        updates: Number of repeated emissions of windows.
        latency: Max event time at the emission of a window minus the window's end: the mean over all windows, in units.
        batches: Number of batches.
        state_rows: Highest number of rows in a version of the state.
        versions: Number of versions of the state at the end.
        rss_mb: Memory of the query's processes in MiB, after a tenth of the batches and at the end.
    """

    grace: int
    on_time: int
    updated: int
    late: int
    windows: int
    updates: int
    latency: float
    batches: int
    state_rows: int
    versions: int
    rss_mb: tuple[int, int]

    @property
    def completeness(self) -> float:
        """Share of the rows that are in the results."""
        return (self.on_time + self.updated) / (self.on_time + self.updated + self.late)


class Run:
    """One run of the query over the stream."""

    def __init__(self, out: Path, cut: list[list[int]], show: Callable[[str], None]) -> None:
        self._out, self._cut, self._show = out, cut, show
        self._checkpoint = Checkpoint(str(out / "checkpoint"))
        self._latencies: list[float] = []
        self._updates = 0
        self._committed: list[Committed] = []
        self._state_rows = 0
        self._rss: list[int] = []
        self._tops: list[int] = []
        for batch in cut:
            self._tops.append(max([*self._tops[-1:], *batch]))

    def measure(self, spark: SparkSession, coordinator: CoordinatorProcess, grace: int) -> Outcome:
        shutil.rmtree(self._out, ignore_errors=True)
        source = FileBatches(self._out / "input", "t long")
        for batch in self._cut:
            source.add(*({"t": time} for time in batch))
        job = coordinator.job(config=limiting_lag(timedelta(milliseconds=HALVES * LAG), max_future_skew=None))
        query = (
            job.stream(source.stream(spark), event_time="t", substream=None)
            .windows(HALVES * SIZE)
            .agg(rows=windows.count())
            .allowed_lateness(HALVES * grace)
            .late_output(lambda df, batch_id: None)
            .foreach_batch(self._take)
            .on_commit(self._look)
            .trigger(availableNow=True)
            .start(queryName=f"grace-{grace}", checkpointLocation=str(self._out / "checkpoint"))
        )
        query.awaitTermination()

        def count(row_class: str) -> int:
            return sum(getattr(committed, row_class) for committed in self._committed)

        return Outcome(
            grace,
            count("on_time"),
            count("updated"),
            count("late"),
            len(self._latencies),
            self._updates,
            sum(self._latencies) / len(self._latencies),
            len(self._committed),
            self._state_rows,
            len(list((self._out / "checkpoint" / "tidegate" / "state").iterdir())),
            (self._rss[len(self._rss) // 10], self._rss[-1]),
        )

    def _take(self, df: DataFrame, batch_id: int) -> None:
        max_event_time = self._tops[batch_id]
        for row in df.collect():
            if row.previous is None:
                self._latencies.append((max_event_time - row.window.end) / HALVES)
            else:
                self._updates += 1

    def _look(self, committed: Committed) -> None:
        self._committed.append(committed)
        version = self._checkpoint.read_table(f"state/{committed.batch.batch_id}")
        if version is not None:  # a batch without rows writes no version
            self._state_rows = max(self._state_rows, version.num_rows)
        own = psutil.Process()
        processes = [own, *own.children(recursive=True)]
        self._rss.append(sum(process.memory_info().rss for process in processes) // 2**20)
        if len(self._committed) % 50 == 0:
            self._show(f"    {len(self._committed)}/{len(self._cut)} batches, {self._rss[-1]} MB")


def measure(
    spark: SparkSession, out: Path, show: Callable[[str], None], events: int = EVENTS, graces: Iterable[int] = GRACES
) -> list[Outcome]:
    """Run the query with each allowed lateness, and return the results in this order."""
    found = []
    times = arrivals(events)
    with CoordinatorProcess(out / "coordinator") as coordinator:
        for grace in graces:
            cut = batches(times, grace)
            show(f"{events:,} events in {len(cut)} batches, lag {LAG}, allowed lateness {grace}:")
            found.append(Run(out / f"grace-{grace}", cut, show).measure(spark, coordinator, grace))
    return found


def table(found: list[Outcome]) -> str:
    """Return the results as a table."""
    lines = ["  G   complete   on time  updated       late   windows  updates   latency   state   MB early, at the end"]
    for one in found:
        lines.append(
            f"{one.grace:>3}  {100 * one.completeness:>7.2f} %  {one.on_time:>7,}  {one.updated:>7,}    {one.late:>7,}"
            f"   {one.windows:>7,}  {one.updates:>7,}   {one.latency:>7.2f}   {one.state_rows:>5}   {one.rss_mb}"
        )
    return "\n".join(lines)


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Run the query once with each allowed lateness, and show the results as a table."""
    with session() as spark:
        found = measure(spark, out / "lateness", show)
    show("\n" + table(found))
    return [
        Row(f"completeness, allowed lateness {one.grace}", Spread.of([100 * one.completeness]), "%") for one in found
    ]
