"""Delays of rows: Spark measures the expected delays, and the coordinator learns lags from them."""

from collections import Counter
from datetime import timedelta
from random import Random
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession

from tests.support.streams import Sink, rows, to_the_end
from tidegate.domain.completeness import bucket_of
from tidegate_spark import InvalidUsage, Job, target_completeness
from tidegate_spark.columns import Columns
from tidegate_spark.frame import Frame
from tidegate_spark.hook.classify import RowClassifier
from tidegate_spark.hook.delays import DelayMeasurement, DelayOrder
from tidegate_spark.hook.folding import FullFold, on_driver
from tidegate_spark.protocol.fold import HIGHEST, Fold
from tidegate_spark.protocol.reports import DELAYS_PER_CALL, in_calls
from tidegate_spark.substreams import name_of, values_of
from tidegate_spark.testing import CoordinatorProcess, FileBatches

Rows = list[tuple[str | None, int | None, int | None]]


def some_rows(count: int) -> Rows:
    chance = Random(3)  # noqa: S311 - the same rows each time
    return [
        (
            chance.choice(["a", "b/c", "%2F", "", None, "(null)", "é"]),
            chance.choice([1, None]),
            chance.choice([None, HIGHEST + 7, 40_000, *range(1_000, 100_000, 777)]),
        )
        for _ in range(count)
    ]


def by_hand(
    found: Rows, max_event_times: dict[str, int], frame: Frame | None, order: DelayOrder
) -> dict[str, dict[int, int]]:
    reached, delays = dict(max_event_times), dict[str, Counter[int]]()
    for word, number, time in found:
        name = name_of((word, None if number is None else str(number)))
        if time is None or time > 1_000_000:
            continue
        counts = delays.setdefault(name, Counter())
        judged_at = time if frame is None else (time - frame.offset) // frame.slide * frame.slide
        judged_at += 0 if frame is None else frame.offset + frame.slide - 1
        if name in reached:
            counts[bucket_of(reached[name] - judged_at)] += 1
        if order == "row":
            reached[name] = max(time, reached.get(name, time))
    return {name: dict(counts) for name, counts in delays.items()}


@pytest.mark.parametrize("order", ["batch", "row"])
@pytest.mark.parametrize("frame", [None, Frame(10_000, 5_000, 300)])
def test_spark_measures_delays_as_by_hand(spark: SparkSession, order: DelayOrder, frame: Frame | None) -> None:
    found = some_rows(3_000)
    names = {name_of((word, None if number is None else str(number))) for word, number, _ in found}
    # The values of a marked name cannot be derived from the name.
    marked = {name for name in names if "~" in name}
    assert all(name_of(values_of(name, 2)) == name for name in names - marked)
    max_event_times = {name: 20_000 + 5_000 * at for at, name in enumerate(sorted(names)) if at % 4}
    df = spark.createDataFrame(found, "word string, number int, t long").coalesce(1)
    classifier = RowClassifier(30_000, 1_000_000)
    columns, measurement = Columns("t", ["word", "number"]), DelayMeasurement(order, max_event_times, frame)
    measured = on_driver(df, FullFold(columns, classifier, None, measurement), 2)
    plainly = on_driver(df, FullFold(columns, classifier), 2)
    assert measured is not None and plainly is not None
    expected = by_hand(found, max_event_times, frame, order)
    for name, delays in zip(measured.substream, measured.delays, strict=True):
        if name not in marked or (order == "row" and name not in max_event_times):
            assert {bucket: count for bucket, count in delays} == expected.get(name, {}), name  # noqa: C416 - pairs are lists
    assert len(expected) > 8
    assert 0 < len(marked) < 6
    assert _without_delays(measured) == _without_delays(plainly)


def _without_delays(fold: Fold) -> Any:
    columns = (
        fold.substream,
        fold.max_event_time,
        fold.rows,
        fold.updated,
        fold.late,
        fold.null_event_time,
        fold.future,
    )
    return sorted(zip(*columns, strict=True))


