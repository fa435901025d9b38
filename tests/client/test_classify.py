"""The bounds between row classes, without Spark. Tests in tests/spark classify rows with these bounds."""

import pytest

from tidegate_spark.frame import Frame
from tidegate_spark.hook.classify import RowClassifier
from tidegate_spark.protocol.fold import HIGHEST, LOWEST


def test_a_row_at_the_pinned_watermark_is_on_time_and_one_below_is_late() -> None:
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
    """The plain fold classifies no row, so it would count a late row as on time."""
    assert RowClassifier(pinned_watermark, latest=5000).all_on_time(min_event_time, max_event_time) is plain


def test_by_windows_a_row_is_updated_until_the_allowed_lateness_ends() -> None:
    """At 35, windows up to 30 are closed. With a lateness of 20, windows that end above 15 still accept rows."""
    classifier = RowClassifier(35, HIGHEST, frame=Frame(10, 10), lateness=20)
    assert (classifier.on_time_from, classifier.late_below) == (30, 10)


@pytest.mark.parametrize("frame", [Frame(10, 10), Frame(10, 10, 3), Frame(25, 10, 4)])
def test_a_watermark_closes_the_windows_that_end_at_or_below_it(frame: Frame) -> None:
    ends = range(frame.offset + frame.size - 20 * frame.slide, 200, frame.slide)
    for watermark in range(-40, 100):
        assert frame.cut(watermark) == max(end for end in ends if end <= watermark)
