"""Spark's own operators on a stream with the watermark of a job."""

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from examples.flights import data
from examples.flights.settings import Settings
from examples.flights.spark import FlightsSource
from tests.support.local import LocalCoordinator
from tests.support.native import START, TEN, Out, ms, native, rows, seconds, start, tens, to_the_end, watermarks
from tests.support.partitions import TOTAL, four_partitions
from tests.support.streams import LAG, kill, known
from tests.support.waiting import until
from tidegate_spark import SOURCE_PARTITION, InvalidUsage, Job, limiting_lag
from tidegate_spark.spark_session import setting
from tidegate_spark.testing import CoordinatorProcess, FileBatches

# Spark's workers do not know the modules of the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture
def source(tmp_path: Path) -> FileBatches:
    """Return an empty source whose rows have a substream ``k`` and a timestamp ``t``."""
    return FileBatches(tmp_path / "input", "k string, t timestamp")


def test_a_partition_that_is_behind_has_no_late_rows(
    spark: SparkSession, tidegate: CoordinatorProcess, checkpoint: str
) -> None:
    """Spark's own watermark drops 800 of the 4000 rows (``test_modes.py``)."""
    job = tidegate.job(config=limiting_lag(LAG))
    stream = four_partitions(spark).select("partition", F.timestamp_millis("millis").alias("t"))
    out = Out()
    followed = native(job, stream, checkpoint, substream=SOURCE_PARTITION, windows=TEN)
    query = start(followed.groupBy(F.window("t", "10 seconds"), "partition").count(), out, checkpoint)
    try:
        query.processAllAvailable()
        until(lambda: job.status()["rows"]["on_time"] == TOTAL, "all rows reported")
        job.complete()
        until(lambda: sum(row["count"] for row in out.all()) == TOTAL, "all windows closed")
    finally:
        query.stop()
    assert job.status()["rows"] == {"on_time": TOTAL, "updated": 0, "late": 0, "null_event_time": 0, "future": 0}
    assert {row["substream"]: row["reported"] for row in job.substreams()} == dict.fromkeys("0123", TOTAL // 4)


def test_the_late_rows_are_those_that_spark_drops(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str
) -> None:
    """Random rows are compared with a count by hand, from the watermarks in Spark's log."""
    chance = random.Random(5)  # noqa: S311 - the same rows each time
    batches = [
        [(chance.choice("ab"), 6 * number + chance.randint(-900, 50) / 10) for _ in range(15)] for number in range(10)
    ]
    for batch in batches:
        source.add(*rows(*batch))
    out = to_the_end(tens(native(job, source.stream(spark), checkpoint, windows=TEN)), checkpoint)
    judged_by = watermarks(checkpoint)
    content: Counter[tuple[float, str]] = Counter()
    late = 0
    for number, batch in enumerate(batches):
        for k, second in batch:
            opens = second // 10 * 10
            if ms(opens + 10) <= judged_by.get(number - 1, 0):
                late += 1
            else:
                content[opens, k] += 1
    closed = {key: count for key, count in content.items() if ms(key[0] + 10) <= max(judged_by.values())}
    assert out.windows() == closed
    assert late > 10 and len(closed) > 5
    counted = job.status()["rows"]
    assert (counted["late"], counted["on_time"]) == (late, 150 - late)


@pytest.mark.parametrize("allow_multiple", ["true", "false"])
def test_without_windows_a_row_at_the_watermark_is_on_time(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str, allow_multiple: str
) -> None:
    """Spark would drop the row at its own watermark, so that watermark is one millisecond lower."""
    for _ in range(4):
        source.add(*rows(("a", 30)))  # the watermark rises to 20 s
    source.add(*rows(("b", 19.999), ("c", 20), ("d", 20.0005)))
    with setting(spark, "spark.sql.streaming.statefulOperator.allowMultiple", allow_multiple):
        out = to_the_end(native(job, source.stream(spark), checkpoint).dropDuplicates(["k", "t"]), checkpoint)
    assert {(row.k, seconds(row.t)) for row in out.all()} == {("a", 30), ("c", 20), ("d", 20.0005)}
    assert job.status()["rows"]["late"] == 1
    assert max(watermarks(checkpoint).values()) == ms(20) - 1


Operator = Callable[[DataFrame], DataFrame]
OPERATORS: dict[str, Operator] = {
    "window": lambda df: tens(df.filter("k = 'a'")),
    "window of a projection": lambda df: tens(df.select(F.upper("k").alias("k"), "t").filter("k = 'A'")),
    "session window": lambda df: (
        df.filter(F.col("k").isNotNull()).groupBy(F.session_window("t", "2 seconds"), "k").count()
    ),
    "distinct": lambda df: df.filter("length(k) > 0").dropDuplicates(["k", "t"]),
    "distinct within the watermark": lambda df: df.filter("k in ('a', 'b')").dropDuplicatesWithinWatermark(["k"]),
    "after a join with a table": lambda df: tens(df.join(df.sparkSession.createDataFrame([("a",)], "k string"), "k")),
    "filter on event time": lambda df: tens(df.filter(F.col("t") > F.lit(START))),
    "function of Python": lambda df: tens(df.filter(F.udf(lambda k: k == "a", "boolean")("k"))),
}


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=list(OPERATORS))
def test_operators_follow_the_watermark(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str, operator: Operator
) -> None:
    """No filter of the user removes markers before Spark has read them. Spark removes state below the watermark."""
    for number in range(4):
        source.add(*rows(("a", 20 * number), ("a", 20 * number + 1), ("b", 20 * number)))
    out = Out()
    query = start(operator(native(job, source.stream(spark), checkpoint)), out, checkpoint, availableNow=True)
    assert query.awaitTermination(120)
    assert max(watermarks(checkpoint).values()) == ms(50) - 1
    assert out.all()
    last = query.lastProgress
    assert last is not None
    kept = last["stateOperators"][0]["numRowsTotal"]
    assert kept <= 4, "state before 50 s must be removed"


