"""The least lag that keeps the rows of a trailing partition on time, as analysed in docs/explanation/watermarks.md."""

from collections.abc import Callable

import pytest

from docs.tools.drawing.merges import DISORDER, Late, late_by_average, late_by_maximum, late_by_minimum, least_lag


@pytest.mark.parametrize("skew", [0, 1, 2, 5, 10, 25, 50, 99, 100])
@pytest.mark.parametrize(
    ("late", "bound"),
    [
        (late_by_minimum, lambda skew: DISORDER),
        (late_by_maximum, lambda skew: skew + DISORDER),
        (late_by_average, lambda skew: -(-skew // 2) + DISORDER),
    ],
    ids=["minimum", "maximum", "average"],
)
def test_the_least_lag_without_late_rows(late: Late, bound: Callable[[int], int], skew: int) -> None:
    """Only the minimum of the partitions makes the lag independent of the skew."""
    assert least_lag(late, skew) == bound(skew)
