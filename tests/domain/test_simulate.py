"""The replay of a stream, compared with the table of docs/explanation/completeness.md and the machine of a job."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.tools.drawing.clicks import MINUTE, WINDOW, clicks
from tests.domain.batches import FRAME, HIGHEST_MS, LEARNING
from tests.support.book import BOOK
from tidegate.domain.config import FrameThrottle, JobConfig, MinStepThrottle
from tidegate.domain.policies import LimitingLag
from tidegate.domain.simulate import (
    Outcome,
    RecordedBatch,
    Row,
    Step,
    classify,
    in_batches,
    merged_event_times,
    through_machine,
    under_lag,
)


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


@given(
    parts=st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(-60, 60)), max_size=20),
    lag=st.integers(0, 30),
)
def test_rows_of_a_batch_are_compared_with_the_watermark_before_it(parts: list[dict[str, int]], lag: int) -> None:
    recorded = [RecordedBatch(at, part, [(time, 1) for time in part.values()]) for at, part in enumerate(parts)]
    reached: dict[str, int] = {}
    watermark: int | None = None
    expected: list[tuple[int | None, int, int]] = []
    for part in parts:
        late = watermark
        reached |= {name: max(time, reached.get(name, time)) for name, time in part.items()}
        if reached:
            lowest = min(reached.values()) - lag
            watermark = lowest if watermark is None else max(watermark, lowest)
            expected.append((late, watermark, max(reached.values())))
    found = in_batches(recorded, JobConfig(LimitingLag(lag)))
    assert [(step.late, step.watermark, step.max_event_time) for step in found] == expected


@pytest.mark.parametrize(
    ("limit", "behind"),
    [("idle_timeout_ms", 11), ("max_skew_ms", 11), ("arrival_target", 1), (None, 3 * HIGHEST_MS - FRAME)],
)
def test_recorded_batches_are_evidence_for_each_limit(limit: str | None, behind: int) -> None:
    """One of three substreams is silent after its first row, and one is ten behind: its rows come a frame later."""
    none: dict[str, Any] = {"idle_timeout_ms": None, "max_skew_ms": None, "arrival_target": None}
    values = {"idle_timeout_ms": 50, "max_skew_ms": 70, "arrival_target": 0.9}
    config = replace(LEARNING, **none | {name: value for name, value in values.items() if name == limit})
    recorded = []
    for at in range(1000, 1000 + 3 * HIGHEST_MS, FRAME):
        times = {"fast": at - 1, "slow": at - 11} | ({"silent": at} if at == 1000 else {})
        recorded.append(RecordedBatch(at, times, [(time, 1) for time in times.values()]))
    *_, last = in_batches(recorded, config)
    assert last.watermark == recorded[-1].at - behind
    assert (last.holder is not None and last.holder.substream == "silent") == (limit is None)
