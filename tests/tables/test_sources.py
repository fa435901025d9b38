"""Delta Lake and Apache Iceberg as sources."""

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.lake import FORMS, Lake
from tests.support.streams import LAG, Sink, to_the_end
from tests.support.waiting import until
from tidegate_spark import SOURCE_PARTITION, Batch, InvalidUsage, Job, limiting_lag
from tidegate_spark.hook.plan import reason_to_persist
from tidegate_spark.testing import CoordinatorProcess

TIMEOUT = timedelta(seconds=1)
LIMITS = {"delta": "maxFilesPerTrigger", "iceberg": "streaming-max-files-per-micro-batch"}


class Table(Lake):
    """A table whose rows have a substream ``k`` and an event time ``t``."""

    def add(self, *pairs: tuple[str | None, int | None], files: int = 1) -> None:
        """Append rows, in a commit with a number of files."""
        self.append(self.rows(*pairs).repartition(files))

    def stream(self, limit: int | None = None) -> DataFrame:
        reader = self.spark.readStream.format(self.form)
        return (reader if limit is None else reader.option(LIMITS[self.form], limit)).load(self.name)


@pytest.fixture(params=FORMS)
def table(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Table:
    return Table(spark, request.param, tmp_path)


@pytest.fixture
def idling(tidegate: CoordinatorProcess) -> Job:
    return tidegate.job(config=limiting_lag(LAG, idle_timeout=TIMEOUT))


class SlowSink(Sink):
    """A sink whose batches take longer than the idle timeout."""

    def write(self, df: DataFrame, batch_id: int, batch: Batch) -> None:
        super().write(df, batch_id, batch)
        time.sleep(1.2 * TIMEOUT.total_seconds())


def run(job: Job, df: DataFrame, sink: Sink, checkpoint: str, reached: Callable[[], bool]) -> None:
    """Run a query until a condition holds."""
    stream = sink.after(job.stream(df, event_time="t", substream="k"))
    query = stream.trigger(processingTime="100 milliseconds").start(queryName="q", checkpointLocation=checkpoint)
    try:
        until(reached, "the condition", 100)
    finally:
        query.stop()


def states(job: Job) -> dict[str, str]:
    return {row["substream"]: row["state"] for row in job.substreams()}


def test_rows_behind_a_limit_hold_the_watermark(table: Table, idling: Job, checkpoint: str) -> None:
    sink = SlowSink()
    table.add(("a", 100_000), ("b", 40_000))
    for at in (110_000, 120_000, 130_000):
        table.add(("a", at))
    table.add(("b", 35_000))
    run(idling, table.stream(1), sink, checkpoint, lambda: sum(map(len, sink.on_time.values())) + len(sink.late) == 6)
    assert sink.late == {}
    assert set(filter(None, sink.pinned_watermarks.values())) == {30_000}


def test_rows_behind_the_limit_of_delta_hold_the_watermark(
    spark: SparkSession, idling: Job, checkpoint: str, tmp_path: Path
) -> None:
    """Without an option, a batch of Delta has at most 1,000 files."""
    table, sink = Table(spark, "delta", tmp_path), SlowSink()
    table.add(("a", 100_000), ("b", 40_000))
    run(idling, table.stream(), sink, checkpoint, lambda: len(sink.committed) == 1)
    table.add(*(("a", 110_000 + each) for each in range(4_000)), files=1_010)
    table.add(("b", 35_000))
    run(idling, table.stream(), sink, checkpoint, lambda: sum(len(found) for found in sink.on_time.values()) == 4_003)
    assert len(sink.on_time) >= 3, "the backlog took several batches"
    assert sink.late == {}


def test_a_silent_substream_does_not_hold_the_watermark(table: Table, idling: Job, checkpoint: str) -> None:
    """The table always has new rows, and each batch reads all new rows."""
    sink = Sink()
    table.add(("a", 100_000), ("b", 40_000))
    at = [110_000]

    def passes() -> bool:
        table.add(("a", at[0]))
        at[0] += 1000
        return "idle" in states(idling).values() if sink.committed else False

    run(idling, table.stream(10), sink, checkpoint, passes)
    assert states(idling)["b"] == "idle"
    assert sink.late == {}


def test_batches_of_a_table_are_read_again(table: Table, idling: Job, checkpoint: str) -> None:
    """Another append and a compaction during a batch do not change what its second read returns."""
    assert reason_to_persist(table.stream().filter("t > 0")) is None
    table.add(("a", 100_000), ("b", 140_000), files=2)
    found: list[list[list[int]]] = []

    def read_again(df: DataFrame, batch_id: int) -> None:
        reads = [sorted(row.t for row in df.collect())]
        table.add(("a", 150_000))
        table.compact()
        found.append([*reads, sorted(row.t for row in df.collect())])

    stream = idling.stream(table.stream(), event_time="t", substream="k").foreach_batch(read_again)
    to_the_end(stream, checkpoint)
    ((once, again),) = found
    assert once == again == [100_000, 140_000]


def test_partitions_of_a_table_are_no_substreams(table: Table, idling: Job, checkpoint: str) -> None:
    stream = idling.stream(table.stream(), event_time="t", substream=SOURCE_PARTITION)
    with pytest.raises(InvalidUsage, match=f"source {table.form} are the tasks of each batch"):
        stream.foreach_batch(lambda df, batch_id: None).start(queryName="q", checkpointLocation=checkpoint)
