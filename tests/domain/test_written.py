"""The written watermark: what the queries of a job have written."""

import pytest

from tests.domain.batches import OTHER, RUN, batch
from tests.support.machine import JobMachine
from tidegate.domain.batches import BeginOptions, PartitionReport
from tidegate.domain.config import JobConfig
from tidegate.domain.job import Run
from tidegate.domain.policies import LimitingLag

CONFIG = JobConfig(LimitingLag(0))


def written(job: JobMachine) -> tuple[int | None, int | None, str | None]:
    """Return W, the written watermark, and the query that holds the written watermark below W."""
    state = job.sweep(job.now_ms)
    return state.watermark, state.written_watermark, state.written_held_by


def windows_batch(job: JobMachine, run: Run, batch_id: int, event_time: int, output: int | None) -> None:
    """Run a batch of a query with windows, whose earlier batches have written up to ``output``."""
    job.begin(run, batch_id, job.now_ms, BeginOptions(tells_output=True, output_watermark=output))
    job.stage(run, batch_id, PartitionReport(0, {"a": event_time}), job.now_ms)
    job.commit(run, batch_id, None, job.now_ms)


@pytest.fixture
def job() -> JobMachine:
    return JobMachine(CONFIG, 0)


def test_rows_are_written_with_their_batch(job: JobMachine) -> None:
    batch(job, RUN, 0, {"a": 100})
    assert written(job) == (100, 100, None)
    job.begin(RUN, 1, 1)
    job.stage(RUN, 1, PartitionReport(0, {"a": 200}), 1)
    assert written(job) == (100, 100, None)
    job.commit(RUN, 1, None, 1)
    assert written(job) == (200, 200, None)


def test_windows_are_written_when_their_query_tells_it(job: JobMachine) -> None:
    windows_batch(job, RUN, 0, 100, None)
    assert written(job) == (100, None, "departures"), "the function has not yet been called"
    job.heartbeat(RUN, 0, 0, after_batch=0, caught_up=[], tells_output=True, output_watermark=60)
    assert written(job) == (100, 60, "departures")
    windows_batch(job, RUN, 1, 200, 90)
    assert written(job) == (200, 90, "departures"), "the begin of a batch tells it, too"
    job.heartbeat(RUN, 0, 0, after_batch=1, caught_up=[], tells_output=True, output_watermark=500)
    assert written(job) == (200, 200, None), "at most W"


def test_the_lowest_query_holds_the_written_watermark(job: JobMachine) -> None:
    windows_batch(job, RUN, 0, 100, None)
    windows_batch(job, OTHER, 0, 100, 40)
    assert written(job) == (100, None, "departures")
    job.heartbeat(RUN, 0, 0, caught_up=[], tells_output=True, output_watermark=50)
    assert written(job) == (100, 40, "arrivals")
    job.heartbeat(OTHER, 0, 0, caught_up=[], tells_output=True, output_watermark=80)
    assert written(job) == (100, 50, "departures")


def test_it_does_not_move_back(job: JobMachine) -> None:
    batch(job, RUN, 0, {"a": 100})
    windows_batch(job, OTHER, 0, 200, None)
    assert written(job) == (100, 100, "arrivals"), "a query that joins holds it, but does not lower it"
    job.heartbeat(OTHER, 0, 0, caught_up=[], tells_output=True, output_watermark=30)
    assert written(job) == (100, 100, "arrivals")
    windows_batch(job, OTHER, 1, 300, 20)
    assert job.queries["arrivals"].output_watermark == 30


def test_a_batch_that_a_limit_has_passed_still_holds_it() -> None:
    job = JobMachine(JobConfig(LimitingLag(0), max_batch_hold_ms=10), 0)
    batch(job, RUN, 0, {"a": 100}, 0)
    job.begin(RUN, 1, 0)
    batch(job, OTHER, 0, {"b": 500}, 0)
    job.stage(RUN, 1, PartitionReport(0, {"a": 300}), 0)
    job.evict("departures", ["a"], 5)
    assert written(job) == (100, 100, None)
    job.sweep(11)
    assert written(job) == (500, 100, "departures"), "W passes the batch, whose rows may be unwritten"
    job.commit(RUN, 1, None, 12)
    assert written(job) == (500, 500, None)


def test_a_retired_query_does_not_hold_it(job: JobMachine) -> None:
    batch(job, OTHER, 0, {"b": 100})
    windows_batch(job, RUN, 0, 100, 50)
    job.done("departures", ["a"], 1)
    batch(job, OTHER, 1, {"b": 200})
    assert written(job) == (200, 100, "departures")
    job.retire("departures", None, 1)
    assert written(job) == (200, 200, None)


