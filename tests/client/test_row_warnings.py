"""Warnings about rows: totals instead of a record per batch, and event times that contradict the clock."""

import logging
from datetime import UTC, datetime

import pytest

from tests.support.clock import VirtualClock
from tests.support.drivers import fold
from tidegate_spark.logs import QueryLog
from tidegate_spark.protocol import row_warnings
from tidegate_spark.protocol.fold import Fold
from tidegate_spark.protocol.row_warnings import INTERVAL_S, RowWarnings

NOW_MS = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp() * 1000)
FUTURE = Fold(["a", "b"], [None, NOW_MS], [3, 1], [0, 0], [0, 0], [1, 0], [2, 0])


def late(*names: str) -> Fold:
    """Return the fold of one late row for each substream."""
    ones, none = [1] * len(names), [0] * len(names)
    return Fold(list(names), [NOW_MS] * len(names), ones, none, ones, none, none)


@pytest.fixture
def warnings(clock: VirtualClock) -> RowWarnings:
    return RowWarnings(QueryLog("j", "q"), clock)


def test_rows_are_summed_up_after_the_first_warning(
    warnings: RowWarnings, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A query with late rows in every batch must not fill the log, and every dropped row is in one of the totals."""
    for batch_id in range(1000):
        warnings.check(batch_id, late("a", f"b{batch_id // 100}"), True, {"late": 1500})
        clock.advance(INTERVAL_S / 400)
    assert [record.getMessage() for record in caplog.records] == [
        "j/q 0: dropped 1,500 late rows of a, b0. To keep such rows, call late_output().",
        "j/q 400: dropped 600,000 late rows of a, b0, b1, b2, b3 and 1 more in 400 batches since the last warning. To "
        "keep such rows, call late_output().",
        "j/q 800: dropped 600,000 late rows of a, b4, b5, b6, b7 and 1 more in 400 batches since the last warning. To "
        "keep such rows, call late_output().",
    ]
    caplog.clear()
    warnings.check(1000, fold(a=NOW_MS), True, {})
    assert caplog.text == ""
    clock.advance(INTERVAL_S)
    warnings.check(1001, fold(a=NOW_MS), True, {})
    assert "j/q 999: dropped 298,500 late rows of a, b8, b9 in 199 batches" in caplog.text


def test_rows_are_summed_up_when_the_query_ends(warnings: RowWarnings, caplog: pytest.LogCaptureFixture) -> None:
    """A short run can end before the totals are due."""
    for batch_id in range(3):
        warnings.check(batch_id, FUTURE, True, {"null_event_time": 1})
    warnings.close()
    warnings.close()
    assert [record.getMessage().partition(".")[0] for record in caplog.records] == [
        "j/q 0: dropped 1 null event time rows of a",
        "j/q 0: rows of a have event times too far ahead of the clock",
        "j/q 2: dropped 2 null event time rows of a in 2 batches since the last warning",
        "j/q 2: rows of a in 2 batches since the last warning have event times too far ahead of the clock",
    ]


@pytest.mark.parametrize(
    ("batch", "is_by_the_clock", "expected"),
    [
        (fold(a=NOW_MS // 1000, b=0), True, "in 1970, until 1970-01-20 17:21:07 UTC: expected timestamps or epoch"),
        (fold(a=NOW_MS // 1000, b=NOW_MS), True, None),
        (fold(a=NOW_MS), True, None),
        (fold(), True, None),
        (fold(a=NOW_MS // 1000), False, None),
        (Fold(["a"], [None], [3], [0], [0], [1], [2]), True, "are too far ahead of the clock: expected"),
        (FUTURE, True, None),
    ],
    ids=["seconds", "one substream at 0", "milliseconds", "no rows", "another unit", "microseconds", "one row ahead"],
)
def test_event_times_in_another_unit_are_logged_once(
    warnings: RowWarnings, caplog: pytest.LogCaptureFixture, batch: Fold, is_by_the_clock: bool, expected: str | None
) -> None:
    """In seconds, event times are in 1970 and no watermark seems wrong. In microseconds, no watermark moves."""
    for batch_id in range(2):
        warnings.check(batch_id, batch, is_by_the_clock, {})
    assert caplog.text.count("all event times of the batch") == (expected is not None)
    assert expected is None or expected in caplog.text


def test_a_watermark_ahead_of_the_clock_is_logged_once(warnings: RowWarnings, caplog: pytest.LogCaptureFixture) -> None:
    """Local times that are read as UTC are ahead of the clock east of Greenwich, and make correct rows late."""
    for watermark in (None, NOW_MS - 1, NOW_MS + row_warnings.AHEAD_MS - 1):
        warnings.check_watermark(watermark, NOW_MS)
    assert caplog.text == ""
    for _ in range(2):
        warnings.check_watermark(NOW_MS + 5_400_000, NOW_MS)
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (
        logging.WARNING,
        "j/q: the watermark 2024-01-01 01:30:00 UTC is 1:30:00 ahead of the clock: correct event times below it are "
        "late. Check whether local times were read as UTC, and the sources' clocks.",
    )
