"""The ledger of updated, dropped and diverted rows by hour."""

from dataclasses import replace

import pytest

from tests.domain.batches import RUN
from tests.support.machine import JobMachine
from tidegate.domain.batches import PartitionReport
from tidegate.domain.completeness import (
    ENTRIES_KEPT,
    HOUR,
    HOURS_KEPT,
    NO_ROWS,
    BatchAccounting,
    Entry,
    HourCounts,
    LateDisposition,
    Ledger,
    RowsOfHour,
    Span,
    spans,
)
from tidegate.domain.config import JobConfig
from tidegate.domain.policies import LimitingLag

A, B = ("q", "a"), ("q", "b")


def test_hours_add_up() -> None:
    ledger = Ledger()
    ledger.add([(A, (3, 100, 5, 7)), (B, (3, 50, 0, 0)), (None, (4, 10, 0, 1))], "dropped")
    ledger.add([(A, (3, 10, 0, 2)), (A, (-1, 1, 1, 0))], "diverted")
    assert ledger.of_job == {
        3: HourCounts(160, 5, 7, 2),
        4: HourCounts(10, 0, 1, 0),
        -1: HourCounts(1, 1, 0, 0),
    }
    assert ledger.of_substreams[3] == {A: HourCounts(110, 5, 7, 2), B: HourCounts(50, 0, 0, 0)}
    assert ledger.of_substreams[4] == {}


def test_the_latest_hours_are_kept() -> None:
    ledger = Ledger()
    ledger.add([(A, (hour, 1, 0, 0)) for hour in range(HOURS_KEPT + 10)], "dropped")
    assert (min(ledger.of_job), len(ledger.of_job)) == (10, HOURS_KEPT)
    ledger.add([(A, (3, 5, 0, 5))], "dropped")
    assert min(ledger.of_job) == 10, "an hour before all kept hours must not be entered"


def test_many_substreams_reduce_the_kept_hours_to_the_latest() -> None:
    ledger = Ledger()
    many = ENTRIES_KEPT // 2 + 1
    for hour in range(3):
        ledger.add([(("q", str(name)), (hour, 1, 0, 0)) for name in range(many)], "dropped")
        assert list(ledger.of_job) == [hour]
    ledger.add([(("q", "x"), (3, 1, 0, 0))], "dropped")
    assert list(ledger.of_job) == [2, 3]


@pytest.mark.slow
def test_growing_hours_do_not_exceed_the_limit_of_entries() -> None:
    """A small query fills all kept hours before a large one reports."""
    ledger = Ledger()
    ledger.add([(A, (hour, 1, 0, 0)) for hour in range(HOURS_KEPT)], "dropped")
    for hour in range(HOURS_KEPT):
        ledger.add([(("q", str(name)), (hour, 1, 0, 0)) for name in range(1000)], "dropped")
        assert len([*ledger.entries()]) <= ENTRIES_KEPT


def test_rows_reported_for_the_job_alone_are_unattributed() -> None:
    ledger = Ledger()
    ledger.add([(A, (1, 10, 0, 2)), (None, (1, 5, 0, 0))], "dropped", [(1, 100, 1, 2), (2, 7, 0, 0)])
    assert ledger.of_job == {1: HourCounts(100, 1, 2, 0), 2: HourCounts(7, 0, 0, 0)}
    assert ledger.of_substreams == {1: {A: HourCounts(10, 0, 2, 0)}, 2: {}}
    assert ledger.unattributed == {1: 85, 2: 7}


def test_hours_after_the_latest_possible_one_are_not_entered() -> None:
    ledger = Ledger()
    ledger.add([(A, (hour, 1, 0, 1)) for hour in (5, 6, 7, 10**6)], "dropped", latest=6 * HOUR)
    assert list(ledger.of_job) == list(ledger.of_substreams) == [5, 6]


def entry(key: tuple[str, str], hour: int, rows: int, dropped: int, diverted: int = 0, updated: int = 0) -> Entry:
    return key, hour, HourCounts(rows, updated, dropped, diverted)


def test_consecutive_hours_of_a_substream_are_one_span() -> None:
    found = spans(
        [
            entry(A, 15, 200, 8),
            entry(B, 15, 10, 9),
            entry(A, 14, 100, 1),
            entry(A, 17, 50, 3),
            entry(A, 16, 40, 0, updated=4),
        ]
    )
    assert found == [
        Span(A, 14 * HOUR, 16 * HOUR, HourCounts(300, 0, 9, 0)),
        Span(B, 15 * HOUR, 16 * HOUR, HourCounts(10, 0, 9, 0)),
        Span(A, 17 * HOUR, 18 * HOUR, HourCounts(50, 0, 3, 0)),
    ]
    assert [span.whole for span in spans([entry(A, 14, 9, 1), entry(A, 15, 9, 1), entry(B, 15, 9, 1)], {14})] == [
        False,
        True,
    ]


def test_spans_of_dropped_rows_precede_those_of_diverted_rows() -> None:
    found = spans([entry(A, 1, 10, 0, diverted=9), entry(B, 1, 10, 1), entry(("p", "z"), 1, 10, 1)])
    assert [span.key for span in found] == [("p", "z"), B, A]
    assert spans([]) == []


def commit(job: JobMachine, batch_id: int, disposition: LateDisposition, hours: tuple[RowsOfHour, ...]) -> None:
    job.begin(RUN, batch_id, 0)
    job.stage(RUN, batch_id, PartitionReport(0, {"a": 1}), 0)
    late = sum(of_hour[3] for of_hour in hours)
    account = BatchAccounting(
        ("a", "?"), (replace(NO_ROWS, on_time=1, late=late), replace(NO_ROWS, late=1)), disposition, (hours, ())
    )
    for _ in range(2):
        job.commit(RUN, batch_id, account, 0)


def test_an_account_counts_once_and_outlives_its_substream() -> None:
    job = JobMachine(JobConfig(LimitingLag(0)), 0)
    commit(job, 0, "dropped", ((5, 10, 0, 2),))
    commit(job, 1, "diverted", ((5, 10, 0, 3),))
    key = RUN.query, "a"
    assert (job.total.late, job.diverted_total, job.diverted_rows[key]) == (7, 4, 3)
    assert job.ledger.of_substreams == {5: {key: HourCounts(20, 0, 2, 3)}}
    job.retire(RUN.query, "heir", 0)
    assert job.diverted_rows == {("heir", "a"): 3}
    job.evict("heir", ["a"], 0)
    assert (job.diverted_rows, job.diverted_total) == ({}, 4)
    assert job.ledger.of_substreams == {5: {key: HourCounts(20, 0, 2, 3)}}
    job.reset(0, "e")
    assert (job.ledger.of_job, job.diverted_total) == ({}, 4)