def test_delays_of_a_stream_with_one_substream(spark: SparkSession) -> None:
    found: Rows = [(None, None, time) for time in (1_000, 5_000, 2_000, 9_000, 8_999)]
    df = spark.createDataFrame(found, "word string, number int, t long").coalesce(1)
    expected: dict[DelayOrder, list[int]] = {"batch": [4_000, 0, 3_000, 0, 0], "row": [4_000, 0, 3_000, 0, 1]}
    for order, delays in expected.items():
        measurement = DelayMeasurement(order, {"(all)": 5_000}, None)
        fold = on_driver(df, FullFold(Columns("t", None), RowClassifier(None, HIGHEST), None, measurement), 1)
        assert fold is not None
        assert dict(map(tuple, fold.delays[0])) == Counter(map(bucket_of, delays))  # type: ignore[arg-type]
    # In the first batch, no earlier event time exists, so no delay is measured.
    fold = on_driver(
        df, FullFold(Columns("t", None), RowClassifier(None, HIGHEST), None, DelayMeasurement("batch", {}, None)), 1
    )
    assert fold is not None and fold.delays == [[]]


@pytest.mark.parametrize("mode", ["executor", "driver"])
def test_each_substream_learns_its_own_lag(
    spark: SparkSession, source: FileBatches, tidegate: CoordinatorProcess, checkpoint: str, mode: Any
) -> None:
    """When rows of one of two substreams arrive late, only the lag of that substream grows."""
    config = target_completeness(0.9, timedelta(seconds=60), min_rows=20)
    job = tidegate.job(config=config)
    for batch in range(4):
        first = 100_000 * (batch + 1)
        late = [("late", first - 1000 * at) for at in range(20)]
        source.add(*rows(*late, *(("orderly", first + at) for at in range(20))))
    sink = Sink()
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k")).reporting(mode)
    to_the_end(stream, checkpoint)
    lags = {row["substream"]: row["lag"] for row in job.substreams()}
    assert lags == {"orderly": 0, "late": 0}
    source.add(*rows(*(("late", 400_000 - 1000 * at) for at in range(60)), ("orderly", 500_000)))
    to_the_end(sink.after(job.stream(source.stream(spark), event_time="t", substream="k")).reporting(mode), checkpoint)
    lags = {row["substream"]: row["lag"] for row in job.substreams()}
    assert lags["orderly"] == 0
    assert lags["late"] == pytest.approx(50_000, rel=0.2)


def test_delays_are_measured_on_request(
    spark: SparkSession, source: FileBatches, job: Job, tidegate: CoordinatorProcess, checkpoint: str
) -> None:
    source.add(*rows(("a", 100_000)))
    source.add(*rows(("a", 99_000), ("a", 120_000)))

    def known() -> int:
        found = httpx.get(f"{tidegate.url}/v1/jobs/{job.connection.job}/completeness").raise_for_status().json()
        return int(found["rows"])

    plain = job.stream(source.stream(spark), event_time="t", substream="k").foreach_batch(lambda df, batch_id: None)
    to_the_end(plain, checkpoint)
    assert known() == 0
    source.add(*rows(("a", 119_000), ("a", 90_000)))
    to_the_end(plain.measure_delays("row"), checkpoint)
    assert known() == 2
    source.add(*rows(("a", 119_000), ("a", 90_000)))
    to_the_end(plain.measure_delays("batch"), checkpoint)
    assert known() == 4
    with pytest.raises(InvalidUsage, match=r"measure_delays\(\) takes one of"):
        plain.measure_delays("rows")  # type: ignore[arg-type]


def test_running_queries_measure_delays_when_the_policy_needs_them(
    spark: SparkSession, source: FileBatches, job: Job, checkpoint: str
) -> None:
    sink = Sink()
    stream = sink.after(job.stream(source.stream(spark), event_time="t", substream="k"))
    query = stream.start(queryName="q", checkpointLocation=checkpoint)
    try:
        source.add(*rows(("a", 100_000)))
        query.processAllAvailable()
        job.configure(target_completeness(0.9, timedelta(seconds=60), min_rows=20))
        source.add(*rows(*(("a", 100_000 - 1000 * at) for at in range(40))))
        query.processAllAvailable()
    finally:
        query.stop()
    assert job.substreams()[0]["lag"] == pytest.approx(36_000, rel=0.1)


def test_delays_are_split_into_calls() -> None:
    sizes = [DELAYS_PER_CALL - 1, 1, 1, DELAYS_PER_CALL + 5, 0, 2]
    columns: dict[str, list[Any]] = {
        "substreams": list("abcdef"),
        "delays": [[[1, 1]] * size if size else None for size in sizes],
    }
    calls = [call["substreams"] for call in in_calls(columns)]
    assert calls == [["a", "b"], ["c"], ["d"], ["e", "f"]]
