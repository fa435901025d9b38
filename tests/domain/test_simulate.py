"""The replay of a stream, compared with the table of docs/explanation/completeness.md and the machine of a job."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.tools.drawing.clicks import MINUTE, WINDOW, clicks
from tests.domain.batches import FRAME, HIGHEST_MS, LEARNING, RUN, read
from tests.support.book import BOOK
from tests.support.machine import JobMachine
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
    [
        ("idle_timeout_ms", 11),
        ("max_skew_ms", 11),
        ("max_retention_ms", 41),
        ("arrival_target", 0),
        (None, 3 * HIGHEST_MS - FRAME),
    ],
)
def test_recorded_batches_are_evidence_for_each_limit(limit: str | None, behind: int) -> None:
    """One of three substreams is silent after its first row, and one is ten behind: its rows come a frame later."""
    values = {"idle_timeout_ms": 50, "max_skew_ms": 70, "max_retention_ms": 40, "arrival_target": 0.9}
    limits: dict[str, Any] = {name: value if name == limit else None for name, value in values.items()}
    recorded = []
    for at in range(1005, 1005 + 3 * HIGHEST_MS, FRAME):
        times = {"fast": at - 1, "slow": at - 11} | ({"silent": at} if at == 1005 else {})
        recorded.append(RecordedBatch(at, times, [(time, 1) for time in times.values()]))
    *_, last = in_batches(recorded, replace(LEARNING, **limits))
    assert last.watermark == recorded[-1].at - behind
    holder = None if last.holder is None else last.holder.substream
    assert (holder == "silent") == (limit in ("max_retention_ms", None)), "it holds until retention passes it"


@given(
    gaps=st.lists(st.sampled_from([10, 10, 20, 70]), min_size=3, max_size=30),
    limit=st.sampled_from(["idle_timeout_ms", "max_skew_ms", "max_retention_ms", "arrival_target"]),
    rows=st.randoms(use_true_random=False),
)
def test_a_recorded_query_runs_between_its_batches(gaps: list[int], limit: str, rows: Random) -> None:
    """The watermarks are those of a query that sends a heartbeat every ten milliseconds, in a job that is swept."""
    values = {"idle_timeout_ms": 30, "max_skew_ms": 25, "max_retention_ms": 40, "arrival_target": 0.9}
    limits: dict[str, Any] = {name: value if name == limit else None for name, value in values.items()}
    config, at, recorded = replace(LEARNING, **limits), 1000, []
    for gap in [10, 10, *gaps]:
        at += gap
        times = {name: at - rows.randrange(1, 60) for name in "abc" if rows.random() < 0.6}
        recorded.append(RecordedBatch(at, times, [(time, 1) for time in times.values()]))
    job, expected = JobMachine(config, recorded[0].at), []
    for number, batch in enumerate(recorded):
        for now in range(recorded[number - 1].at + 10, batch.at, 10) if number else ():
            job.heartbeat(RUN, now, now)
            job.sweep(now)
        job.sweep(batch.at)
        late = read(job, number, {name: [time] for name, time in batch.max_event_times.items()}, batch.at)
        if job.max_event_time is not None:
            expected.append((late, job.watermark))
    assert [(step.late, step.watermark) for step in in_batches(recorded, config)] == expected
