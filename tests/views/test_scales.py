"""The ranges of charts on the page."""

import pytest

from tidegate.page.charts import MAX_STEPS, Range, Scales, step_for
from tidegate.times import ROUND_MS

MINUTE = 60_000


def test_a_range_has_round_ends_and_ticks() -> None:
    found = Scales().range_of("lag", 0, 50 * MINUTE)
    assert found == Range(0, 60 * MINUTE, 10 * MINUTE)
    assert list(found.ticks()) == [minutes * MINUTE for minutes in range(0, 61, 10)]
    assert found.position(15 * MINUTE) == 25.0


def test_a_range_stays_while_the_data_fits() -> None:
    """Marks move on a fixed axis. The axis moves only when a mark leaves it, or uses little of it."""
    scales = Scales()
    first = scales.range_of("picture", 3 * MINUTE, 12 * MINUTE)
    assert first == Range(2 * MINUTE, 14 * MINUTE, 2 * MINUTE)
    assert scales.range_of("picture", 5 * MINUTE, 14 * MINUTE) is first
    moved = scales.range_of("picture", 6 * MINUTE, 15 * MINUTE)
    assert moved == Range(6 * MINUTE, 16 * MINUTE, 2 * MINUTE)
    narrow = scales.range_of("picture", 7 * MINUTE, 8 * MINUTE)
    assert narrow.step < 2 * MINUTE
    assert scales.range_of("another", 3 * MINUTE, 12 * MINUTE) == first


@pytest.mark.parametrize(("low", "high"), [(0, 0), (-5, 5), (-(2**53), 2**53), (1_700_000_000_000, 1_700_000_000_001)])
def test_any_data_has_a_range(low: int, high: int) -> None:
    found = Scales().range_of("any", low, high)
    assert found.has(low, high)
    assert 0 <= found.position(low) <= found.position(high) <= 100
    assert 1 <= len(list(found.ticks())) <= MAX_STEPS + 2


def test_steps_are_round() -> None:
    assert [step_for(span) for span in (1, 60, 61, 6 * MINUTE, 6 * MINUTE + 1)] == [1, 10, 20, MINUTE, 2 * MINUTE]
    assert step_for(7 * 6 * ROUND_MS[-1]) == 7 * ROUND_MS[-1]
