"""Rows by hour of event time: Spark counts the expected rows, and the coordinator shows them."""

from collections import Counter
from random import Random
from typing import Any

import httpx
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.streams import rows, to_the_end
from tidegate_spark import Job
from tidegate_spark.columns import Columns
from tidegate_spark.frame import Frame
from tidegate_spark.hook.classify import RowClassifier
from tidegate_spark.hook.delays import DelayMeasurement
from tidegate_spark.hook.folding import FullFold, PlainFold, on_driver
from tidegate_spark.protocol.fold import (
    HIGHEST,
    HOUR,
    HOURS_KEPT,
    HOURS_PER_COMMIT,
    LOWEST,
    Fold,
    Hours,
    merge_hours,
    spread,
)
from tidegate_spark.testing import CoordinatorProcess, FileBatches

LATEST = 50 * HOUR


def by_hand(found: list[tuple[str, int | None]], classifier: RowClassifier) -> dict[str, Hours]:
    counts = dict[str, dict[int, Counter[str]]]()
    for name, time in found:
        of_each = counts.setdefault(name, {})
        if time is None or not LOWEST <= time <= LATEST:
            continue
        of_hour = of_each.setdefault(time // HOUR, Counter())
        of_hour["rows"] += 1
        if time < classifier.late_below:
            of_hour["late"] += 1
        elif time < classifier.on_time_from:
            of_hour["updated"] += 1
    return {
        name: [[hour, of["rows"], of["updated"], of["late"]] for hour, of in sorted(hours.items())]
        for name, hours in counts.items()
    }


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("frame", [None, Frame(HOUR // 2, HOUR // 2, 777)])
def test_spark_counts_hours_as_by_hand(spark: SparkSession, frame: Frame | None, measured: bool) -> None:
    chance = Random(5)  # noqa: S311 - the same rows each time
    edges = [-(2**53), LOWEST, -HOUR, -HOUR - 1, -1, 0, HOUR - 1, LATEST, LATEST + 1, HIGHEST + 9, None]
    found = [(chance.choice("ab"), chance.choice([*edges, *range(-HOUR, 40 * HOUR, HOUR // 7)])) for _ in range(2_000)]
    classifier = RowClassifier(20 * HOUR, LATEST, frame=frame, lateness=0 if frame is None else 2 * HOUR)
    delays = DelayMeasurement("batch", {"a": 30 * HOUR, "b": HOUR}, None) if measured else None
    df = spark.createDataFrame(found, "k string, t long")
    fold = on_driver(df, FullFold(Columns("t", "k"), classifier, None, delays), 2)
    assert fold is not None
    expected = by_hand(found, classifier)
    assert dict(zip(fold.substream, fold.hours, strict=True)) == expected
    assert sum(late for hours in expected.values() for *_, late in hours) > 300
    assert sum(fold.late) == sum(late for hours in expected.values() for *_, late in hours) + sum(
        1 for _, time in found if time == -(2**53)
    )


def test_an_empty_batch_has_no_hours(spark: SparkSession) -> None:
    df = spark.createDataFrame([], "t long")
    for delays in (None, DelayMeasurement("batch", {}, None)):
        fold = on_driver(df, FullFold(Columns("t", None), RowClassifier(None, HIGHEST), None, delays), 1)
        assert fold is not None
        assert (fold.rows, fold.hours) == ([], [])


def test_rows_on_time_are_spread_over_their_hours(spark: SparkSession) -> None:
    found = [("a", HOUR * at // 4) for at in range(5, 13)] + [("b", HOUR + 5)] * 3 + [("c", None)]
    df = spark.createDataFrame(found, "k string, t long")
    fold = on_driver(df, PlainFold(Columns("t", "k"), RowClassifier(0, LATEST)), 1)
    assert fold is not None
    assert dict(zip(fold.substream, fold.hours, strict=True)) == {
        "a": [[1, 3, 0, 0], [2, 4, 0, 0], [3, 1, 0, 0]],
        "b": [[1, 3, 0, 0]],
        "c": [],
    }


@pytest.mark.parametrize(
    ("min_event_time", "max_event_time"), [(0, 0), (-HOUR, HOUR), (-1, 5 * HOUR), (LOWEST, HIGHEST), (7, 8)]
)
@pytest.mark.parametrize("count", [1, 2, 999_983, 10**12])
def test_spreading_loses_no_rows(min_event_time: int, max_event_time: int, count: int) -> None:
    found = spread(min_event_time, max_event_time, count)
    hours = [hour for hour, *_ in found]
    assert hours == sorted(set(hours))
    assert min_event_time // HOUR <= hours[0] if hours else max_event_time - min_event_time > HOUR
    assert all(rows > 0 for _, rows, _, _ in found)
    spread_rows = sum(rows for _, rows, _, _ in found)
    is_kept = max_event_time - min_event_time < HOURS_KEPT * HOUR - 2 * HOUR
    assert spread_rows == count if is_kept else spread_rows <= count
    assert spread(None, None, 0) == []


def fold(*hours: Hours, **more: Any) -> Fold:
    none = [0] * len(hours)
    names = [f"s{at}" for at in range(len(hours))]
    return Fold(names, [None] * len(hours), none, none, none, none, none, [*hours], late_disposition="diverted", **more)


FEW: Hours = [[1, 5, 0, 1], [2, 9, 0, 0]]


def test_an_account_has_its_rows_by_hour() -> None:
    assert fold(FEW, []).row_counts()["hours"] == [FEW, []]
    assert fold(FEW).row_counts()["late_disposition"] == "diverted"
    assert "hours" not in fold([], []).row_counts()
    assert merge_hours([FEW, FEW]) == [[1, 10, 0, 2], [2, 18, 0, 0]]


def test_only_the_latest_hours_are_reported() -> None:
    years: Hours = [[hour, 1, 0, 1] for hour in range(30_000)]
    (reported,) = fold(years).row_counts()["hours"]
    assert reported == years[-HOURS_KEPT:]


def test_of_too_many_hours_those_with_late_rows_and_the_sums_are_reported() -> None:
    many = [[hour, 1, 0, 0] for hour in range(4)]
    account = fold(FEW, *[many] * (HOURS_PER_COMMIT // 4)).row_counts()
    assert account["hours"] == [FEW[:1], *[[]] * (HOURS_PER_COMMIT // 4)]
    rows = HOURS_PER_COMMIT // 4
    assert account["all_hours"] == [[0, rows, 0, 0], [1, rows + 5, 0, 1], [2, rows + 9, 0, 0], [3, rows, 0, 0]]
    all_late = fold(*[[[hour, 1, 0, 1] for hour in range(4)]] * (HOURS_PER_COMMIT // 4 + 1)).row_counts()
    assert "hours" not in all_late
    assert all_late["all_hours"][0] == [0, rows + 1, 0, rows + 1]
    whole = fold(*[FEW] * 100_001).row_counts()
    assert (whole["substreams"], whole["hours"]) == (["(all)"], [[[1, 500_005, 0, 100_001], [2, 900_009, 0, 0]]])


def test_hours_do_not_make_an_account_too_large() -> None:
    wide = fold(FEW, *[[[2, 9, 0, 0]] for _ in range(8_999)])
    wide.substream[:] = [f"{at:04}" + "é" * 72 for at in range(9_000)]
    assert not wide.is_too_large()
    account = wide.row_counts()
    assert account["hours"][:2] == [FEW[:1], []], "more hours would make the row counts too large"
    assert account["all_hours"] == [[1, 5, 0, 1], [2, 81_000, 0, 0]]


def test_a_fold_of_too_many_hours_reports_their_sums(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate_spark.hook.folding.HOURS_PER_COMMIT", 7)
    found = [(name, at * HOUR) for name in "ab" for at in (3, 6)] + [("c", None)]
    df = spark.createDataFrame(found, "k string, t long")
    folded = on_driver(df, PlainFold(Columns("t", "k"), RowClassifier(0, LATEST)), 1)
    assert folded is not None
    assert (folded.hours, folded.all_hours) == ([], [[3, 1, 0, 0], [4, 1, 0, 0], [5, 1, 0, 0], [6, 1, 0, 0]])
    assert folded.row_counts()["all_hours"] == folded.all_hours
    assert Fold.merge([folded, folded]).all_hours[0] == [3, 2, 0, 0]


@pytest.mark.parametrize("mode", ["executor", "driver"])
@pytest.mark.parametrize("goes", ["dropped", "diverted"])
def test_late_rows_of_a_substream_are_shown_by_hour(
    spark: SparkSession,
    source: FileBatches,
    job: Job,
    tidegate: CoordinatorProcess,
    checkpoint: str,
    mode: Any,
    goes: str,
) -> None:
    """Three per cent of the rows of HNL between 14:00 and 16:00 arrive below the watermark."""
    day = 20_000 * 24 * HOUR
    minute = HOUR // 60
    afternoon = [("HNL", day + 14 * HOUR + at * minute) for at in range(97)]
    others = [(name, day + 16 * HOUR + at * minute) for name in ("HNL", "SFO") for at in range(30)]
    source.add(*rows(*afternoon, ("SFO", day + 14 * HOUR)))
    source.add(*rows(*others))
    source.add(*rows(*(("HNL", day + 14 * HOUR + 40 * minute * at) for at in range(3)), *others[-1:]))
    stream = job.stream(source.stream(spark), event_time="t", substream="k").reporting(mode)
    stream = stream.foreach_batch(lambda df, batch_id: None)
    taken = list[int]()

    def take(df: DataFrame, batch_id: int) -> None:
        taken.append(df.count())

    to_the_end(stream.late_output(take) if goes == "diverted" else stream, checkpoint)
    found = httpx.get(f"{tidegate.url}/v1/jobs/{job.connection.job}/late").raise_for_status().json()
    nothing = {"updated": 0, "dropped": 0, "diverted": 0}
    assert found["spans"] == [
        {"query": "q", "substream": "HNL", "start": day + 14 * HOUR, "end": day + 16 * HOUR, "rows": 100}
        | nothing
        | {goes: 3}
    ]
    assert found[goes] == 3
    assert taken == ([3] if goes == "diverted" else [])
    assert [[(row["start"] - day) // HOUR, row["rows"], row[goes]] for row in found["hours"]] == [
        [14, 63, 2],
        [15, 38, 1],
        [16, 61, 0],
    ]
