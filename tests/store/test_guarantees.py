"""Each guarantee of the Lua functions, in a few commands. ``test_twin.py`` covers combinations of commands."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.support.driver import Driver, command_of
from tidegate.domain.batches import BeginOptions, PartitionReport
from tidegate.domain.completeness import NO_ROWS, BatchAccounting
from tidegate.domain.config import JobConfig
from tidegate.domain.errors import PinnedWatermarkConflict, QueryFenced
from tidegate.domain.job import ConfigVersion, PinnedWatermark, Run, TokenClaim
from tidegate.domain.policies import LimitingLag

RUN = Run("departures", "checkpoint", "run-1")
NEXT_RUN = Run("departures", "checkpoint", "run-2")
OTHER = Run("arrivals", "checkpoint-2", "run-a")


@dataclass(frozen=True)
class Job:
    """A job in the store; each command takes its processing time."""

    driver: Driver
    name: str

    def do(self, command: str, *arguments: Any, now: int, **named: Any) -> Any:
        """Execute a command and return its reply."""
        return self.driver(command_of(self.driver.store, command)(self.name, *arguments, now_ms=now, **named))

    def read(self, name: str, now: int) -> Any:
        """Return a view of the job, by the name of its method in the store's reads."""
        return self.driver(getattr(self.driver.store.reads, name)(self.name, now_ms=now))

    def batch(self, run: Run, batch_id: int, max_event_times: dict[str, int], now: int) -> None:
        """Begin, report and commit a batch at one moment."""
        self.do("begin", run, batch_id, now=now)
        self.do("stage", run, batch_id, PartitionReport(0, max_event_times), now=now)
        self.do("commit", run, batch_id, None, now=now)

    def watermark(self, now: int) -> int | None:
        """Return the emitted watermark after a sweep."""
        watermark: int | None = self.do("sweep", now=now).watermark
        return watermark


Make = Callable[..., Job]


@pytest.fixture
def make(driver: Driver, job_name: str) -> Make:
    """Return a function that creates the job of this test with a lag of 10 ms."""

    def made(**limits: Any) -> Job:
        found = Job(driver, job_name)
        found.do("configure", JobConfig(LimitingLag(10), **limits), {}, None, now=0)
        return found

    return made


def test_monotone_when_a_substream_becomes_active_again(make: Make) -> None:
    """An idle substream that reports an old event time holds the watermark but does not move it back."""
    job = make(idle_timeout_ms=100)
    job.batch(RUN, 0, {"a": 500, "b": 50}, 0)
    job.do("heartbeat", RUN, 200, now=200)
    job.batch(RUN, 1, {"a": 900, "b": 60}, 201)
    answer = job.do("sweep", now=201)
    assert (answer.coalesced_watermark, answer.watermark) == (490, 490)


def test_monotone_when_a_known_pin_is_below_the_watermark(make: Make) -> None:
    """A client that returns from a long outage sends an old pinned watermark."""
    job = make()
    job.batch(RUN, 0, {"a": 500}, 0)
    job.do("begin", OTHER, 7, BeginOptions(PinnedWatermark(100)), now=1)
    assert job.watermark(1) == 490


def test_the_clock_of_a_job_does_not_go_back(make: Make) -> None:
    """After a failover, the clock of the new server may be behind."""
    job = make()
    assert job.do("sweep", now=1000).now_ms == 1000
    assert job.do("sweep", now=400).now_ms == 1000


def test_a_valid_token_restores_a_lost_watermark(make: Make) -> None:
    """The store may lose the end of its log. A token of an older incarnation restores nothing."""
    job = make()
    incarnation = job.do("sweep", now=1).incarnation
    assert job.do("report", {"a": 50}, token=TokenClaim(incarnation - 1, 900), now=1).state.watermark == 40
    assert job.do("report", {"a": 50}, token=TokenClaim(incarnation, 700), now=1).state.watermark == 700


def test_staged_reports_take_effect_with_the_commit(make: Make) -> None:
    """A crash discards the rows of an open batch, so they must not have moved the watermark."""
    job = make()
    job.do("begin", RUN, 0, now=0)
    job.do("stage", RUN, 0, PartitionReport(0, {"a": 500}), now=0)
    assert job.do("sweep", now=0).coalesced_watermark is None
    job.do("commit", RUN, 0, None, now=0)
    assert job.watermark(0) == 490


