"""What lag keeps a partition whole that trails another: the analysis of docs/semantics.md, swept over the skew."""

from collections.abc import Callable

import pytest

from docs.drawing.merges import DISORDER, Late, late_by_average, late_by_maximum, late_by_minimum, least_lag


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
def test_the_lag_that_keeps_the_trailing_partition_whole(late: Late, bound: Callable[[int], int], skew: int) -> None:
    """With the minimum, the skew does not matter at all; with the others the lag has to pay for it."""
    assert least_lag(late, skew) == bound(skew)