def test_an_expected_query_holds_it_until_it_begins() -> None:
    """A query whose state the store has lost may have unwritten windows, although a token has restored W."""
    job = JobMachine(JobConfig(LimitingLag(0), query_timeout_ms=10, expected_queries=("departures",)), 0)
    batch(job, OTHER, 0, {"b": 100}, 0)
    job.sweep(11)
    batch(job, OTHER, 1, {"b": 100}, 12)
    assert written(job) == (100, None, "departures"), "the query timeout lets only W pass it"
    windows_batch(job, RUN, 4, 100, 70)
    assert written(job) == (100, 70, "departures")


def test_a_query_that_the_store_has_lost_holds_it_until_its_first_call(job: JobMachine) -> None:
    """Its client declares the substreams again before it begins. It may have unwritten windows."""
    job.declare("departures", ["a"], 0, {"a": 100})
    job.declare("arrivals", ["b"], 0, {"b": 200})
    assert written(job) == (100, None, "arrivals")
    windows_batch(job, RUN, 4, 100, 70)
    batch(job, OTHER, 0, {"b": 200})
    assert written(job) == (100, 70, "departures")


def test_an_expected_query_without_input_does_not_hold_it() -> None:
    """Its heartbeat tells that it has read everything, and that it writes with its batches."""
    job = JobMachine(JobConfig(LimitingLag(0), idle_timeout_ms=10, expected_queries=("departures",)), 0)
    job.declare("departures", ["a"], 0)
    batch(job, OTHER, 0, {"b": 100}, 0)
    job.heartbeat(RUN, 20, 20)
    assert written(job) == (100, 100, None)


def test_a_query_that_never_called_can_be_retired() -> None:
    job = JobMachine(JobConfig(LimitingLag(0), expected_queries=("departures",)), 0)
    job.declare("departures", ["a"], 0)
    job.evict("departures", ["a"], 0)
    batch(job, OTHER, 0, {"b": 100}, 0)
    assert written(job) == (100, None, "departures")
    job.retire("departures", None, 1)
    assert written(job) == (100, 100, None)


def test_on_time_rows_below_what_was_written_hold_it(job: JobMachine) -> None:
    """The end of the input closes a window beyond the watermark. After a reopening, its rows are on time again."""
    windows_batch(job, RUN, 0, 150, 120)
    job.complete(1)
    job.heartbeat(RUN, 0, 1, tells_output=True, output_watermark=180)
    assert written(job) == (151, 151, None)
    job.reopen(2)
    windows_batch(job, RUN, 1, 175, 180)
    assert written(job) == (175, 151, "departures"), "a row at 165 is in a window that is not yet written again"
    job.heartbeat(RUN, 0, 2, tells_output=True, output_watermark=180)
    assert written(job) == (175, 175, None)


def test_another_checkpoint_has_written_nothing(job: JobMachine) -> None:
    windows_batch(job, RUN, 0, 100, None)
    job.heartbeat(RUN, 0, 0, tells_output=True, output_watermark=100)
    assert written(job) == (100, 100, None)
    windows_batch(job, Run("departures", "another", "run-2"), 0, 200, None)
    assert written(job) == (200, 100, "departures")


def test_an_older_run_does_not_tell_the_output(job: JobMachine) -> None:
    windows_batch(job, RUN, 0, 100, 50)
    job.begin(Run("departures", "another", "run-2"), 0, 1, BeginOptions(tells_output=True))
    job.commit(Run("departures", "another", "run-2"), 0, None, 1)
    job.heartbeat(Run("departures", "checkpoint", "run-3"), 0, 1, tells_output=True, output_watermark=400)
    assert job.queries["departures"].output_watermark is None, "it is the output of another checkpoint"


def test_a_query_may_stop_telling_its_output(job: JobMachine) -> None:
    windows_batch(job, RUN, 0, 100, 50)
    batch(job, RUN, 1, {"a": 100})
    assert written(job) == (100, 100, None)


def test_the_end_of_the_input_waits_for_the_last_windows(job: JobMachine) -> None:
    windows_batch(job, RUN, 0, 100, None)
    job.heartbeat(RUN, 0, 0, tells_output=True, output_watermark=50)
    assert job.complete(1).state.watermark == 101
    assert written(job) == (101, 50, "departures")
    job.heartbeat(RUN, 0, 1, tells_output=True, output_watermark=120)
    assert written(job) == (101, 101, None)


def test_each_movement_is_recorded_once(job: JobMachine) -> None:
    windows_batch(job, RUN, 0, 100, None)
    job.heartbeat(RUN, 0, 0, caught_up=[], tells_output=True, output_watermark=60)
    job.heartbeat(RUN, 0, 0, caught_up=[], tells_output=True, output_watermark=60)
    movements = [record for record in job.history if "watermark" in record.details]
    assert [(r.kind, r.details.get("watermark"), r.details.get("written_watermark")) for r in movements] == [
        ("emission", 100, None),
        ("written", 100, 60),
    ]
    assert "held_by" not in movements[1].details