def test_reports_of_one_partition_that_begin_with_the_same_substream_are_merged(make: Make) -> None:
    """A driver reports restored max event times and the rows of a batch, both as one partition."""
    job = make()
    job.do("begin", RUN, 0, now=0)
    job.do("stage", RUN, 0, PartitionReport(0, {"a": 500, "b": 300}), now=0)
    job.do("stage", RUN, 0, PartitionReport(0, {"a": 600}), now=0)
    job.do("commit", RUN, 0, None, now=0)
    assert job.watermark(0) == 290


def test_an_open_batch_holds_the_emitted_watermark(make: Make) -> None:
    """The emitted watermark stays at the pinned watermark until the rows of the batch are committed."""
    job = make(idle_timeout_ms=10)
    job.batch(RUN, 0, {"a": 100}, 0)
    job.do("begin", OTHER, 0, now=1)
    job.batch(RUN, 1, {"a": 300}, 2)
    answer = job.do("sweep", now=2)
    assert (answer.coalesced_watermark, answer.watermark) == (290, 90)


def test_windows_hold_the_written_watermark_until_their_query_has_written_them(make: Make) -> None:
    job = make()
    job.do("begin", RUN, 0, BeginOptions(tells_output=True), now=0)
    job.do("stage", RUN, 0, PartitionReport(0, {"a": 500}), now=0)
    committed = job.do("commit", RUN, 0, None, now=0).state
    assert (committed.watermark, committed.written_watermark, committed.written_held_by) == (490, None, RUN.query)
    written = job.do("heartbeat", RUN, 0, caught_up=[], tells_output=True, output_watermark=400, now=1).state
    assert (written.watermark, written.written_watermark, written.written_held_by) == (490, 400, RUN.query)
    written = job.do("heartbeat", RUN, 0, caught_up=[], tells_output=True, output_watermark=700, now=1).state
    assert (written.written_watermark, written.written_held_by) == (490, None)


def test_a_batch_that_a_limit_has_passed_holds_the_written_watermark(make: Make) -> None:
    job = make(max_batch_hold_ms=10)
    job.batch(RUN, 0, {"a": 500}, 0)
    job.do("begin", RUN, 1, now=0)
    job.batch(OTHER, 0, {"b": 900}, 0)
    job.do("evict", RUN.query, ["a"], now=5)
    passed = job.do("sweep", now=11)
    assert (passed.watermark, passed.written_watermark, passed.written_held_by) == (890, 490, RUN.query)
    assert job.do("commit", RUN, 1, None, now=12).state.written_watermark == 890


def test_an_expected_query_holds_the_written_watermark_until_it_begins(make: Make) -> None:
    job = make(expected_queries=(RUN.query,), query_timeout_ms=10)
    job.batch(OTHER, 0, {"b": 500}, 0)
    job.do("sweep", now=11)
    passed = job.do("heartbeat", OTHER, 12, now=12).state
    assert (passed.watermark, passed.written_watermark, passed.written_held_by) == (490, None, RUN.query)
    job.do("configure", JobConfig(LimitingLag(10)), {}, ConfigVersion(None, None), now=13)
    assert job.do("sweep", now=13).written_watermark == 490, "it is no longer expected"


def test_a_replayed_batch_keeps_its_pinned_watermark(make: Make) -> None:
    """Under a higher pinned watermark, rows that were on time before the crash would be late."""
    job = make()
    job.batch(RUN, 0, {"a": 100}, 0)
    pinned_watermark = job.do("begin", RUN, 1, now=1).pinned_watermark
    job.batch(OTHER, 0, {"a": 9000}, 2)
    job.batch(RUN, 1, {"a": 9000}, 3)
    again = job.do("begin", NEXT_RUN, 1, now=4)
    assert (pinned_watermark, again.pinned_watermark, again.replayed) == (90, 90, True)


