"""Two queries of one job, with every interleaving of their calls.

Each query runs up to three batches: begin, report, commit. Each batch raises its event times by 100 ms. In every order,
the watermark must not pass an uncommitted on-time row. At the end, it must reach what both queries have committed.
"""

from collections.abc import Iterator
from itertools import product

import pytest

from tests.support.machine import JobMachine
from tidegate.domain.batches import PartitionReport
from tidegate.domain.config import JobConfig
from tidegate.domain.job import Run
from tidegate.domain.policies import LimitingLag
from tidegate.domain.values import above

STEPS = ("begin", "report", "commit")
QUERIES = (Run("left", "c", "r"), Run("right", "c", "r"))
LAG = 5


def orders(left: int, right: int) -> Iterator[tuple[int, ...]]:
    """Yield every interleaving of two sequences of these lengths: 0 for a call of the left one, 1 for the right one."""
    if not left and not right:
        yield ()
    if left:
        yield from ((0, *rest) for rest in orders(left - 1, right))
    if right:
        yield from ((1, *rest) for rest in orders(left, right - 1))


def event_times(query: int, batch: int) -> tuple[int, int]:
    """Return the lowest and the highest event time of a batch. The right query is 40 ms ahead of the left one."""
    max_event_time = 100 * (batch + 1) + 40 * query
    return max_event_time - LAG, max_event_time


def check(job: JobMachine, pending: dict[int, list[int]]) -> None:
    watermark = job.watermark_state().watermark
    for times in pending.values():
        for time in times:
            assert not above(watermark, time), f"the watermark {watermark} passed an uncommitted row at {time}"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param(left, right, marks=[pytest.mark.fuzz] if left + right > 4 else [])
        for left, right in list(product(range(4), repeat=2))[1:]
    ],
)
@pytest.mark.parametrize("declared", [False, True], ids=["joining", "declared"])
def test_the_watermark_follows_both_queries(left: int, right: int, declared: bool) -> None:
    batches = left, right
    for order in orders(3 * left, 3 * right):
        job = JobMachine(JobConfig(LimitingLag(LAG)), 0)
        if declared:
            for number, run in enumerate(QUERIES):
                if batches[number]:
                    job.declare(run.query, ["s"], 0)
        done = [0, 0]
        pending: dict[int, list[int]] = {0: [], 1: []}
        for now, number in enumerate(order, 1):
            run, batch, step = QUERIES[number], done[number] // 3, STEPS[done[number] % 3]
            low, max_event_time = event_times(number, batch)
            if step == "begin":
                pinned_watermark = job.begin(run, batch, now).pinned_watermark
                # Rows below the pinned watermark are late, so the watermark may pass them. Without a declaration, these
                # include rows of the query that joins later.
                pending[number] = [time for time in (low, max_event_time) if not above(pinned_watermark, time)]
            elif step == "report":
                job.stage(run, batch, PartitionReport(0, {"s": max_event_time}), now)
            else:
                if declared:
                    assert low in pending[number], "an on-time row was classified as late"
                job.commit(run, batch, None, now)
                pending[number] = []
            done[number] += 1
            check(job, pending)
        last = min(event_times(number, count - 1)[1] for number, count in enumerate(batches) if count)
        reached = job.watermark_state().watermark
        assert not above(last - LAG, reached), "the watermark must reach what both queries have committed"
        assert not declared or reached == last - LAG


def test_an_implied_commit_has_the_effect_of_a_sent_one() -> None:
    """A driver that dies before it sends its commit must not hold the watermark forever."""
    for order in orders(5, 5):  # begin 0, report 0, begin 1, report 1, commit 1
        job = JobMachine(JobConfig(LimitingLag(LAG)), 0)
        for run in QUERIES:
            job.declare(run.query, ["s"], 0)
        done = [0, 0]
        pending: dict[int, list[int]] = {0: [], 1: []}
        for now, number in enumerate(order, 1):
            run, step = QUERIES[number], done[number]
            batch = 0 if step < 2 else 1
            low, max_event_time = event_times(number, batch)
            if step in (0, 2):
                pinned_watermark = job.begin(run, batch, now).pinned_watermark
                pending[number] = [time for time in (low, max_event_time) if not above(pinned_watermark, time)]
                assert low in pending[number]
            elif step in (1, 3):
                job.stage(run, batch, PartitionReport(0, {"s": max_event_time}), now)
            else:
                job.commit(run, batch, None, now)
                pending[number] = []
            done[number] += 1
            check(job, pending)
        assert job.watermark_state().watermark == event_times(0, 1)[1] - LAG
