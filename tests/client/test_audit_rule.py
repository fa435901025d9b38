"""Spark's watermark from the rows, and the rows that are lost by it."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate_spark.auditing.losses import AuditedBatch, behind, lost_rows
from tidegate_spark.auditing.policies import longest_gaps
from tidegate_spark.auditing.report import duration
from tidegate_spark.auditing.rows import Group
from tidegate_spark.auditing.rule import Difference, SparkWatermark, compare, delay_from
from tidegate_spark.auditing.timeline import Timeline, Watermarks


def test_the_minimum_waits_in_1970_for_a_source_without_rows() -> None:
    spark = SparkWatermark({0: 10, 1: 0})
    assert [spark.after({0: 100}), spark.after({1: 50}), spark.after({0: 40})] == [0, 50, 50]
    spark = SparkWatermark(spark.delays_ms, merged=spark.merged)  # as after a restart
    assert [spark.after({0: 500}), spark.after({1: 60}), spark.after({1: 600})] == [50, 60, 490]


def test_the_maximum_follows_the_first() -> None:
    spark = SparkWatermark({0: 10, 1: 0}, "max")
    assert [spark.after({0: 100}), spark.after({1: 50}), spark.after({})] == [90, 90, 90]


def test_a_restart_is_found_and_another_difference_is_reported() -> None:
    highest = {0: {0: 100, 1: 80}, 1: {0: 200}, 2: {0: 300}, 3: {0: 400, 1: 350}}
    logged = [(0, 0, 70), (1, 70, 70), (2, 70, 70), (3, 70, 351)]
    differences, restarts = compare(logged, highest, {0: 10, 1: 10}, "min")
    assert (differences, restarts) == ([Difference(3, 351, 340)], [])
    # After the restart before batch 1, the second source is unknown. Without it, the watermark would be 70, too.
    highest = {0: {0: 100, 1: 80}, 1: {0: 200, 1: 190}, 2: {0: 300}}
    assert compare([(0, 0, 70), (1, 70, 180), (2, 180, 180)], highest, {0: 10, 1: 10}, "min") == ([], [])
    highest[2] = {1: 300}
    assert compare([(0, 0, 70), (1, 70, 180), (2, 180, 180)], highest, {0: 10, 1: 10}, "min") == ([], [2])


def test_the_delay_follows_from_the_first_move() -> None:
    assert delay_from([(0, 0, 0), (1, 0, 970), (2, 970, 1970)], {1: 1000, 2: 2000}) == 30
    assert delay_from([(0, 0, 0), (1, 0, None)], {0: 1000, 1: 2000}) is None


@given(
    highest=st.lists(st.integers(1, 1000), min_size=1, max_size=12),
    empty=st.sets(st.integers(0, 11)),
)
def test_bounds_before_the_log_contain_each_course(highest: list[int], empty: set[int]) -> None:
    """A batch without rows may follow each batch that has moved the watermark."""
    spark, previous, batch_watermark, expected, without_rows = SparkWatermark({0: 10}), 0, 0, [], 0
    for number, at in enumerate(highest):
        expected.append(previous)  # the watermark of the batch before
        previous = batch_watermark
        before, batch_watermark = batch_watermark, spark.after({0: at})
        if number in empty and batch_watermark > before:
            without_rows, previous = without_rows + 1, batch_watermark
    timeline = Timeline(len(highest), without_rows, (), {}, {}, None, {}, {})
    marks = Watermarks({0: 10}, False, "min", 0, (), ())
    batches = timeline.audited(marks, {number: {0: at} for number, at in enumerate(highest)})
    assert all(batch.late[0] <= late <= batch.late[1] for batch, late in zip(batches, expected, strict=True))


def test_a_window_is_lost_with_its_end_and_a_row_with_its_time() -> None:
    batches = [AuditedBatch(0, 0, 0, (0, 0), True), AuditedBatch(1, 1, 0, (60_000, 60_000), True)]
    groups = [
        Group(0, 0, "a", 60_000, 2, 59_000, 0),
        Group(0, 1, "a", 60_000, 3, 59_000, 3),
        Group(0, 1, "b", 120_000, 5, 90_000, 1),
        Group(0, 1, "b", None, 7, None, 0),
    ]
    by_window, by_row = (lost_rows(groups, batches, judged, 60_000) for judged in ("window", "row"))
    assert (by_window.total.rows, by_window.total.most, by_window.below_watermark) == (10, 3, 4)
    assert (by_row.total.most, by_row.by_substream[0, "b"].most, by_row.without_event_time) == (4, 1, 7)
    assert lost_rows(groups, batches, None, 60_000).total.most == 0
    assert behind(groups)[0, "a"] == {0: 2} or behind(groups)[0, "a"].total() == 2


def test_the_longest_gap_of_each_substream() -> None:
    gaps = longest_gaps([(0, ["a", "b"]), (60_000, ["a"]), (200_000, ["a", "b"])])
    assert gaps == {"a": 140_000, "b": 200_000}
    assert [duration(each) for each in (0, 90_000, 3_600_000, 90_061_000)] == [
        "0 ms",
        "1 minute 30 seconds",
        "1 hour",
        "1 day 1 hour",
    ]