def test_a_repeated_begin_shows_a_lost_commit(make: Make) -> None:
    """The answer to the first begin, which showed that batch 0 was still open, may have been lost."""
    job = make()
    job.do("begin", RUN, 0, now=0)
    job.do("begin", RUN, 1, now=1)
    repeated = job.do("begin", RUN, 1, now=2)
    assert (repeated.previous_batch_id, repeated.previous_open) == (0, True)
    job.do("commit", RUN, 1, None, now=3)
    repeated = job.do("begin", RUN, 1, now=4)
    assert (repeated.previous_batch_id, repeated.previous_open) == (1, False)


def test_a_known_pin_is_adopted_and_a_different_one_refused(make: Make) -> None:
    """The client keeps its copy when the coordinator loses its state."""
    job = make()
    assert job.do("begin", RUN, 7, BeginOptions(PinnedWatermark(123)), now=0).pinned_watermark == 123
    with pytest.raises(PinnedWatermarkConflict):
        job.do("begin", RUN, 7, BeginOptions(PinnedWatermark(124)), now=0)


def test_a_new_run_fences_the_older_one(make: Make) -> None:
    """Two drivers on one checkpoint must not both continue."""
    job = make()
    job.do("begin", RUN, 0, now=0)
    job.do("begin", NEXT_RUN, 0, now=1)
    for command, arguments in (("begin", (0,)), ("commit", (0, None)), ("heartbeat", (2,))):
        with pytest.raises(QueryFenced):
            job.do(command, RUN, *arguments, now=2)


def test_a_repeated_commit_counts_no_row_twice(make: Make) -> None:
    """A client repeats a commit whose answer was lost."""
    job = make()
    job.do("begin", RUN, 0, now=0)
    account = BatchAccounting(("a",), (replace(NO_ROWS, on_time=3, late=2),))
    assert [job.do("commit", RUN, 0, account, now=now).applied for now in (1, 2)] == [True, False]
    assert job.read("status", now=2).summary.counts == replace(NO_ROWS, on_time=3, late=2)


def test_the_substreams_of_a_silent_query_are_not_idle(make: Make) -> None:
    """A silent query may still have rows of its substreams, so they are blocked."""
    job = make(idle_timeout_ms=100)
    job.batch(RUN, 0, {"a": 500, "b": 50}, 0)
    assert job.watermark(1_000_000) == 40


def test_a_batch_whose_commit_was_lost_is_no_evidence_of_silence(make: Make) -> None:
    """The store that has lost the commit may also have lost reports of the batch."""
    job = make(idle_timeout_ms=100)
    job.batch(RUN, 0, {"a": 500, "b": 50}, 0)
    job.do("begin", RUN, 1, now=200)
    job.do("begin", RUN, 2, now=201)
    assert job.watermark(202) == 40


def test_the_substreams_of_an_open_batch_are_not_idle(make: Make) -> None:
    """The batch may contain their rows, so a heartbeat proves nothing unless it is about the batch before."""
    job = make(idle_timeout_ms=100)
    job.batch(RUN, 0, {"a": 500, "b": 50}, 0)
    job.do("begin", RUN, 1, now=10)
    assert not job.do("heartbeat", RUN, 500, now=500).applied
    assert not job.do("heartbeat", RUN, 500, after_batch=1, now=500).applied
    assert job.do("sweep", now=500).coalesced_watermark == 40
    assert job.do("heartbeat", RUN, 100, after_batch=0, now=500).applied
    assert job.do("sweep", now=500).coalesced_watermark == 490


def test_retention_passes_a_substream_after_its_whole_length(make: Make) -> None:
    """If the limit acted one of its sixteen slots earlier, rows that the operator allows would be late."""
    job = make(max_retention_ms=160)
    job.do("report", {"fast": 1000, "slow": 10}, now=0)
    assert (job.watermark(159), job.watermark(160)) == (0, 990)


def test_a_declared_substream_holds_the_watermark(make: Make) -> None:
    """A declared substream may have the oldest rows."""
    job = make()
    job.do("declare", "departures", ["late-starter"], now=0)
    job.batch(RUN, 0, {"a": 500}, 1)
    assert job.watermark(1) is None


def test_a_hold_keeps_the_watermark_at_its_value(make: Make) -> None:
    """An operator holds the watermark while rows are loaded again."""
    job = make()
    job.do("hold", "reload", 300, None, now=0)
    job.batch(RUN, 0, {"a": 500}, 1)
    assert job.watermark(1) == 300