@pytest.mark.parametrize("source_of_the_delay", ["configuration", "option", "neither"])
def test_duplicates_within_the_lag_are_dropped(
    spark: SparkSession,
    tidegate: CoordinatorProcess,
    job_name: str,
    source: FileBatches,
    checkpoint: str,
    source_of_the_delay: str,
) -> None:
    """The duplicate at 7 s is on time and has its first row at 0 s. Spark forgets the key after the watermark is 10 s.

    A program without the configuration knows no lag, and Spark would forget the key at once.
    """
    job = tidegate.job(job=job_name, config=limiting_lag(LAG))
    job.ensure_job()
    for key, second in [("x", 0), *(("a", 15), ("b", 15), ("c", 15)), ("x", 7), *[("d", 60)] * 4, ("x", 55)]:
        source.add(*rows((key, second)))
    more: dict[str, Any] = {"substream": None}
    if source_of_the_delay != "configuration":
        job = tidegate.job(job=job_name)
    if source_of_the_delay == "option":
        more["duplicates_within"] = LAG
    followed = native(job, source.stream(spark), checkpoint, **more).dropDuplicatesWithinWatermark(["k"])
    if source_of_the_delay == "neither":
        with pytest.raises(StreamingQueryException, match=r"Pass duplicates_within=\.\.\. to with_watermark\(\)"):
            to_the_end(followed, checkpoint)
        return
    found = [(row.k, seconds(row.t)) for row in to_the_end(followed, checkpoint).all()]
    assert found == [("x", 0), ("a", 15), ("b", 15), ("c", 15), ("d", 60), ("x", 55)]
    assert max(watermarks(checkpoint).values()) == ms(50) - 1
    assert job.status()["rows"]["late"] == 0


def test_markers_never_reach_the_user(spark: SparkSession, job: Job, source: FileBatches, checkpoint: str) -> None:
    """All rows of the user arrive unchanged, with null event times and columns of all types."""
    schema = "k string, t timestamp, n int, `a b` array<struct<x: double>>, m map<string, date>, d decimal(20, 3)"
    source = FileBatches(source.directory, schema)
    row = {"n": 1, "a b": [{"x": 1.5}], "m": {"y": "2024-01-01"}, "d": "12.345"}
    for number in range(3):
        source.add(*({**pair, **row} for pair in rows(("a", 20 * number), ("b", None), (None, 20 * number))))
    stream = source.stream(spark)
    followed = native(job, stream, checkpoint)
    assert followed.columns == stream.columns
    assert [field.dataType for field in followed.schema] == [field.dataType for field in stream.schema]
    out = to_the_end(followed, checkpoint)
    assert len(out.all()) == 9
    assert {(found.n, found["a b"][0].x, str(found.d)) for found in out.all()} == {(1, 1.5, "12.345")}
    assert job.status()["rows"] == {"on_time": 6, "updated": 0, "late": 0, "null_event_time": 3, "future": 0}


