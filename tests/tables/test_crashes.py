"""A driver that writes a table crashes at each point of a batch: no reader that waited misses a row of the table."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.pipeline import SCHEMA, Settings, with_frames
from tests.support.points import POINTS, POINTS_WITH_WINDOWS
from tests.support.reader import check, check_frames, reading
from tests.support.runs import run_here
from tidegate_spark.testing import CoordinatorProcess, FileBatches

SIZE = 20_000


def identity(row: Any) -> tuple[str, int]:
    """Return the key and the time of a row of the table, or of a window as the function gets it, at its end."""
    first, second = row[:2]
    return (first, second) if isinstance(first, str) else (second, first[1])


@pytest.mark.parametrize("has_windows", [False, True], ids=["rows", "windows"])
def test_no_reader_of_a_table_misses_a_row(
    spark: SparkSession, tidegate: CoordinatorProcess, tmp_path: Path, has_windows: bool
) -> None:
    job, table = tidegate.job(config=with_frames()), str(tmp_path / "table")
    settings = Settings(
        "local[2]",
        tidegate.url,
        job.connection.job,
        str(tmp_path),
        windows=SIZE if has_windows else None,
        has_frames=True,
        table=table,
    )
    source, points = FileBatches(tmp_path / "input", SCHEMA), POINTS_WITH_WINDOWS if has_windows else POINTS
    with reading(tidegate.url, job.connection.job, tmp_path, table):
        for batch, point in enumerate([None, *points]):
            latest = (batch + 2) * SIZE
            times = [latest + 1, latest - 1, latest - 7000, latest - SIZE - 22_000, latest - 3 * SIZE - batch]
            source.add(*({"k": k, "t": t} for t in times for k in "ab" if t >= 0))
            settings.die, settings.of = point, batch
            if point is not None:
                assert not run_here(spark, settings), f"the driver has passed the point {point!r}"
                settings.die = None
            assert run_here(spark, settings)
    ends = 0 if has_windows else 1
    assert check(tmp_path, identity, lambda row: identity(row)[1] + ends) >= len(points)
    frames, corrections = check_frames(
        tmp_path, lambda row: (identity(row), identity(row)[1] + ends - 1, row[2] if has_windows else 1)
    )
    assert frames >= len(points) - 2
    assert corrections > 0, "late rows correct frames"
