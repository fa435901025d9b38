"""A driver may crash at any point of a batch: every replay passes the same rows to the functions."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.api import operate
from tests.support.pipeline import QUERY, SCHEMA, Settings, with_frames
from tests.support.points import POINTS
from tests.support.reader import check, check_frames, reading
from tests.support.runs import Call, calls, run_here
from tidegate_spark import Job
from tidegate_spark.testing import CoordinatorProcess, FileBatches

STEP = 1_000_000


def rows_of(batch: int) -> list[dict[str, object]]:
    """Return the rows of a batch. ``behind`` would be late in a replay without a pinned watermark."""
    max_event_time = (batch + 1) * STEP
    late = [("a", max_event_time - 2 * STEP + 7)] if batch > 1 else []
    return [
        {"k": k, "t": t}
        for k, t in [("a", max_event_time), ("b", max_event_time - 5000), ("behind", max_event_time - 400_000), *late]
    ]


def crash_at_each_point(
    spark: SparkSession, job: Job, settings: Settings, source: FileBatches, pinned_watermarks: dict[int, int | None]
) -> None:
    """Crash the driver in each batch, each time at the next of ``POINTS``, and replay it; note the pinned watermarks.

    While the driver is down, C advances: another reporter is ahead, and an operator marks substreams as idle.
    """
    for batch, point in enumerate(POINTS, 1):
        source.add(*rows_of(batch))
        settings.die, settings.of = point, batch
        assert not run_here(spark, settings)
        query = next(known for known in job.queries() if known["query"] == QUERY)
        begun = point != "before the pin"
        assert query["batch_id"] == (batch if begun else batch - 1)
        assert query["batch_open"] == (begun and point != "after it")
        if begun:
            pinned_watermarks[batch] = query["pinned_watermark"]
        operate(job, "POST", ":report", {"substreams": ["x"], "max_event_times": [(batch + 1) * STEP - 200_000]})
        operate(job, "POST", "/substreams:idle", {"query": QUERY, "substreams": ["a", "b", "behind"]})
        assert job.status()["coalesced_watermark"] >= (batch + 1) * STEP - 210_000
        if begun and point != "after it":
            assert job.status()["watermark"] == pinned_watermarks[batch]
    settings.die = None
    assert run_here(spark, settings)


def test_a_crash_at_any_point_changes_no_results(
    spark: SparkSession, tidegate: CoordinatorProcess, tmp_path: Path
) -> None:
    """The following run replays the batch, and a reader that waits until they are written misses no row."""
    job = tidegate.job(config=with_frames())
    settings = Settings("local[2]", tidegate.url, job.connection.job, str(tmp_path), has_frames=True)
    source = FileBatches(tmp_path / "input", SCHEMA)
    source.add(*rows_of(0))
    pinned_watermarks: dict[int, int | None] = {}
    with reading(tidegate.url, job.connection.job, tmp_path):
        crash_at_each_point(spark, job, settings, source, pinned_watermarks)
    assert check(tmp_path, tuple, lambda row: row[1] + 1) >= len(POINTS)
    frames, corrections = check_frames(tmp_path, lambda row: (tuple(row), row[1], 1))
    assert min(frames, corrections) >= len(POINTS) - 2, "late rows correct frames"

    made = calls(tmp_path)
    given: dict[tuple[str, int], list[Call]] = {}
    for call in made:
        given.setdefault((call.kind, call.batch), []).append(call)
    for attempts in given.values():
        assert all(
            (call.pinned_watermark, call.rows) == (attempts[0].pinned_watermark, attempts[0].rows) for call in attempts
        )
        assert [call.replayed for call in attempts[1:]] == [True] * (len(attempts) - 1)
    for batch, pinned_watermark in pinned_watermarks.items():
        assert {call.pinned_watermark for call in made if call.batch == batch} == {pinned_watermark}
    # The functions run twice if the driver crashes in or after them.
    attempts_of = {batch: len(given["on_time", batch]) for batch in range(len(POINTS) + 1)}
    assert attempts_of == {0: 1, 1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 2}
    on_time = {tuple(row) for (kind, _), attempts in given.items() if kind == "on_time" for row in attempts[0].rows}
    late = {tuple(row) for (kind, _), attempts in given.items() if kind == "late" for row in attempts[0].rows}
    everything = {(row["k"], row["t"]) for batch in range(len(POINTS) + 1) for row in rows_of(batch)}
    assert on_time | late == everything
    assert on_time & late == set()
    # The batch that crashed before it stored a pinned watermark gets a later one: its row of "behind" is late.
    assert late == {("a", batch * STEP - STEP + 7) for batch in range(2, len(POINTS) + 1)} | {("behind", 1_600_000)}
    rows = job.status()["rows"]
    assert rows == {"on_time": len(on_time), "updated": 0, "late": len(late), "null_event_time": 0, "future": 0}
    assert sum(row["reported"] for row in job.substreams()) == len(everything)
