"""A crash of the driver during a batch does not change the results of native windows, and no reader misses one."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.api import operate
from tests.support.pipeline import QUERY, SCHEMA, Settings, with_frames
from tests.support.points import IN_THE_FUNCTION
from tests.support.reader import check, check_frames, reading
from tests.support.runs import calls, run_here
from tidegate_spark.testing import CoordinatorProcess, FileBatches

SIZE = 20_000
BATCHES = 8
CRASHES = [(IN_THE_FUNCTION, 2), (IN_THE_FUNCTION, 3), (IN_THE_FUNCTION, 6)]

Table = dict[tuple[str, int], int]


def fill(directory: Path) -> list[list[tuple[str, int]]]:
    """Write batches that each advance the watermark by a window and have late rows; return their rows."""
    source = FileBatches(directory / "input", SCHEMA)
    batches = []
    for batch in range(BATCHES):
        max_event_time = 1_000_000 + batch * SIZE
        times = [
            max_event_time + 1,
            max_event_time - 1,
            max_event_time - 7000 - batch,
            max_event_time - 100_000 - batch,
        ]
        batches.append([(k, t) for t in times for k in ("a", "b")])
        source.add(*({"k": k, "t": t} for k, t in batches[-1]))
    return batches


def table(directory: Path) -> Table:
    """Return the emitted windows; check that a replayed batch emits the same ones."""
    found: Table = {}
    for call in calls(directory):
        for k, opens, count in call.rows:
            assert found.setdefault((k, opens), count) == count
    return found


def test_results_are_the_same_as_without_a_crash(
    spark: SparkSession, tidegate: CoordinatorProcess, tmp_path: Path
) -> None:
    found = []
    for crashes in ((), CRASHES):
        directory = tmp_path / ("with" if crashes else "without")
        directory.mkdir()
        batches = fill(directory)
        job = tidegate.job(config=with_frames())
        settings = Settings(
            "local[2]", tidegate.url, job.connection.job, str(directory), windows=SIZE, native=True, has_frames=True
        )
        with reading(tidegate.url, job.connection.job, directory):
            for settings.die, settings.of in crashes:
                assert not run_here(spark, settings)
            settings.die = None
            assert run_here(spark, settings)
        assert check(directory, lambda row: (row[0], row[1]), lambda row: row[1] + SIZE) >= BATCHES - 3
        frames, _ = check_frames(directory, lambda row: ((row[0], row[1]), row[1], row[2]))
        assert frames >= BATCHES - 3
        found.append((table(directory), job.status()["rows"]))
    assert found[1] == found[0]
    windows, rows = found[0]
    assert rows["on_time"] + rows["late"] == sum(map(len, batches)) and rows["late"] > BATCHES
    assert len(windows) > BATCHES


def test_a_replayed_batch_sees_the_same_watermark(
    spark: SparkSession, tidegate: CoordinatorProcess, tmp_path: Path
) -> None:
    """A replay uses the watermark in Spark's log, although the job's watermark has advanced."""
    source = FileBatches(tmp_path / "input", SCHEMA)
    for second in (10, 40, 50, 60, 70):
        source.add(*({"k": k, "t": 100_000 + second * 100} for k in "ab"), {"k": "a", "t": 90_000})
    job = tidegate.job(config=with_frames())
    settings = Settings(
        "local[2]", tidegate.url, job.connection.job, str(tmp_path), IN_THE_FUNCTION, 3, windows=4000, native=True
    )
    assert not run_here(spark, settings)
    first = {call.batch: call.rows for call in calls(tmp_path)}
    assert first[3], "batch 3 must have closed windows"
    job.done(QUERY, ["a", "b"])
    operate(job, "POST", ":report", {"substreams": ["other"], "max_event_times": [1_000_000]})
    assert job.status()["watermark"] == 990_000
    settings.die = None
    assert run_here(spark, settings)
    assert [call.rows for call in calls(tmp_path) if call.batch == 3] == [first[3]] * 2
    # Spark uses the watermark of the previous batch. In batch 2 it was 88 s, so a row at 90 s is late from batch 4 on.
    assert job.status()["rows"]["late"] == 1
