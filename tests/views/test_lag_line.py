"""The small line of a job in the list of jobs, drawn from the samples of the job and its state."""

from tidegate.domain.history import Sample
from tidegate.domain.results import JobWatermark
from tidegate.page.lag import LINE_HEIGHT, LINE_MARGIN, LINE_RANGE_MS, LINE_WIDTH, REPLAYED_MS, LagLine, lag_line

NOW = 1_700_000_000_000
MINUTE = 60_000
TOP, BOTTOM = LINE_MARGIN, LINE_HEIGHT - LINE_MARGIN


def sample(minutes_ago: int, lag_minutes: int | None) -> Sample:
    at_ms = NOW - minutes_ago * MINUTE
    return Sample(at_ms, None if lag_minutes is None else at_ms - lag_minutes * MINUTE, None, "", "")


def line(lag_minutes: int | None, *samples: Sample) -> LagLine | None:
    watermark = None if lag_minutes is None else NOW - lag_minutes * MINUTE
    return lag_line(samples, JobWatermark(1, "e", NOW, watermark, watermark, watermark, None, False, None))


def test_the_line_is_straight_between_samples_and_ends_at_the_current_lag() -> None:
    found = line(20, sample(180, 10), sample(90, 40), sample(45, 0))
    assert found == LagLine([f"0,34 120,{TOP} 180,{BOTTOM} {LINE_WIDTH},24"], False, 0, 40 * MINUTE)


def test_the_line_starts_within_the_range() -> None:
    """A watermark that does not move has a lag that grows with time, also from a sample before the range."""
    long_ago = line(500, sample(490, 10))
    assert long_ago is not None
    assert (long_ago.lowest, long_ago.highest) == (500 * MINUTE - LINE_RANGE_MS, 500 * MINUTE)
    assert long_ago.lines[0].startswith("0,") and long_ago.lines[0].endswith(f" {LINE_WIDTH},{TOP}")


def test_the_line_ends_where_the_job_has_no_watermark() -> None:
    found = line(10, sample(120, 10), sample(110, 10), sample(100, None), sample(90, 10))
    assert found is not None
    assert found.lines == [f"80,{TOP} 93,{TOP}", f"120,{TOP} {LINE_WIDTH},{TOP}"]


def test_a_line_needs_two_points() -> None:
    assert line(None) is None
    assert line(5) is None
    assert line(5, sample(200, None)) is None
    assert line(None, sample(5, 1)) is None


def test_a_sample_after_the_state_is_ignored() -> None:
    """The list caches the state of jobs, and reads the samples later."""
    assert line(5, sample(10, 5), sample(-1, 300)) == line(5, sample(10, 5))


def test_replayed_event_times_have_a_line_of_the_watermark() -> None:
    years = REPLAYED_MS // MINUTE * 10
    found = line(years, sample(180, years + 60), sample(90, years))
    assert found is not None
    assert found.is_event_time
    assert (found.lowest, found.highest) == (NOW - (years + 240) * MINUTE, NOW - years * MINUTE)
    assert found.lines == [f"0,{BOTTOM} 120,19 {LINE_WIDTH},{TOP}"]


def test_a_negative_lag_is_below_zero() -> None:
    """The watermark of event times in the future is ahead of processing time."""
    found = line(10, sample(90, -10))
    assert found is not None
    assert (found.lowest, found.highest, found.lines) == (
        -10 * MINUTE,
        10 * MINUTE,
        [f"120,{BOTTOM} {LINE_WIDTH},{TOP}"],
    )
