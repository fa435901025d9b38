"""The lag chart of the page, drawn from the samples of a job."""

import pytest

from tidegate.domain.history import Sample
from tidegate.domain.results import HoldReason
from tidegate.page.charts import Scales
from tidegate.page.lag import COLORS, REPLAYED_MS, SHORTEST_MS, LagChart, held_since, lag_chart
from tidegate.views.sentences import plain_text

START = 1_700_000_000_000
MINUTE = 60_000
RANGE = 10 * MINUTE
NOW = START + RANGE


def sample(
    minutes: int, lag_minutes: int | None, name: str = "HNL", reason: HoldReason | None = "slow", query: str = ""
) -> Sample:
    at_ms = START + minutes * MINUTE
    watermark = None if lag_minutes is None else at_ms - lag_minutes * MINUTE
    return Sample(at_ms, watermark, reason, query, name)


def chart(*samples: Sample) -> LagChart:
    found = lag_chart(samples, samples[-1].watermark, RANGE, NOW, Scales())
    assert found is not None
    return found


def held(found: LagChart) -> list[tuple[str, float, float]]:
    return [(plain_text(span.holder, NOW), span.x, span.width) for span in found.spans]


def test_the_lag_is_a_line_through_the_samples_to_the_current_watermark() -> None:
    found = chart(sample(0, 3), sample(5, 1))
    assert (found.lowest, found.highest) == (MINUTE, 6 * MINUTE)
    assert found.vertical.end == 7 * MINUTE
    positions = [tuple(map(float, point.split(","))) for point in found.lines[0].split()]
    assert [x for x, _ in positions] == [0, 50, 100]
    assert [y for _, y in positions] == pytest.approx([100 - 100 * lag / 7 for lag in (3, 1, 6)], abs=0.001)


def test_a_line_ends_where_the_job_has_no_watermark() -> None:
    found = chart(sample(0, 2), sample(1, 2), sample(2, None), sample(8, 1))
    assert [line.split(",")[0] for line in found.lines] == ["0.0", "80.0"]
    assert lag_chart([sample(0, None)], None, RANGE, NOW, Scales()) is None
    assert lag_chart([], None, RANGE, NOW, Scales()) is None


def test_a_line_from_before_the_range_crosses_its_start() -> None:
    found = chart(sample(-5, 1), sample(5, 11))
    assert found.lines[0].startswith("0.0,")
    assert found.lowest == 6 * MINUTE
    assert found.lag_at_start == 6 * MINUTE


def test_the_chart_of_a_young_job_begins_with_its_first_sample() -> None:
    """Otherwise, the line of a job that is 90 s old would be a stroke at the edge of an hour."""
    found = chart(sample(7, 1), sample(8, 2))
    assert (found.times.start, found.times.end) == (START + 7 * MINUTE, NOW)
    assert [line.split(",")[0] for line in found.lines] == ["0.0"]
    assert held(found) == [("HNL", 0.0, 100.0)]
    assert found.lag_at_start is None, "the lag at the start of the range is unknown"
    newest = lag_chart([Sample(NOW - 1, NOW, "slow", "", "HNL")], NOW, RANGE, NOW, Scales())
    assert newest is not None and newest.times.end - newest.times.start == SHORTEST_MS


def test_a_holder_has_held_since_the_first_sample_of_its_last_span() -> None:
    samples = [sample(0, 2), sample(1, 2, "SEA"), sample(2, 2), sample(3, 2, reason="blocked"), sample(4, 2)]
    holder = {"reason": "slow", "query": "", "substream": "HNL", "hold": None}
    assert held_since(samples, holder) == START + 2 * MINUTE
    assert held_since(samples, holder | {"substream": "SEA"}) is None, "the latest sample has another holder"
    assert held_since(samples, holder | {"query": "departures"}) is None, "HNL of another query"
    assert held_since([], holder) is None
    batches = [sample(0, 1), sample(1, 1, "", "open_batch", "q"), sample(2, 1, "", "open_batch", "q")]
    batch = {"reason": "open_batch", "query": "q", "substream": None, "hold": None, "batch_id": 7}
    assert held_since(batches, batch) == START + MINUTE, "batches of one query count as one holder"


def test_the_band_shows_who_held_the_watermark() -> None:
    found = chart(
        sample(0, 2),
        sample(1, 2),
        sample(2, 2, "BOS"),
        sample(4, 2, "", None),
        sample(5, 2, "", "open_batch", "daily"),
        sample(6, 2, "", "open_batch", "daily"),
        sample(9, 2, "audit", "hold"),
    )
    assert held(found) == [
        ("HNL", 0.0, 20.0),
        ("BOS", 20.0, 20.0),
        ("open batches of daily", 50.0, 40.0),
        ("the hold audit", 90.0, 10.0),
    ]
    shares = [(plain_text(share.holder, NOW), share.held_ms, share.share) for share in found.shares]
    assert shares[0] == ("open batches of daily", 4 * MINUTE, 0.4)
    assert shares[-1] == ("the hold audit", MINUTE, 0.1)


def test_a_substream_is_one_holder_for_whatever_reason() -> None:
    assert held(chart(sample(0, 2), sample(5, 3, reason="blocked"))) == [("HNL", 0.0, 100.0)]


def test_the_holders_that_held_longest_have_colors() -> None:
    found = chart(*(sample(minute, 2, f"s{min(minute, 7)}") for minute in range(10)))
    assert [share.color for share in found.shares] == [
        *(f"holder-{number}" for number in range(COLORS)),
        "holder-other",
    ]
    assert plain_text(found.shares[0].holder, NOW) == "s7"
    assert plain_text(found.shares[-1].holder, NOW) == "3 others"
    assert found.spans[-1].color == "holder-0"


def test_replayed_event_times_are_shown_as_event_times() -> None:
    """A lag of years says nothing about the job."""
    shift = REPLAYED_MS // MINUTE + 200
    found = chart(sample(0, shift), sample(5, shift - 100))
    assert found.is_event_time
    watermark = START - shift * MINUTE
    assert (found.lowest, found.highest) == (watermark, watermark + 105 * MINUTE)
    assert not chart(sample(0, shift - 220)).is_event_time