def test_columns_may_have_any_name(spark: SparkSession, job: Job, source: FileBatches, checkpoint: str) -> None:
    time, key = "event `time`.at", "a b.c"
    source.add(*rows(("a", 1), ("a", 25)))
    stream = source.stream(spark).withColumnsRenamed({"t": time, "k": key})
    followed = job.with_watermark(
        stream, event_time=time, substream=key, queryName="q", checkpointLocation=checkpoint, windows=TEN
    )
    renamed = followed.withColumnsRenamed({time: "t", key: "k"})
    assert to_the_end(tens(renamed), checkpoint).windows() == {(0, "a"): 1}
    assert {row["substream"] for row in job.substreams()} == {"a"}


def test_an_outer_join_of_two_inputs_waits_for_both(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str, tmp_path: Path
) -> None:
    """A row without a partner is emitted when the watermark rules out that a partner will come."""
    shown = FileBatches(tmp_path / "shown", source.schema)
    for number in range(4):
        shown.add(*rows(("a", 20 * number), ("b", 20 * number + 1)))
        source.add(*rows(("a", 20 * number + 2)))
    left, right = (
        native(job, stream, checkpoint, queryName=name).select(
            F.col("k").alias(f"k_{name}"), F.col("t").alias(f"t_{name}")
        )
        for name, stream in (("shown", shown.stream(spark)), ("clicked", source.stream(spark)))
    )
    joined = left.join(
        right,
        F.expr("k_shown = k_clicked AND t_clicked BETWEEN t_shown AND t_shown + INTERVAL 5 SECONDS"),
        "left_outer",
    )
    out = to_the_end(joined, checkpoint)
    found = sorted((row.k_shown, seconds(row.t_shown), row.t_clicked and seconds(row.t_clicked)) for row in out.all())
    assert max(watermarks(checkpoint).values()) == ms(50) - 1, "the slowest substream is at 60 s"
    assert found == [
        ("a", 0, 2),
        ("a", 20, 22),
        ("a", 40, 42),
        ("a", 60, 62),
        ("b", 1, None),
        ("b", 21, None),
        ("b", 41, None),
    ]
    assert {row["query"] for row in job.substreams()} == {"shown", "clicked"}


def test_a_left_semi_join_may_be_restarted_without_rows(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str, tmp_path: Path
) -> None:
    """Spark refuses a checkpoint if the number of stateful operators depends on the rows of a batch."""
    inputs = {"shown": FileBatches(tmp_path / "shown", source.schema), "clicked": source}
    condition = F.expr("k_shown = k_clicked AND t_clicked BETWEEN t_shown AND t_shown + INTERVAL 5 SECONDS")
    for number, expected in enumerate((1, 0, 1)):
        if expected:
            inputs["shown"].add(*rows(("a", 20 * number)))
            inputs["clicked"].add(*rows(("a", 20 * number + 2)))
        left, right = (
            native(job, files.stream(spark), checkpoint, queryName=name).selectExpr(f"k k_{name}", f"t t_{name}")
            for name, files in inputs.items()
        )
        assert len(to_the_end(left.join(right, condition, "left_semi"), checkpoint).all()) == expected


def test_each_run_begins_with_a_marker_of_every_input(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str, tmp_path: Path
) -> None:
    """Spark does not keep the watermarks of several inputs across runs. Without markers, it would start one at zero."""
    quiet = FileBatches(tmp_path / "quiet", source.schema)
    quiet.add(*rows(("b", 100)))
    source.add(*rows(("a", 1), ("a", 25)))
    inputs = (
        native(job, stream.stream(spark), checkpoint, queryName=name, windows=TEN)
        for name, stream in (("busy", source), ("quiet", quiet))
    )
    both = tens(next(inputs).union(next(inputs)))
    assert to_the_end(both, checkpoint).windows() == {(0, "a"): 1}
    source.add(*rows(("a", 45)))
    assert to_the_end(both, checkpoint).windows() == {(20, "a"): 1}
    job.complete()
    assert to_the_end(both, checkpoint).windows() == {(40, "a"): 1, (100, "b"): 1}


