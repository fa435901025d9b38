"""The replay of a stream, compared with the table of docs/explanation/completeness.md and the machine of a job."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.tools.drawing.clicks import MINUTE, WINDOW, clicks
from tests.support.book import BOOK
from tidegate.domain.config import FrameThrottle, JobConfig, MinStepThrottle
from tidegate.domain.policies import LimitingLag
from tidegate.domain.simulate import Outcome, Row, Step, classify, merged_event_times, through_machine, under_lag


@pytest.mark.parametrize(("lag", "expected"), BOOK.items())
def test_the_table_of_the_book(lag: int, expected: tuple[float, int, float]) -> None:
    rows = clicks()
    outcome = classify(under_lag(rows, merged_event_times(rows), lag * MINUTE), WINDOW)
    assert outcome.average_latency is not None
    latency = outcome.average_latency / MINUTE
    assert (round(100 * outcome.completeness, 2), outcome.dropped, round(latency, 2)) == expected


rows_of = st.lists(
    st.builds(Row, st.integers(-60, 60), st.sampled_from(["a", "b", "c"]), st.just(0)), min_size=1, max_size=40
)


@given(rows=rows_of, lag=st.integers(0, 30), declared=st.lists(st.sampled_from(["a", "b", "c"]), unique=True))
def test_under_lag_equals_the_machine(rows: list[Row], lag: int, declared: list[str]) -> None:
    slow = list(through_machine(rows, JobConfig(LimitingLag(lag)), declared))
    assert list(under_lag(rows, merged_event_times(rows, declared), lag)) == slow


@given(rows=rows_of, lag=st.integers(0, 30), size=st.integers(1, 20), grace=st.integers(0, 20))
def test_classify_follows_its_definition(rows: list[Row], lag: int, size: int, grace: int) -> None:
    """A row is late if its window ends at or below the watermark that takes the row into account. Each window with a
    counted row closes once, when the watermark reaches its end.
    """
    moments = list(under_lag(rows, merged_event_times(rows), lag))
    dropped = updated = latency = 0
    closed: dict[int, int] = {}
    known: set[int] = set()
    for moment in moments:
        [(event_time, _)] = moment.rows
        end = (event_time // size + 1) * size
        assert moment.watermark is not None
        if end > moment.watermark:
            known.add(end)
        elif end > moment.watermark - grace:
            updated += 1
            closed.setdefault(end, moment.max_event_time - end)
        else:
            dropped += 1
        for other in known:
            if other <= moment.watermark:
                closed.setdefault(other, moment.max_event_time - other)
    latency = sum(closed.values())
    assert classify(moments, size, grace) == Outcome(len(rows), dropped, updated, len(closed), latency)


@given(rows=rows_of, lag=st.integers(0, 30), size=st.integers(1, 20))
def test_a_frame_throttle_drops_no_more_rows(rows: list[Row], lag: int, size: int) -> None:
    """A frame throttle emits at the ends of windows, and no window closes between them."""
    plain = classify(under_lag(rows, merged_event_times(rows), lag), size)
    framed = JobConfig(LimitingLag(lag), FrameThrottle(size, size))
    assert classify(through_machine(rows, framed), size) == plain
    stepped = classify(through_machine(rows, JobConfig(LimitingLag(lag), MinStepThrottle(7))), size)
    assert stepped.dropped <= plain.dropped


def test_before_the_first_watermark_no_row_is_late() -> None:
    watermarks = [(5, None, 5), (1, None, 5), (25, 20, 25), (1, 20, 25)]
    moments = [Step(((at, 1),), watermark, watermark, highest) for at, watermark, highest in watermarks]
    assert classify(moments, 10) == Outcome(4, 1, 0, 1, 15)
    assert classify([], 10).completeness == 1 and classify([], 10).average_latency is None
    assert list(through_machine([], JobConfig(LimitingLag(0)))) == []
