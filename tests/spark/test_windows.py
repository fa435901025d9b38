"""Windowed aggregates of the hook, in real queries."""

import random
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.support.streams import rows, to_the_end
from tests.support.windows import SECOND, Results, tens
from tidegate_spark import InvalidUsage, Job, windows
from tidegate_spark.protocol.checkpoint import Checkpoint
from tidegate_spark.spark_session import setting
from tidegate_spark.testing import FileBatches
from tidegate_spark.windows.state import FileState
from tidegate_spark.windows.windowing import VERSIONS_KEPT


def test_a_window_is_emitted_once_when_it_closes(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str
) -> None:
    source.add(*rows(("a", 1000), ("a", 9000), ("b", 2000), ("b", 11_000)))
    source.add(*rows(("a", 12_000), ("a", 21_000), ("b", 8000)))
    source.add(*rows(("a", 29_000), ("b", 31_000)))
    source.add(*rows(("b", 9_999), ("b", 10_000)))
    results = Results()
    to_the_end(tens(job, source, spark, results), checkpoint)
    assert {
        batch: [(row["window"], row["k"], row["rows"]) for row in given] for batch, given in results.given.items()
    } == {
        # a is at 29 s and the lag is 10 s, so windows up to 10 s close. After the second batch, b was at 11 s.
        2: [({"start": 0, "end": 10_000}, "a", 2), ({"start": 0, "end": 10_000}, "b", 2)],
    }
    assert results.late == {3: [("b", 9_999)]}
    assert (results.count("on_time"), results.count("late"), results.count("updated")) == (10, 1, 0)
    assert job.status()["rows"]["late"] == 1


@pytest.mark.parametrize(("slide", "order"), [(10 * SECOND, "batch"), (5 * SECOND, "row")])
def test_event_times_out_of_range_do_not_stop_a_query_with_windows(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str, slide: int, order: Any
) -> None:
    """The lowest number often stands for "none". A query whose arithmetic it overflows would fail at every restart.

    The rows are late, also before the job has a watermark, and have neither a window nor a delay.
    """
    low, high = [("a", -(2**63)), ("a", -(2**53))], [("a", 2**53), ("a", 2**63 - 1)]
    source.add(*rows(*low, *high, ("a", 1000), ("a", -(2**53) + 1)))
    source.add(*rows(*low, ("a", 25_000), ("a", 24_000)))
    results = Results()
    to_the_end(tens(job, source, spark, results, slide=slide).measure_delays(order), checkpoint)
    assert results.late == {0: sorted([*low, *high], key=str), 1: sorted(low, key=str)}
    assert (results.count("on_time"), results.count("late"), results.count("future")) == (4, 4, 2)
    # The watermark is 15 s at the end. The lowest exact number has its windows, which begin below it.
    tables = results.table()
    assert {row["rows"] for row in tables.values()} == {1}
    assert sorted(start for start, _ in tables if start >= 0) == [0]
    lowest = [start for start, _ in tables if start < -SECOND * 10]
    assert len(lowest) == 10 * SECOND // slide and all(start <= -(2**53) + 1 < start + 10 * SECOND for start in lowest)
    assert job.status()["max_event_time"] == 25_000


def expected(
    batches: list[list[tuple[str, int]]], results: Results, size: int, slide: int, offset: int, lateness: int
) -> tuple[dict[int, list[Any]], dict[str, int]]:
    """Return the expected windows by batch, and the counts by row class.

    Both follow from the pinned watermarks of the batches and the watermarks after them.
    """
    content: dict[tuple[int, str], list[int]] = defaultdict(list)
    given: dict[tuple[int, str], int] = {}
    emitted, classes = {}, {"on_time": 0, "updated": 0, "late": 0}
    for number, batch in enumerate(batches):
        committed = results.committed[number]
        pinned_watermark = -(10**12) if committed.batch.watermark is None else committed.batch.watermark
        touched = set()
        for k, t in batch:
            starts = [s for s in range(offset - 10 * size, t + 1, slide) if s <= t < s + size]
            ends = [start + size for start in starts]
            classes[
                "on_time"
                if min(ends) > pinned_watermark
                else "updated"
                if min(ends) + lateness > pinned_watermark
                else "late"
            ] += 1
            for start in starts:
                if start + size + lateness > pinned_watermark:
                    content[start, k].append(t)
                    touched.add((start, k))
        watermark = committed.watermark
        out = []
        for key, times in sorted(content.items()):
            if watermark is not None and key[0] + size <= watermark and (key not in given or key in touched):
                out.append((*key, len(times), given.get(key)))
                given[key] = len(times)
        if out:
            emitted[number] = out
    return emitted, classes