def test_complete_up_to_a_time_emits_state_that_ends_after_the_last_event(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str
) -> None:
    """A session ends a gap after its last row. Spark emits it when the watermark has passed its end.

    The call with ``up_to`` may follow an earlier ``complete()``.
    """
    source.add(*rows(("a", 1), ("a", 3), ("b", 25)))
    followed = native(job, source.stream(spark), checkpoint)
    sessions = followed.groupBy(F.session_window("t", "10 seconds").alias("window"), "k").count()
    assert to_the_end(sessions, checkpoint).windows() == {}
    job.complete()
    assert to_the_end(sessions, checkpoint).windows() == {(1, "a"): 2}
    job.complete(up_to=START + timedelta(seconds=25 + 10, milliseconds=1))
    assert to_the_end(sessions, checkpoint).windows() == {(25, "b"): 1}


class KeyTimeout(StatefulProcessor):
    """A processor that emits each key five seconds after its last row."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[pd.DataFrame]:
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        last = max(frame["t"].max() for frame in rows)
        self.handle.registerTimer(int(last.timestamp() * 1000) + 5000)
        yield pd.DataFrame({"k": [], "at": []}, dtype=str)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"k": [key[0]], "at": [str(expiredTimerInfo.getExpiryTimeInMs())]})

    def close(self) -> None:
        pass


def test_timers_follow_the_watermark(spark: SparkSession, job: Job, source: FileBatches, checkpoint: str) -> None:
    """Timers of ``transformWithState`` expire when the watermark passes them."""
    source.add(*rows(("c", 0), ("a", 0)))
    for number in range(1, 4):
        source.add(*rows(("a", 20 * number), ("b", 20 * number)))
    with (
        setting(spark, "spark.sql.streaming.stateStore.providerClass", ROCKS_DB),
        setting(spark, "spark.sql.session.timeZone", "UTC"),
    ):
        stream = native(job, source.stream(spark), checkpoint, substream=None).filter("k IN ('a', 'c')")
        expired = stream.groupBy("k").transformWithStateInPandas(
            KeyTimeout(), outputStructType="k string, at string", outputMode="append", timeMode="EventTime"
        )
        out = to_the_end(expired, checkpoint)
    assert max(watermarks(checkpoint).values()) == ms(50) - 1
    assert [(row.k, int(row["at"])) for row in out.all()] == [("c", ms(5))]


# -- runs, outages and failures -----------------------------------------------------------------------------------


def test_a_quiet_stream_closes_its_last_windows(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str, tmp_path: Path
) -> None:
    """The query gets no more rows. Its windows close when another query moves the watermark."""
    source.add(*rows(("a", 1), ("a", 12)))
    out, trigger_s = Out(), 1
    followed = tens(native(job, source.stream(spark), checkpoint, windows=TEN))
    query = start(followed, out, checkpoint, processingTime=f"{trigger_s} seconds")
    try:
        until(lambda: known(job) == {"a": ms(12)}, "a first batch")
        assert out.rows == {}
        other = FileBatches(tmp_path / "other", source.schema)
        other.add(*rows(("b", 31)))
        job.done("q", ["a"])
        to_the_end(
            native(job, other.stream(spark), str(tmp_path / "there"), queryName="other"), str(tmp_path / "there")
        )
        until(lambda: len(out.windows()) == 2, "the windows up to 20 s")
        source.add(*rows(("a", 2), ("a", 41)))
        until(lambda: sum(job.status()["rows"].values()) == 5, "the query continues")
    finally:
        query.stop()
    assert out.windows() == {(0, "a"): 1, (10, "a"): 1}


def test_an_available_now_run_emits_its_windows_and_the_next_continues(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str
) -> None:
    source.add(*rows(("a", 1), ("a", 12)))
    source.add(*rows(("a", 25)))
    followed = tens(native(job, source.stream(spark), checkpoint, windows=TEN))
    assert to_the_end(followed, checkpoint).windows() == {(0, "a"): 1}
    assert to_the_end(followed, checkpoint).windows() == {}
    source.add(*rows(("a", 13), ("a", 31)))
    assert to_the_end(followed, checkpoint).windows() == {(10, "a"): 2}
    job.complete()
    assert to_the_end(followed, checkpoint).windows() == {(20, "a"): 1, (30, "a"): 1}
    source.add(*rows(("a", 100)))
    assert to_the_end(followed, checkpoint).windows() == {}
    assert job.status()["rows"]["on_time"] == 5, "a complete job accepts no rows"


def test_a_single_batch_run_leaves_its_windows_to_the_next(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str
) -> None:
    """With ``once``, the marker in one batch closes windows in the next batch. No row is lost."""
    followed = tens(native(job, source.stream(spark), checkpoint, windows=TEN))
    found: dict[tuple[float, str], int] = {}
    for number in range(4):
        source.add(*rows(("a", 1 + 20 * number)))
        out = Out()
        assert start(followed, out, checkpoint, once=True).awaitTermination(120)
        found |= out.windows()
    assert found == {(0, "a"): 1}
    assert to_the_end(followed, checkpoint).windows() == {(20, "a"): 1, (40, "a"): 1}
    assert job.status()["rows"]["on_time"] == 4


def test_the_substreams_of_a_silent_native_query_become_idle(
    spark: SparkSession, tidegate: CoordinatorProcess, source: FileBatches, checkpoint: str
) -> None:
    """The heartbeats of a silent query prove that no data arrives. Its idle substreams do not hold the watermark."""
    job = tidegate.job(config=limiting_lag(LAG, idle_timeout=timedelta(seconds=2)))
    source.add(*rows(("a", 40), ("b", 5)))
    out = Out()
    query = start(tens(native(job, source.stream(spark), checkpoint, windows=TEN)), out, checkpoint)
    try:
        until(lambda: job.status()["substreams"]["all_idle"] if known(job) else False, "all idle")
        source.add(*rows(("a", 45)))
        until(lambda: out.windows() == {(0, "b"): 1}, "the windows up to 30 s")
    finally:
        query.stop()
    assert job.status()["watermark"] == ms(35)


def test_a_native_query_continues_while_the_coordinator_is_away(
    spark: SparkSession, own: LocalCoordinator, source: FileBatches, checkpoint: str
) -> None:
    """Batches continue with the last watermark. The same run or the next one reports their rows later."""
    job = own.job(config=limiting_lag(LAG))
    followed = tens(native(job, source.stream(spark), checkpoint, windows=TEN))
    source.add(*rows(("a", 1), ("a", 25)))
    out = Out()
    query = start(followed, out, checkpoint)
    try:
        until(lambda: out.windows() == {(0, "a"): 1}, "a first window")
        own.stop()
        for number in range(3):
            source.add(*rows(("a", 30 + number), ("a", 2)))
        query.processAllAvailable()
        own.start()
        until(lambda: job.status()["max_event_time"] == ms(32), "the same run has reported its batches")
        own.stop()
        source.add(*rows(("a", 55)))
        query.processAllAvailable()
    finally:
        query.stop()
    own.start()
    assert to_the_end(followed, checkpoint).windows() == {(20, "a"): 1, (30, "a"): 3}
    assert job.status()["rows"] == {"on_time": 6, "updated": 0, "late": 3, "null_event_time": 0, "future": 0}
    assert job.status()["watermark"] == ms(45)


def test_a_native_query_restores_an_emptied_coordinator(
    spark: SparkSession, own: LocalCoordinator, source: FileBatches, checkpoint: str
) -> None:
    job = own.job(config=limiting_lag(LAG))
    source.add(*rows(("a", 40), ("b", 50)))
    out = Out()
    query = start(tens(native(job, source.stream(spark), checkpoint)), out, checkpoint)
    try:
        until(lambda: known(job) == {"a": ms(40), "b": ms(50)}, "a first batch")
        kill(own, empties=True)
        own.start()
        until(lambda: known(job) == {"a": ms(40), "b": ms(50)}, "both substreams are restored without new data")
        source.add(*rows(("a", 60)))
        until(lambda: known(job) == {"a": ms(60), "b": ms(50)}, "the next batch")
    finally:
        query.stop()
    assert job.status()["watermark"] == ms(40)


def test_a_batch_that_failed_is_counted_once(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str
) -> None:
    """The replay reads the same files in other partitions."""
    for number in range(6):
        source.add(*rows(("a", number), ("b", number)))
    stream = spark.readStream.schema(source.schema).json(str(source.directory))
    followed = native(job, stream, checkpoint)
    partitions: list[int] = []

    def fail_once(df: DataFrame, batch_id: int) -> None:
        df.count()
        partitions.append(df.rdd.getNumPartitions())
        if len(partitions) == 1:
            raise RuntimeError("a disk was full")

    def run() -> None:
        writer = followed.writeStream.foreachBatch(fail_once).trigger(availableNow=True)
        writer.start(checkpointLocation=checkpoint).awaitTermination(120)

    with pytest.raises(StreamingQueryException, match="a disk was full"):
        run()
    with setting(spark, "spark.sql.files.minPartitionNum", 1):
        run()
    assert partitions[1] != partitions[0]
    assert job.status()["rows"]["on_time"] == 12


def test_the_jobs_limit_on_future_event_times_applies(
    spark: SparkSession, tidegate: CoordinatorProcess, job_name: str, source: FileBatches, checkpoint: str
) -> None:
    """The limit also applies to a program without a configuration, and after a change."""
    owner = tidegate.job(job=job_name, config=limiting_lag(LAG, max_future_skew=None))
    owner.ensure_job()
    source.add({"k": "a", "t": "2090-01-01T00:00:00Z"}, {"k": "a", "t": "2090-01-01T00:01:00Z"})
    followed = tens(native(tidegate.job(job=job_name), source.stream(spark), checkpoint, windows=TEN))
    assert len(to_the_end(followed, checkpoint).all()) == 1
    owner.configure(limiting_lag(LAG))
    source.add({"k": "a", "t": "2090-01-01T00:02:00Z"})
    to_the_end(followed, checkpoint)
    assert (owner.status()["rows"]["on_time"], owner.status()["rows"]["future"]) == (2, 1)


def test_a_batch_that_is_run_twice_is_counted_once(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str
) -> None:
    """The function reads the batch twice, and a union contains the input twice."""
    source.add(*rows(("a", 1), ("b", 12)))
    followed = native(job, source.stream(spark), checkpoint)
    counted: list[int] = []

    def twice(df: DataFrame, batch_id: int) -> None:
        counted.extend([df.count(), len(df.collect())])

    both = followed.union(followed.filter("k = 'a'"))
    query = both.writeStream.foreachBatch(twice).trigger(availableNow=True).option("checkpointLocation", checkpoint)
    assert query.start().awaitTermination(120)
    assert counted[:2] == [3, 3]
    assert job.status()["rows"]["on_time"] == 2


# -- the flights --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flights(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> "Flights":
    return Flights(spark, tmp_path_factory.mktemp("flights"))


class Flights:
    """The flights that landed on one day, with one file per hour, and their hourly counts by Spark."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        chosen = Settings(datetime(2013, 1, 2, tzinfo=UTC), 1, 1, 120, 0, directory)
        self.landings = data.load(chosen)
        files = data.write_landings(self.landings, chosen, directory / "landings")
        self.batches = [pd.read_parquet(path) for path in sorted((directory / "landings").glob("*.parquet"))]
        assert len(self.batches) == files
        self.stream = FlightsSource(spark, directory / "landings", []).stream()

    def counted(self, job: Job, checkpoint: str, **more: Any) -> Counter[tuple[str, pd.Timestamp]]:
        """Return the departures by airport and hour after the end of the input."""
        followed = job.with_watermark(
            self.stream,
            event_time="departed_at",
            queryName="departures",
            checkpointLocation=checkpoint,
            windows=timedelta(hours=1),
            **more,
        )
        hourly = followed.groupBy(F.window("departed_at", "1 hour"), "origin").count()
        first = to_the_end(hourly, checkpoint)
        job.complete()
        found: Counter[tuple[str, pd.Timestamp]] = Counter()
        for row in first.all() + to_the_end(hourly, checkpoint).all():
            hour = pd.Timestamp(row.window.start.astimezone(UTC))
            assert (row.origin, hour) not in found
            found[row.origin, hour] = row["count"]
        return found


