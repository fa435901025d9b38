"""Positions in the charts of the page."""

import pytest

from tidegate.domain.journal import Record
from tidegate.page.charts import HEIGHT, WIDTH, axis, lag_chart


def places(*at: int | None) -> dict[str, float]:
    drawn = axis(*at)  # type: ignore[arg-type]
    assert drawn is not None
    return {mark.name: mark.x for mark in drawn.marks}


def test_the_axis_is_to_scale_if_now_is_near() -> None:
    drawn = axis(0, 25, 50, 100)
    assert drawn is not None and drawn.breaks_at is None
    assert places(0, 25, 50, 100) == {"emitted": 4.0, "coalesced_watermark": 27.0, "max_event_time": 50.0, "now": 96.0}
    assert [mark.anchor for mark in drawn.marks] == ["start", "middle", "middle", "end"]


def test_a_distant_now_is_behind_a_break() -> None:
    """In a replay of old data, an axis to scale would put all other marks on one point."""
    drawn = axis(0, 0, 100, 10_000)
    assert drawn is not None and drawn.breaks_at == 88.0
    assert places(0, 0, 100, 10_000) == {
        "emitted": 4.0,
        "coalesced_watermark": 4.0,
        "max_event_time": 80.0,
        "now": 96.0,
    }
    ahead = axis(5000, None, 5100, 0)
    assert ahead is not None and ahead.breaks_at == 12.0
    assert places(5000, None, 5100, 0) == {"emitted": 20.0, "max_event_time": 96.0, "now": 4.0}


def test_a_single_event_time_has_a_position() -> None:
    assert places(None, None, 7, 7) == {"max_event_time": 50.0, "now": 50.0}
    assert places(None, None, 7, 70) == {"max_event_time": 42.0, "now": 96.0}
    assert axis(None, None, None, 7) is None


@pytest.mark.parametrize("times", [(-(2**53) + 1, 0, 2**53 - 1), (0, 1, 2**53 - 1)])
def test_any_times_are_on_the_axis(times: tuple[int, int, int]) -> None:
    assert all(0 <= x <= 100 for x in places(*times, 1_700_000_000_000).values())


def emission(at_ms: int, watermark: int | None) -> Record:
    return Record(at_ms, "emission", {} if watermark is None else {"watermark": watermark})


def test_the_lag_grows_with_time_and_falls_with_emissions() -> None:
    drawn = lag_chart([emission(0, None), emission(100, 50), emission(200, 180)], 300)
    assert drawn is not None
    assert (drawn.from_ms, drawn.lowest_ms, drawn.highest_ms, drawn.latest_ms) == (100, 20, 150, 120)
    points = [tuple(map(float, point.split(","))) for point in drawn.points.split(" ")]
    assert [x for x, _ in points] == [0, WIDTH / 2, WIDTH / 2, WIDTH]
    heights = [HEIGHT - HEIGHT * (lag - 20) / 130 for lag in (50, 150, 20, 120)]
    assert [y for _, y in points] == [round(height, 1) for height in heights]
    assert lag_chart([emission(100, 50)], 300) is None
