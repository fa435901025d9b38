"""The times at which a row stops being on time, without Spark; tests/spark classifies real rows by them."""

import pytest

from tidegate_spark.frame import Frame
from tidegate_spark.hook.classify import HIGHEST, LOWEST, RowClassifier


def test_a_row_at_the_pinned_watermark_is_on_time_and_one_below_is_late() -> None:
    """The watermark says that no event below it is expected; one at the watermark still is."""
    classifier = RowClassifier(1000, latest=5000)
    assert (classifier.late_below, classifier.on_time_from) == (1000, 1000)


@pytest.mark.parametrize(
    ("pinned_watermark", "min_event_time", "max_event_time", "plain"),
    [
        (1000, 1000, 5000, True),
        (1000, 999, 5000, False),
        (1000, 1000, 5001, False),
        (None, LOWEST, 5000, True),
        (None, LOWEST - 1, 5000, False),
        (1000, None, None, True),
    ],
)
def test_the_plain_fold_is_used_only_if_all_rows_are_on_time(
    pinned_watermark: int | None, min_event_time: int | None, max_event_time: int | None, plain: bool
) -> None:
    """The plain fold tests no row, so it would count a late row as on time."""
    assert RowClassifier(pinned_watermark, latest=5000).all_on_time(min_event_time, max_event_time) is plain


def test_by_windows_a_row_is_updated_until_the_allowed_lateness_ends() -> None:
    """At 35, windows of 10 are closed up to 30; with a lateness of 20 those that end above 15 still take rows."""
    classifier = RowClassifier(35, HIGHEST, frame=Frame(10, 10), lateness=20)
    assert (classifier.on_time_from, classifier.late_below) == (30, 10)


@pytest.mark.parametrize("frame", [Frame(10, 10), Frame(10, 10, 3), Frame(25, 10, 4)])
def test_a_watermark_closes_the_windows_that_end_at_or_below_it(frame: Frame) -> None:
    """One window more would lose rows; one window less would delay each result by a slide."""
    ends = range(frame.offset + frame.size - 20 * frame.slide, 200, frame.slide)
    for watermark in range(-40, 100):
        assert frame.cut(watermark) == max(end for end in ends if end <= watermark)