def by_hour(flights: pd.DataFrame) -> Counter[tuple[str, pd.Timestamp]]:
    return Counter(zip(flights["origin"], flights["departed_at"].dt.floor("h"), strict=True))


def test_hourly_flights_equal_those_of_pandas(tidegate: CoordinatorProcess, flights: Flights, checkpoint: str) -> None:
    """The lag exceeds the disorder of every destination, so no row is late."""
    job = tidegate.job(config=limiting_lag(timedelta(minutes=120)))
    counted = flights.counted(job, checkpoint, substream="dest", declare=flights.landings.destinations)
    assert counted == by_hour(flights.landings.flights)
    assert job.status()["rows"]["late"] == 0


def test_hourly_flights_lack_exactly_the_late_ones(
    tidegate: CoordinatorProcess, flights: Flights, checkpoint: str
) -> None:
    """All flights are one substream, as with Spark's own watermark."""
    job = tidegate.job(config=limiting_lag(timedelta(minutes=30)))
    counted = flights.counted(job, checkpoint, substream=None)
    judged_by = watermarks(checkpoint)
    late = Counter[tuple[str, pd.Timestamp]]()
    for number, batch in enumerate(flights.batches):
        closed = pd.Timestamp(judged_by.get(number - 1, 0), unit="ms", tz="UTC")
        late += by_hour(batch[batch["departed_at"].dt.floor("h") + pd.Timedelta(hours=1) <= closed])
    assert counted + late == by_hour(flights.landings.flights)
    assert job.status()["rows"]["late"] == late.total() > 10


