"""The picture of a job on the axis of event time."""

from typing import Any

import pytest

from tidegate.domain.completeness import NO_ROWS
from tidegate.domain.job import SubstreamState
from tidegate.domain.views import SubstreamStatus
from tidegate.page.charts import Scales
from tidegate.page.picture import FLOOR, HEIGHT, Picture, picture
from tidegate.store.replies import Distribution

NOW = 1_700_000_000_000
MINUTE = 60_000


def row(name: str, minutes: int | None, state: SubstreamState = "active") -> SubstreamStatus:
    watermark = None if minutes is None else NOW + minutes * MINUTE
    return SubstreamStatus("", name, state, None, watermark, watermark, None, NOW, 0, None, 0, 0, NO_ROWS)


def job(watermark: int | None, highest: int | None, substream: str | None = "any") -> dict[str, Any]:
    return {
        "watermark": None if watermark is None else NOW + watermark * MINUTE,
        "coalesced_watermark": None if watermark is None else NOW + watermark * MINUTE,
        "max_event_time": None if highest is None else NOW + highest * MINUTE,
        "held_by": {"substream": substream},
        "now_ms": NOW,
    }


def drawn(found: Picture | None) -> Picture:
    assert found is not None
    return found


def test_each_substream_is_a_mark_at_its_watermark() -> None:
    rows = [row("slow", -40), row("fast", -10), row("gone", -30, "idle")]
    found = drawn(picture(job(-40, -5), rows, (), None, Scales()))
    at = {mark.row.substream: (mark.x, mark.is_holder) for mark in found.marks}
    assert at["slow"] == (found.axis.position(NOW - 40 * MINUTE), True)
    assert at["fast"] == (found.axis.position(NOW - 10 * MINUTE), False)
    assert at["gone"][1] is False
    assert [line.name for line in found.lines] == ["watermark", "coalesced_watermark", "max_event_time", "now"]


def test_substreams_with_one_watermark_are_stacked() -> None:
    found = drawn(picture(job(-40, -5), [row(f"s{number}", -40) for number in range(40)], (), None, Scales()))
    heights = sorted(mark.y for mark in found.marks)
    assert len(set(heights)) == 40
    assert FLOOR - HEIGHT - 8 <= heights[0] < heights[-1] < FLOOR


def test_all_substreams_with_the_lowest_watermark_hold_it() -> None:
    rows = [row("a", -40), row("b", -40), row("c", -10), row("d", -40, "idle")]
    found = drawn(picture(job(-40, -5), rows, (), None, Scales()))
    assert {mark.row.substream for mark in found.marks if mark.is_holder} == {"a", "b"}
    held_by_a_hold = drawn(picture(job(-50, -5, None), rows, (), None, Scales()))
    assert not any(mark.is_holder for mark in held_by_a_hold.marks)


def test_a_substream_without_events_is_at_the_left_end_and_holds_the_watermark() -> None:
    found = drawn(picture(job(None, -5), [row("new", None), row("fast", -10)], (), None, Scales()))
    assert [(mark.row.substream, mark.x) for mark in found.marks if mark.is_holder] == [("new", 0.0)]


def test_idle_substreams_do_not_stretch_the_axis() -> None:
    rows = [row("a", -40), row("b", -10), row("gone", -100_000, "idle")]
    found = drawn(picture(job(-40, -5), rows, (), None, Scales()))
    assert {mark.row.substream for mark in found.marks} == {"a", "b"}
    assert found.earlier == 1


def test_a_distant_now_is_not_drawn() -> None:
    """In a replay of old data, an axis up to now would put all marks on one point."""
    rows = [row("a", -1_000_040), row("b", -1_000_000)]
    found = drawn(picture(job(-1_000_040, -1_000_000), rows, (), None, Scales()))
    assert found.line("now") is None
    assert found.axis.end < NOW


def test_a_large_job_is_drawn_in_bars() -> None:
    slowest = [row(f"s{number}", number - 40) for number in range(9)]
    start = NOW - 40 * MINUTE
    distribution = Distribution(10 * MINUTE, start, [9, 0, 300, 50], [0, 1, 100, 0], 3)
    found = drawn(picture(job(-40, -5), None, slowest, distribution, Scales()))
    assert [(bar.from_ms, bar.active, bar.others) for bar in found.bars] == [
        (start, 9, 0),
        (start + 10 * MINUTE, 0, 1),
        (start + 20 * MINUTE, 300, 100),
        (start + 30 * MINUTE, 50, 0),
    ]
    assert max(bar.active_height + bar.others_height for bar in found.bars) == pytest.approx(HEIGHT, abs=0.2)
    assert min(bar.active_height for bar in found.bars if bar.active) >= 2
    assert [mark.row.substream for mark in found.stragglers] == ["s0", "s1", "s2", "s3", "s4"]
    assert [mark.is_holder for mark in found.stragglers] == [True, False, False, False, False]
    assert found.earlier == 3


@pytest.mark.parametrize("state", ["done", "idle"])
def test_without_active_substreams_all_are_shown(state: SubstreamState) -> None:
    """A complete job has moved its watermark past all substreams."""
    finished = picture(job(5, -5, None), [row("slow", -40, state), row("fast", -10, state)], (), None, Scales())
    assert sorted(mark.row.substream for mark in drawn(finished).marks) == ["fast", "slow"]
    assert drawn(finished).earlier == 0
    distribution = Distribution(MINUTE, NOW - 40 * MINUTE, [0] * 40, [20, *[0] * 39], 0)
    large = drawn(picture(job(5, -5, None), None, (), distribution, Scales()))
    assert [bar.others for bar in large.bars] == [20]


def test_without_event_times_there_is_no_picture() -> None:
    assert picture(job(None, None), [], (), None, Scales()) is None
