"""A driver with windows that crashes at each point of a batch: the results equal those of a run without a crash.

A reader that waits until they are written misses no window.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.support.pipeline import SCHEMA, Settings, with_frames
from tests.support.points import POINTS_WITH_WINDOWS
from tests.support.reader import check, check_frames, reading
from tests.support.runs import calls, run_here
from tidegate_spark.testing import CoordinatorProcess, FileBatches

SIZE = 20_000
BATCHES = len(POINTS_WITH_WINDOWS) + 2

Given = dict[tuple[str, int], list[Any]]


def fill(directory: Path) -> None:
    """Write batches that each advance the watermark by a window, update a closed window, and have late rows."""
    source = FileBatches(directory / "input", SCHEMA)
    for batch in range(BATCHES):
        max_event_time = (batch + 2) * SIZE
        times = [
            max_event_time + 1,
            max_event_time - 1,
            max_event_time - 7000 - batch,
            max_event_time - SIZE - 22_000 - batch,
            max_event_time - 3 * SIZE - batch,
        ]
        source.add(*({"k": k, "t": t} for t in times for k in "ab" if t >= 0))


def rows_given_to(directory: Path) -> Given:
    """Return the rows that the functions got in each batch; check that all attempts got the same rows."""
    attempts: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for call in calls(directory):
        rows = [[(row[0]["start"], row[0]["end"]), *row[1:]] if isinstance(row[0], dict) else row for row in call.rows]
        attempts[call.kind, call.batch].append((call.pinned_watermark, sorted(rows, key=str)))
    for which, made in attempts.items():
        assert all(attempt == made[0] for attempt in made), which
    return {which: made[0] for which, made in attempts.items()}


def test_windows_and_updates_are_the_same_as_without_a_crash(
    spark: SparkSession, tidegate: CoordinatorProcess, tmp_path: Path
) -> None:
    found: list[Given] = []
    rows = []
    for crashes in (False, True):
        directory = tmp_path / ("with" if crashes else "without")
        directory.mkdir()
        fill(directory)
        job = tidegate.job(config=with_frames())
        settings = Settings("local[2]", tidegate.url, job.connection.job, str(directory), windows=SIZE, has_frames=True)
        with reading(tidegate.url, job.connection.job, directory):
            for batch, point in enumerate(POINTS_WITH_WINDOWS, 1) if crashes else ():
                settings.die, settings.of = point, batch
                assert not run_here(spark, settings)
            settings.die = None
            assert run_here(spark, settings)
        assert check(directory, lambda row: (row[0][0], row[1]), lambda row: row[0][1]) >= BATCHES - 3
        frames, corrections = check_frames(directory, lambda row: ((row[0][0], row[1]), row[0][0], row[2]))
        assert min(frames, corrections) >= BATCHES - 3
        found.append(rows_given_to(directory))
        rows.append(job.status()["rows"])
    assert found[1] == found[0]
    assert rows[1] == rows[0]
    updates = [row for (kind, _), (_, given) in found[0].items() if kind == "on_time" for row in given if row[-1]]
    assert len(updates) >= BATCHES and rows[0]["updated"] and rows[0]["late"]
