"""A driver dies between any two steps of a batch that writes two tables: each row is in each table once.

The functions write rows, late rows and windows, to a table of each format. Between a death and its replay, another
writer appends to both tables, and both are compacted. A reader that waits for a watermark or a frame must find their
rows. The claim of each version must be true of the last version.
"""

import itertools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.lake import FORMS, Lake
from tests.support.pipeline import SCHEMA, Settings, with_frames
from tests.support.points import POINTS, POINTS_WITH_WINDOWS, points_of_appends
from tests.support.reader import check, check_frames, reading
from tests.support.runs import run, run_here
from tidegate_spark import complete_up_to
from tidegate_spark.testing import CoordinatorProcess, FileBatches

SIZE = 20_000
DEATHS = int(os.environ.get("KILLS") or 15)
"""Number of batches in which the driver dies. By default, it dies at each point once."""
KILLS = int(os.environ.get("KILLS") or 2)
"""Number of kills of a driver in a process of its own, which takes some seconds to start."""

OUTPUTS = pytest.mark.parametrize("has_windows", [False, True], ids=["rows", "windows"])
ROWS = "k string, t long, kind string"
WINDOWS = "k string, t long, rows long, kind string"


def identity(row: Any) -> tuple[str, int]:
    """Return the key and the time of a row of the table, or of a window as the function gets it, at its end."""
    first, second = row[:2]
    return (first, second) if isinstance(first, str) else (second, first[1])


class Input:
    """The input of the pipeline. Each batch has rows on time, rows that update a window, and late rows."""

    def __init__(self, directory: Path) -> None:
        self.source, self.rows = FileBatches(directory / "input", SCHEMA), Counter[tuple[str, int]]()

    def add(self, batch: int) -> None:
        latest = (batch + 2) * SIZE
        times = [latest + 1, latest - 1, latest - 7000, latest - SIZE - 22_000, latest - 3 * SIZE - batch]
        added = [{"k": k, "t": t} for t in times for k in "ab" if t >= 0]
        self.source.add(*added)
        self.rows.update((k, t) for t in times for k in "ab" if t >= 0)


def disturb(lakes: list[Lake], has_windows: bool) -> None:
    """Append rows as another writer does, and compact the tables."""
    for lake in lakes:
        lake.append(lake.rows(("z", 1, 1, "other") if has_windows else ("z", 1, "other")))
        lake.compact()


