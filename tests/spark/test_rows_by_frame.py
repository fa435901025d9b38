"""Rows by frame: Spark counts them exactly, and the coordinator shows them with each frame."""

import os
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from examples.flights.data import load, write_landings
from examples.flights.settings import Settings
from examples.flights.spark import FlightsSource
from tests.support import native as of_natives
from tests.support.streams import rows, to_the_end
from tests.support.waiting import until
from tidegate_spark import limiting_lag
from tidegate_spark.columns import Columns
from tidegate_spark.hook.classify import RowClassifier
from tidegate_spark.hook.folding import FullFold, PlainFold, on_driver
from tidegate_spark.protocol.fold import HOUR, LOWEST, Fold, slot_of
from tidegate_spark.testing import CoordinatorProcess, FileBatches

LATEST = 50 * HOUR
MINUTE = HOUR // 60


@pytest.mark.parametrize(
    ("frames", "slot"),
    [
        ({"every": "hour"}, HOUR),
        ({"every": "hour", "offset_ms": 30 * MINUTE}, 30 * MINUTE),
        ({"every": 90 * MINUTE}, 30 * MINUTE),
        ({"every": 10 * MINUTE, "offset_ms": 0}, 10 * MINUTE),
        ({"every": "day"}, HOUR),
        ({"every": "month", "time_zone": "UTC"}, HOUR),
        ({"every": "day", "time_zone": "Asia/Kathmandu"}, 15 * MINUTE),
        ({"every": "day", "time_zone": "America/New_York", "offset_ms": 6 * HOUR}, 15 * MINUTE),
        ({"every": HOUR - 1}, None),
        (None, None),
    ],
)
def test_a_slot_is_in_one_hour_and_in_one_frame(frames: dict[str, Any] | None, slot: int | None) -> None:
    assert slot_of({"policy": {}, "frames": frames}) == slot