@pytest.mark.parametrize(
    ("size", "slide", "offset", "lateness"), [(10, 10, 3, 0), (10, 10, 0, 25), (25, 10, 4, 0), (30, 10, 0, 40)]
)
def test_windows_equal_a_count_by_hand(
    spark: SparkSession,
    job: Job,
    source: FileBatches,
    checkpoint: str,
    size: int,
    slide: int,
    offset: int,
    lateness: int,
) -> None:
    chance = random.Random(size + lateness)  # noqa: S311 - the same rows each time
    batches = [
        [(chance.choice("ab"), SECOND * (20 * number + chance.randint(-150, 20)) // 2) for _ in range(12)]
        for number in range(8)
    ]
    for batch in batches:
        source.add(*rows(*batch))
    results = Results()
    stream = tens(job, source, spark, results)
    lengths = {"size": size * SECOND, "slide": slide * SECOND, "offset": offset * SECOND}
    windowed = (
        stream.windows(lengths["size"], lengths["slide"], lengths["offset"])
        .agg("k", rows=windows.count())
        .allowed_lateness(lateness * SECOND)
    )
    to_the_end(results.after(windowed), checkpoint)
    emitted, classes = expected(batches, results, lateness=lateness * SECOND, **lengths)
    assert {
        batch: [
            (row["window"]["start"], row["k"], row["rows"], row["previous"] and row["previous"]["rows"])
            for row in given
        ]
        for batch, given in results.given.items()
    } == emitted
    assert len(emitted) > 2 and classes["late"] and classes["on_time"] and bool(classes["updated"]) == (lateness > 0)
    assert {name: results.count(name) for name in classes} == classes
    assert sum(map(len, results.late.values())) == classes["late"]
    results.table()


def test_a_single_batch_run_emits_its_windows_and_the_next_continues(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str
) -> None:
    """The trigger ``once`` runs all available input as one batch."""
    results = Results()
    for given in ([("a", 1000), ("a", 35_000)], [("a", 26_000), ("a", 61_000)]):
        source.add(*rows(*given))
        stream = tens(job, source, spark, results).trigger(once=True)
        assert stream.start(queryName="q", checkpointLocation=checkpoint).awaitTermination(120)
    assert {
        batch: [(row["window"]["start"], row["rows"]) for row in given] for batch, given in results.given.items()
    } == {0: [(0, 1)], 1: [(20_000, 1), (30_000, 1)]}


def test_each_available_now_run_emits_its_closed_windows(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str
) -> None:
    results = Results()
    stream = tens(job, source, spark, results)
    source.add(*rows(("a", 1000), ("a", 20_000)))
    to_the_end(stream, checkpoint)
    assert [key for key, _ in results.table()] == [0], "the last batch of the run must close the window"
    source.add(*rows(("a", 19_999), ("a", 31_000)))
    source.add(*rows(("a", 41_000)))
    to_the_end(stream, checkpoint)
    assert {key: row["rows"] for (key, _), row in results.table().items()} == {0: 1, 10_000: 1, 20_000: 1}


def test_aggregates_equal_those_of_spark(spark: SparkSession, job: Job, checkpoint: str, tmp_path: Path) -> None:
    """Aggregates over three batches equal Spark's aggregates over all rows at once."""
    source = FileBatches(tmp_path / "input", "k string, at timestamp, v long, d decimal(10,2), w double")
    moments = [(f"2026-03-29T00:{minute:02d}:30Z", minute) for minute in range(0, 45, 3)]
    every = [
        {"k": None if v % 9 == 0 else "a", "at": at, "v": None if v % 6 == 0 else v, "d": str(v), "w": v / 4}
        for at, v in moments
    ]
    for part in (every[:5], every[5:11], every[11:]):
        source.add(*part)
    minutes = timedelta(minutes=10)
    distinct = windows.merged(lambda: F.hll_sketch_agg("v"), F.hll_union_agg, F.hll_sketch_estimate)
    got: list[Any] = []
    stream = (
        job.stream(source.stream(spark), event_time="at", substream=None)
        .windows(minutes)
        .agg(
            "k",
            rows=windows.count(),
            known=windows.count("v"),
            sum=windows.sum("d"),
            lowest=windows.min("v"),
            highest=windows.max("w"),
            mean=windows.avg("v"),
            distinct=distinct,
        )
        .foreach_batch(lambda df, batch_id: got.extend(df.drop("previous").collect()))
    )
    to_the_end(stream, checkpoint)
    job.complete()
    to_the_end(stream, checkpoint)
    plain = (
        spark.read.schema(source.schema)
        .json(str(source.directory))
        .groupBy(F.window("at", "10 minutes"), "k")
        .agg(
            F.count("*").alias("rows"),
            F.count("v").alias("known"),
            F.sum("d").alias("sum"),
            F.min("v").alias("lowest"),
            F.max("w").alias("highest"),
            F.avg("v").alias("mean"),
            F.hll_sketch_estimate(F.hll_sketch_agg("v")).alias("distinct"),
        )
    )
    assert sorted(got, key=str) == sorted(plain.collect(), key=str)
    assert len(got) > 5


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_windows_of_timestamps_without_a_zone_are_in_utc(
    spark: SparkSession, job: Job, checkpoint: str, tmp_path: Path, zone: str
) -> None:
    """The time zone of the session has no effect, not even when its clocks change."""
    source = FileBatches(tmp_path / "input", "at timestamp_ntz")
    source.add({"at": "2026-03-08T01:59:59.999"}, {"at": "2026-03-08T02:00:00"}, {"at": "2026-03-08T03:30:00"})
    got: list[Any] = []
    stream = job.stream(source.stream(spark), event_time="at", substream=None).windows(timedelta(hours=1))
    with setting(spark, "spark.sql.session.timeZone", zone):
        to_the_end(
            stream.agg(rows=windows.count()).foreach_batch(lambda df, batch_id: got.extend(df.collect())), checkpoint
        )
    assert sorted((row.window.start, row.window.end, row.rows) for row in got) == [
        (datetime(2026, 3, 8, 1), datetime(2026, 3, 8, 2), 1),
        (datetime(2026, 3, 8, 2), datetime(2026, 3, 8, 3), 1),
    ]


def test_other_windows_need_another_checkpoint(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str
) -> None:
    source.add(*rows(("a", 1000)))
    to_the_end(tens(job, source, spark, Results()), checkpoint)
    source.add(*rows(("a", 2000)))
    stream = job.stream(source.stream(spark), event_time="t", substream="k").windows(20 * SECOND)
    other = Results().after(stream.agg("k", rows=windows.count()))
    with pytest.raises(InvalidUsage, match=r"started with windows\(10000, .* Start with a new checkpoint"):
        to_the_end(other, checkpoint)
    stream = job.stream(source.stream(spark), event_time="t", substream="k").windows(10 * SECOND)
    other = Results().after(stream.agg("k", rows=windows.count(), last=windows.min("t")))
    with pytest.raises(InvalidUsage, match=r"last=max\(t\).*, not with .*last=min\(t\)"):
        to_the_end(other, checkpoint)


def test_a_checkpoint_of_spark_3_5_is_refused(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Spark 3.5, queries have no source of markers. Spark's own error would only mention a changed number of
    sources.
    """
    source.add(*rows(("a", 1000)))
    with monkeypatch.context() as older:
        older.setattr("tidegate_spark.start.PYTHON_SOURCES", (9, 0))
        to_the_end(tens(job, source, spark, Results()), checkpoint)
    with pytest.raises(InvalidUsage, match=r"is from Spark 3\.5.*on a new checkpoint"):
        to_the_end(tens(job, source, spark, Results()), checkpoint)


def test_the_state_has_only_windows_that_take_rows(
    spark: SparkSession, job: Job, source: FileBatches, checkpoint: str
) -> None:
    """The state does not grow with the number of batches."""
    batches = VERSIONS_KEPT + 5
    for number in range(batches):
        source.add(*rows(*((k, number * 10_000 + 5000) for k in "abc")))
    to_the_end(tens(job, source, spark, Results()).allowed_lateness(20 * SECOND), checkpoint)
    beside = Path(checkpoint) / "tidegate"
    versions = sorted(int(path.stem) for path in (beside / "windows").glob("*.json"))
    assert versions == list(range(batches - VERSIONS_KEPT, batches))
    assert sorted(int(path.stem) for path in (beside / "state").iterdir()) == versions
    # The last batch is at 145 s. Its pinned watermark is 125 s, so windows that end above 105 s still accept rows.
    state = FileState(Checkpoint(checkpoint)).read(spark, batches - 1)
    assert sorted({row.tidegate_start for row in state.collect()}) == [s * SECOND for s in (100, 110, 120, 130, 140)]
    assert state.count() == 3 * 5