# -- refusals -----------------------------------------------------------------------------------------------------


def test_a_column_that_arrow_cannot_carry_is_refused(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str
) -> None:
    """The batch would fail in every attempt. ``tests/client/test_refusals.py`` covers refusals without Spark."""
    df = source.stream(spark).withColumn("i", F.make_ym_interval(F.lit(1)))
    with pytest.raises(InvalidUsage, match="does not support a column of the stream"):
        native(job, df, checkpoint)


def test_the_maximum_of_several_watermarks_is_refused_at_any_time(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str
) -> None:
    """With that policy, the watermark of another input would make rows late, so the first batch fails."""
    source.add(*rows(("a", 1)))
    highest = setting(spark, "spark.sql.streaming.multipleWatermarkPolicy", "max")
    with highest, pytest.raises(InvalidUsage, match="multipleWatermarkPolicy is max"):
        native(job, source.stream(spark), checkpoint)
    followed = native(job, source.stream(spark), checkpoint)
    highest = setting(spark, "spark.sql.streaming.multipleWatermarkPolicy", "max")
    with highest, pytest.raises(StreamingQueryException, match="multipleWatermarkPolicy is max"):
        to_the_end(tens(followed), checkpoint)
    assert known(job) == {}


def test_a_checkpoint_other_than_that_of_the_query_is_refused(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str, tmp_path: Path
) -> None:
    """The check also works if the batch function reads no rows, so that no task runs."""
    source.add(*rows(("a", 1)))
    followed = native(job, source.stream(spark), str(tmp_path / "elsewhere"))
    with pytest.raises(StreamingQueryException, match="pass the same checkpointLocation"):
        to_the_end(tens(followed), checkpoint)
    query = followed.writeStream.foreachBatch(lambda df, batch_id: None).start(checkpointLocation=f"{checkpoint}-2")
    with pytest.raises(StreamingQueryException, match="pass the same checkpointLocation"):
        query.awaitTermination(60)


def test_two_inputs_of_one_name_are_refused(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str
) -> None:
    """Reports of one input would replace those of the other."""
    source.add(*rows(("a", 1)))
    one, other = (native(job, source.stream(spark), checkpoint) for _ in range(2))
    with pytest.raises(StreamingQueryException, match="Pass another name for each further input"):
        to_the_end(one.union(other), checkpoint)


def test_a_missing_job_is_refused(
    spark: SparkSession, tidegate: CoordinatorProcess, source: FileBatches, checkpoint: str
) -> None:
    source.add(*rows(("a", 1)))
    with pytest.raises(StreamingQueryException, match="has no job 'nowhere'"):
        to_the_end(native(tidegate.job(job="nowhere"), source.stream(spark), checkpoint), checkpoint)