@pytest.mark.parametrize("slot", [HOUR, 15 * MINUTE])
@pytest.mark.parametrize("method", [PlainFold, FullFold])
def test_spark_counts_slots_and_hours_as_by_hand(spark: SparkSession, method: Any, slot: int) -> None:
    chance = Random(5)  # noqa: S311 - the same rows each time
    edges = [-HOUR, -HOUR - 1, -1, 0, HOUR - 1, LATEST, LOWEST, None]
    found = [(chance.choice("ab"), chance.choice([*edges, *range(-HOUR, 40 * HOUR, HOUR // 7)])) for _ in range(2_000)]
    df = spark.createDataFrame(found, "k string, t long")
    classifier = RowClassifier(None, LATEST)
    fold = on_driver(df, method(Columns("t", "k"), classifier, slot), 2)
    assert fold is not None
    times = [(name, time) for name, time in found if time is not None]
    by_slot = Counter(time // slot for _, time in times)
    assert [[number, count] for number, count, *_ in fold.slots] == sorted(map(list, by_slot.items()))
    assert (fold.slot, fold.all_hours) == (slot, [])
    for name, hours, rows_of, highest in zip(fold.substream, fold.hours, fold.rows, fold.max_event_time, strict=True):
        by_hour = Counter(time // HOUR for of, time in times if of == name)
        assert [[hour, count] for hour, count, *_ in hours] == sorted(map(list, by_hour.items()))
        assert rows_of == sum(of == name for of, _ in found)
        assert highest == max(time for of, time in times if of == name)


def test_a_fold_that_is_older_than_the_frames_is_not_counted_by_frame() -> None:
    none = [0]
    fold = Fold(["a"], [1], [3], none, none, none, none, [[[0, 3, 0, 0]]], slot=HOUR, slots=[[2, 3, 0, 0]])
    assert fold.row_counts(HOUR)["frames"] == fold.row_counts(2 * HOUR)["frames"] == [[2 * HOUR, 3, 0, 0]]
    assert "frames" not in fold.row_counts(30 * MINUTE)
    assert "frames" not in fold.row_counts(None)
    assert Fold.merge([fold, fold]).slots == [[2, 6, 0, 0]]


@pytest.mark.parametrize("mode", ["executor", "driver"])
def test_each_frame_has_the_rows_of_its_batches(
    spark: SparkSession, source: FileBatches, tidegate: CoordinatorProcess, checkpoint: str, mode: Any
) -> None:
    """Three rows come late. They make a new generation of their hour."""
    job = tidegate.job(config=limiting_lag(timedelta(minutes=5), frames="hour", correction_delay=timedelta(0)))
    day = 20_000 * 24 * HOUR
    source.add(*rows(*((name, day + at * MINUTE) for name in "ab" for at in range(0, 130, 7))))
    source.add(*rows(*((name, day + 2 * HOUR + at * MINUTE) for name in "ab" for at in range(9, 80, 7))))
    source.add(*rows(*(("a", day + at * MINUTE) for at in (1, 2, 3)), ("b", day + 3 * HOUR + 30 * MINUTE)))
    stream = job.stream(source.stream(spark), event_time="t", substream="k").reporting(mode)
    to_the_end(stream.foreach_batch(lambda df, batch_id: None), checkpoint)
    job.complete()
    found = {(frame["start"] - day) // HOUR: frame for frame in job.frames()["frames"]}
    expected = Counter((at * MINUTE) // HOUR for at in range(0, 130, 7) for _ in "ab")
    expected.update((2 * HOUR + at * MINUTE) // HOUR for at in range(9, 80, 7) for _ in "ab")
    expected[3] += 1
    assert {hour: frame["rows"]["on_time"] for hour, frame in found.items()} == dict(expected)
    assert not any(frame["uncounted"] for frame in found.values())
    assert (found[0]["generation"], found[0]["rows"]["dropped"]) == (2, 3)
    assert [each["rows"]["dropped"] for each in found[0]["generations"]] == [0, 3]
    assert found[0]["state"] == found[1]["state"] == found[2]["state"] == "complete"


def test_native_rows_are_counted_by_frame(
    spark: SparkSession, tmp_path: Path, tidegate: CoordinatorProcess, checkpoint: str
) -> None:
    source = FileBatches(tmp_path / "input", "k string, t timestamp")
    job = tidegate.job(config=limiting_lag(timedelta(minutes=5), frames="hour"))
    minutes = [*range(0, 150, 11)]
    source.add(*of_natives.rows(*((name, 60 * at) for name in "ab" for at in minutes)))
    source.add(*of_natives.rows(*((name, 60 * 200) for name in "ab")))
    followed = of_natives.native(job, source.stream(spark), checkpoint)
    of_natives.to_the_end(followed.groupBy(F.window("t", "1 hour")).count(), checkpoint)
    until(lambda: job.status()["rows"]["on_time"] == 2 * len(minutes) + 2, "all rows reported")
    first = of_natives.ms(0)
    found = {(frame["start"] - first) // HOUR: frame["rows"]["on_time"] for frame in job.frames()["frames"]}
    expected = Counter(at // 60 for at in minutes for _ in "ab")
    assert {hour: found.get(hour) for hour in (0, 1, 2)} == {hour: expected[hour] for hour in (0, 1, 2)}


@pytest.mark.slow
def test_two_months_of_flights_by_day_in_new_york(
    spark: SparkSession, tmp_path: Path, tidegate: CoordinatorProcess, checkpoint: str
) -> None:
    """On two of the days, the clocks change.

    All flights are one substream, so those that take long to land are late. The days start at noon, when many are in
    the air.
    """
    flights, files = [], tmp_path / "landings"
    files.mkdir()
    for month in (3, 11):
        settings = Settings(datetime(2013, month, 1, tzinfo=UTC), 31, 6, 30, 0, tmp_path / "out")
        found = load(settings)
        flights.append(found.flights)
        write_landings(found, settings, tmp_path / f"{month}")
        for at, path in enumerate(sorted((tmp_path / f"{month}").glob("*.parquet"))):
            moved = path.rename(files / f"{month:02}-{path.name}")
            os.utime(moved, (1_000_000_000 + 10_000 * month + at,) * 2)
    rows_of_all = pd.concat(flights)
    source = FlightsSource(spark, files, sorted(rows_of_all["dest"].unique()))
    config = limiting_lag(
        timedelta(minutes=30),
        frames="day",
        frames_offset=timedelta(hours=12),
        time_zone="America/New_York",
        correction_delay=timedelta(0),
    )
    job = tidegate.job(config=config)
    stream = job.stream(source.stream(), event_time="departed_at", substream=None)
    to_the_end(stream.foreach_batch(lambda df, batch_id: None), checkpoint, timeout_s=600)
    job.complete()

    shown = rows_of_all["departed_at"].dt.tz_convert("America/New_York").dt.tz_localize(None)
    days = (shown - timedelta(hours=12)).dt.date.value_counts()
    frames = {frame["start"]: frame for frame in job.frames(limit=1000)["frames"]}
    starts = {
        day: int(datetime(day.year, day.month, day.day, 12, tzinfo=ZoneInfo("America/New_York")).timestamp() * 1000)
        for day in days.index
    }
    assert {day: sum(frames[start]["rows"].values()) for day, start in starts.items()} == days.to_dict()
    assert {(frame["end"] - frame["start"]) // HOUR for frame in frames.values()} == {23, 24, 25}
    assert {frame["state"] for frame in frames.values()} <= {"complete", "empty"}
    assert len([frame for frame in frames.values() if frame["state"] == "complete"]) == len(days)
    assert any(frame["generation"] > 1 for frame in frames.values())
    for frame in frames.values():
        sums = Counter[str]()
        for generation in frame["generations"]:
            sums.update(generation["rows"])
        assert (dict(sums), frame["changes"]) == (frame["rows"], None)