def own(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [row for row in rows if row[-1] != "other"]


def check_once(lake: Lake, expected: Counter[tuple[str, int]], windows: int | None) -> None:
    """Check that each row of the input is in the table once, or the result of each window, of at least so many."""
    found = own(lake.read())
    assert found
    if windows is None:
        assert Counter((k, t) for k, t, _ in found) == expected
        return
    assert [row for row, count in Counter(found).items() if count > 1] == []
    late = Counter((k, t) for k, t, _, kind in found if kind == "late")
    latest = {(k, t): rows for k, t, rows, kind in sorted(found, key=lambda row: row[2] or 0) if kind == "on_time"}
    of_window = Counter[tuple[str, int]]()
    for (k, t), count in expected.items():
        of_window[k, t - t % SIZE + SIZE] += count - late[k, t]
    closed = {key: count for key, count in of_window.items() if key in latest}
    assert latest == closed
    assert len(latest) >= windows, "windows have closed"


def check_claims(lake: Lake, end_of: Callable[[tuple[Any, ...]], int]) -> int:
    """Check the claim of each version against the last version; return the number of different claims."""
    last, seen = {row[:2]: end_of(row) for row in lake.read() if row[-1] == "on_time"}, set()
    for version in lake.versions():
        claim = complete_up_to(lake.name, version=version)
        if claim is not None:
            found = {row[:2] for row in lake.read(version) if row[-1] == "on_time"}
            missing = {key for key, end in last.items() if end <= claim.watermark} - found
            assert not missing, f"version {version} claims {claim.watermark}, and lacks {missing}"
            seen.add(claim.watermark)
    return len(seen)


@pytest.mark.timeout(1200 + 120 * KILLS)  # a start of a driver takes half a minute on a busy machine
@OUTPUTS
def test_each_row_is_written_once(
    spark: SparkSession, tidegate: CoordinatorProcess, tmp_path: Path, has_windows: bool
) -> None:
    job = tidegate.job(config=with_frames())
    lakes = [Lake(spark, form, tmp_path, WINDOWS if has_windows else ROWS) for form in FORMS]
    settings = Settings(
        "local[2]",
        tidegate.url,
        job.connection.job,
        str(tmp_path),
        windows=SIZE if has_windows else None,
        has_frames=True,
        tables=[lake.name for lake in lakes],
    )
    points = [*POINTS, *points_of_appends("on", "late")]
    if has_windows:
        points = [*POINTS_WITH_WINDOWS, *points_of_appends("windows", "late")]
    ends, given = 0 if has_windows else 1, Input(tmp_path)
    with reading(tidegate.url, job.connection.job, tmp_path, lakes[0].name):
        for batch, point in enumerate([None, None, None, *itertools.islice(itertools.cycle(points), DEATHS)]):
            given.add(batch)
            settings.die, settings.of = point, batch
            if point is not None:
                assert not run_here(spark, settings), f"the driver has passed the point {point!r}"
                if batch % 5 == 0:
                    disturb(lakes, has_windows)
                settings.die = None
            assert run_here(spark, settings)
    assert check(tmp_path, identity, lambda row: identity(row)[1] + ends) >= DEATHS
    frames, corrections = check_frames(
        tmp_path, lambda row: (identity(row), identity(row)[1] + ends - 1, row[2] if has_windows else 1)
    )
    assert frames >= DEATHS - 2
    assert corrections > 0, "late rows correct frames"
    for lake in lakes:
        check_once(lake, given.rows, DEATHS if has_windows else None)
        assert check_claims(lake, lambda row: row[1] + ends) >= DEATHS


@pytest.mark.timeout(1200 + 120 * KILLS)  # a start of a driver takes half a minute on a busy machine
@OUTPUTS
def test_a_killed_driver_writes_each_row_once(
    spark: SparkSession, tidegate: CoordinatorProcess, tmp_path: Path, has_windows: bool
) -> None:
    """The same with SIGKILL, which ends Python and Java in the middle of what they do."""
    job, given = tidegate.job(config=with_frames()), Input(tmp_path)
    lakes = [Lake(spark, form, tmp_path, WINDOWS if has_windows else ROWS) for form in FORMS]
    settings = Settings(
        "local[2]",
        tidegate.url,
        job.connection.job,
        str(tmp_path),
        windows=SIZE if has_windows else None,
        tables=[lake.name for lake in lakes],
        conf={name: value for name, value in spark.sparkContext.getConf().getAll() if _is_of_tables(name)},
    )
    output, points = ("windows", POINTS_WITH_WINDOWS) if has_windows else ("on", POINTS)
    appends = [f"after delta {output}", f"after iceberg {output}", "after iceberg late"]
    points = [*appends, *points_of_appends(output, "late"), *points]
    log = tmp_path / "pipeline.log"
    for batch, point in enumerate([None, *itertools.islice(itertools.cycle(points), KILLS)]):
        given.add(batch)
        settings.die, settings.of = point, batch
        assert run(settings) == (0 if point is None else -9), log.read_text()[-3000:]
        if point is not None:
            disturb(lakes, has_windows)
        # On Spark 4.1, a run with windows has one batch: here the replay.
        if batch == KILLS or (has_windows and point is not None):
            settings.die = None
            assert run(settings) == 0, log.read_text()[-3000:]
    for lake in lakes:
        check_once(lake, given.rows, 2 if has_windows else None)
        assert check_claims(lake, lambda row: row[1] + (not has_windows)) > 0


def _is_of_tables(name: str) -> bool:
    return name.startswith(("spark.sql.catalog.", "spark.jars", "spark.sql.extensions", "spark.databricks", "spark.ui"))
