"""The limits of a job, and outages: one rule per test."""

import pytest

from tests.domain.batches import OTHER, RUN, batch
from tests.support.machine import JobMachine
from tidegate.domain.batches import PartitionReport
from tidegate.domain.config import JobConfig, MinStepThrottle, Override
from tidegate.domain.errors import EventTimeMissing, HoldActive, InvalidConfig
from tidegate.domain.history import NAMES_KEPT, RECORDS_KEPT, RECORDS_KEPT_MS
from tidegate.domain.policies import (
    LimitingLag,
    LimitingLagAndDelay,
    LimitingLagAndLull,
    LimitingTimestampAndWallClockLag,
    Reported,
)
from tidegate.domain.values import matches


def kinds(job: JobMachine) -> list[str]:
    return [record.kind for record in job.history]


def test_retention_passes_a_slow_substream_and_says_so() -> None:
    """The history names the limit that made the rows of the slow substream late."""
    job = JobMachine(JobConfig(LimitingLag(0), max_retention_ms=160), 0)
    job.report({"fast": 1000, "slow": 10}, 0)
    assert job.sweep(159).watermark == 10
    assert job.sweep(160).watermark == 1000
    last = list(job.history)[-1]
    assert last.details["limits"] == [{"limit": "max_retention_ms", "count": 1, "substreams": ["/slow"]}]
    assert job.summary().limits == {"max_retention_ms": 1}


def test_a_dead_query_holds_the_watermark_until_its_timeout() -> None:
    """`query_timeout_ms` lets the watermark pass the substreams of a query that never returns."""
    job = JobMachine(JobConfig(LimitingLag(0), query_timeout_ms=100), 0)
    batch(job, RUN, 0, {"a": 10}, 0)
    batch(job, OTHER, 0, {"b": 500}, 50)
    assert job.sweep(99).coalesced_watermark == 10
    assert job.sweep(100).coalesced_watermark == 500
    assert [row.state for row in job.substream_table(100)] == ["active", "idle"]
    batch(job, RUN, 1, {"a": 600}, 120)
    assert [row.state for row in job.substream_table(120)] == ["active", "active"]


def test_the_open_batch_of_a_dead_query_still_holds_the_emitted_watermark() -> None:
    """The timeout is no evidence of whether the rows of the batch were written."""
    job = JobMachine(JobConfig(LimitingLag(0), query_timeout_ms=100), 0)
    batch(job, RUN, 0, {"a": 10}, 0)
    job.begin(RUN, 1, 0)
    batch(job, OTHER, 0, {"b": 500}, 50)
    answer = job.sweep(100)
    assert (answer.coalesced_watermark, answer.watermark) == (500, 10)


def test_a_batch_that_is_open_too_long_is_released_and_may_still_commit() -> None:
    """`max_batch_hold_ms` lets the watermark pass the batch, and its later commit still counts."""
    job = JobMachine(JobConfig(LimitingLag(0), max_batch_hold_ms=100, query_timeout_ms=50), 0)
    batch(job, RUN, 0, {"a": 10}, 0)
    job.begin(RUN, 1, 0)
    batch(job, OTHER, 0, {"b": 500}, 60)
    assert job.sweep(99).watermark == 10
    assert job.sweep(100).watermark == 500
    assert "batch_released" in kinds(job)
    assert job.query_table()[1].batch_released
    job.stage(RUN, 1, PartitionReport(0, {"a": 700}), 101)
    assert job.commit(RUN, 1, None, 102).applied
    assert job.substream_table(102)[1].max_event_time == 700


def test_outages_do_not_count_towards_the_idle_timeout() -> None:
    """If outages counted, all substreams would be idle after an outage, and their next rows late."""
    job = JobMachine(JobConfig(LimitingLag(0), idle_timeout_ms=50), 0, unattended_after_ms=100)
    job.report({"a": 10, "b": 20}, 0)
    assert job.sweep(3_600_000).watermark == 10
    assert "unattended" in kinds(job)
    assert job.sweep(3_600_049).watermark == 10
    job.report({"b": 30}, 3_600_049)
    assert job.sweep(3_600_050).watermark == 30


def test_silence_begins_to_count_when_a_timeout_comes_into_force() -> None:
    """An outage before that moment may not have been recorded."""
    job = JobMachine(JobConfig(LimitingLag(0)), 0)
    job.report({"a": 10, "b": 500}, 0)
    assert job.configure(JobConfig(LimitingLag(0), idle_timeout_ms=50), 3_600_000).watermark == 10
    job.report({"b": 600}, 3_600_020)
    assert job.sweep(3_600_050).watermark == 600


def test_outages_do_not_count_towards_a_lull() -> None:
    """If outages counted, the watermark would advance during an outage and make its rows late."""
    job = JobMachine(JobConfig(LimitingLagAndLull(0, 50)), 0, unattended_after_ms=100)
    job.report({"a": 10}, 0)
    assert job.sweep(3_600_000).watermark == 10
    assert job.sweep(3_600_060).watermark == 20


def test_a_broken_clock_does_not_make_the_others_late() -> None:
    """Microseconds sent as milliseconds are dates near the year 50 000."""
    job = JobMachine(JobConfig(LimitingLag(0), max_future_skew_ms=100), 1000)
    job.report({"good": 900, "broken": 1_000_000}, 1000)
    assert job.watermark_state().watermark == 900
    assert job.summary().future_rows == 1
    future = next(record for record in job.history if record.kind == "future")
    assert future.details["substreams"] == ["/broken"]
    job.report({"edge": 1100}, 1000)
    assert job.substream_table(1000)[0].substream == "edge"


def test_a_reported_watermark_in_the_future_is_ignored() -> None:
    job = JobMachine(JobConfig(Reported(), max_future_skew_ms=100), 1000)
    job.report({}, 1000, watermarks={"a": 900})
    assert not job.report({}, 1000, watermarks={"a": 5000}).applied
    assert job.watermark_state().watermark == 900


def test_a_watermark_alone_is_refused_if_its_policy_needs_event_times() -> None:
    """The whole report is refused."""
    job = JobMachine(JobConfig(LimitingLag(0), overrides=(Override("r*", Reported()),)), 0)
    with pytest.raises(EventTimeMissing, match="'x'"):
        job.report({}, 0, watermarks={"x": 5, "r1": 5})
    assert job.substreams == {}
    assert job.report({}, 0, watermarks={"r1": 5}).state.watermark == 5


def test_overrides_give_some_substreams_a_policy_of_their_own() -> None:
    """The devices of one class always report an hour late, and the other devices must not wait for them."""
    config = JobConfig(LimitingLag(5), overrides=(Override("slow-*", LimitingLag(60)), Override("*", LimitingLag(7))))
    job = JobMachine(config, 0)
    job.report({"slow-1": 100, "quick": 100}, 0)
    assert {row.substream: row.watermark for row in job.substream_table(0)} == {"slow-1": 40, "quick": 93}


@pytest.mark.parametrize(
    ("pattern", "fits", "not_"),
    [
        ("a", ["a"], ["", "aa", "b"]),
        ("*", ["", "a", "a/b"], []),
        ("a*", ["a", "ab"], ["ba", ""]),
        ("*a", ["a", "ba", "aa"], ["ab", ""]),
        ("a*a", ["aa", "aba", "aaa"], ["a", "ab"]),
        ("a*b*c", ["abc", "axbxc", "abcbc"], ["acb", "ab", "abcd"]),
        ("**", ["", "x"], []),
        ("a.c", ["a.c"], ["abc"]),
        ("ab*ba", ["abba", "abxba"], ["aba"]),
    ],
)
def test_the_star_is_the_only_wildcard_of_a_pattern(pattern: str, fits: list[str], not_: list[str]) -> None:
    """A dot in a pattern matches only a dot."""
    assert [name for name in fits if not matches(pattern, name)] == []
    assert [name for name in not_ if matches(pattern, name)] == []


def test_a_change_of_policy_takes_effect_at_once_and_lowers_no_watermark() -> None:
    job = JobMachine(JobConfig(LimitingLag(0)), 0)
    job.report({"a": 100}, 0)
    assert job.configure(JobConfig(LimitingLag(50)), 1).watermark == 100
    assert job.report({"a": 140}, 2).state.watermark == 100
    assert job.report({"a": 160}, 3).state.watermark == 110
    assert job.configure(JobConfig(LimitingLag(10)), 4).watermark == 150
    assert job.configure(JobConfig(LimitingTimestampAndWallClockLag(100, 0)), 500).watermark == 500


def test_a_history_survives_a_change_of_lag() -> None:
    """A change that discarded the history would delay the watermark again."""
    job = JobMachine(JobConfig(LimitingLagAndDelay(50, 160)), 0)
    job.report({"a": 100}, 0)
    job.configure(JobConfig(LimitingLagAndDelay(40, 160)), 80)
    assert job.sweep(159).watermark == 60
    assert job.sweep(160).watermark == 100


def test_a_new_idle_timeout_applies_to_substreams_that_are_silent_already() -> None:
    job = JobMachine(JobConfig(LimitingLag(0), idle_timeout_ms=1000), 0)
    job.report({"a": 10}, 0)
    job.report({"b": 500}, 100)
    assert job.configure(JobConfig(LimitingLag(0), idle_timeout_ms=100), 100).watermark == 500
    job.configure(JobConfig(LimitingLag(0), idle_timeout_ms=1000), 101)
    assert [row.state for row in job.substream_table(101)] == ["active", "active"]


def test_a_minimum_step_is_measured_from_the_last_emission() -> None:
    """A step of exactly the minimum is emitted."""
    job = JobMachine(JobConfig(LimitingLag(0), MinStepThrottle(10)), 0)
    assert [job.report({"a": time}, 0).state.watermark for time in (5, 14, 15, 24, 25)] == [5, 5, 15, 15, 25]


@pytest.mark.parametrize(
    "make",
    [
        lambda: LimitingLagAndDelay(0, 0),
        lambda: LimitingLagAndLull(-1, 5),
        lambda: LimitingTimestampAndWallClockLag(0, -1),
        lambda: MinStepThrottle(0),
        lambda: JobConfig(LimitingLag(0), max_retention_ms=0),
        lambda: JobConfig(LimitingLag(0), max_future_skew_ms=-1),
        lambda: JobConfig(LimitingLag(0), expected_queries=("a", "a")),
    ],
)
def test_invalid_configurations_are_refused(make: object) -> None:
    with pytest.raises(InvalidConfig):
        make()  # type: ignore[operator]


def test_the_history_is_bounded_by_count_and_age() -> None:
    """The history of a job that runs for years must not fill the memory."""
    job = JobMachine(JobConfig(LimitingLag(0)), 0)
    for number in range(RECORDS_KEPT + 10):
        job.report({"a": number}, 1)
    assert len(job.history) == RECORDS_KEPT
    job.report({"a": RECORDS_KEPT + 10}, RECORDS_KEPT_MS + 2)
    assert kinds(job) == ["emission"]


def test_a_record_names_the_first_of_many_substreams() -> None:
    """Many substreams that become idle at once get one record with a count."""
    job = JobMachine(JobConfig(LimitingLag(0), idle_timeout_ms=10), 0)
    job.report({f"s{number:03}": 5 for number in range(50)}, 0)
    job.sweep(10)
    idle = next(record for record in job.history if record.kind == "idle")
    assert (idle.details["count"], idle.details["substreams"][0], len(idle.details["substreams"])) == (
        50,
        "/s000",
        NAMES_KEPT,
    )


def test_outages_do_not_count_towards_a_hold() -> None:
    """A client that extends its hold in time cannot do so during an outage."""
    job = JobMachine(JobConfig(LimitingLag(0), idle_timeout_ms=50), 0, unattended_after_ms=100)
    job.hold("h", 10, 50, 0)
    job.report({"a": 20}, 0)
    assert job.sweep(3_600_000).watermark == 10
    assert job.summary().holds[0].expires_ms == 3_600_050
    with pytest.raises(HoldActive):
        job.complete(3_600_049)
    assert job.sweep(3_600_050).watermark == 20


@pytest.mark.parametrize(
    ("config", "values"),
    [
        (JobConfig(Reported(), idle_timeout_ms=50), {"watermarks": {"a": 10}}),
        (JobConfig(Reported(), idle_timeout_ms=50), {"watermarks": {"a": 9}}),
        (JobConfig(LimitingLag(0), idle_timeout_ms=50), {"max_event_times": {"a": 10}}),
        (JobConfig(LimitingLag(0), idle_timeout_ms=50), {"max_event_times": {"a": 9}}),
        (JobConfig(LimitingLag(0), idle_timeout_ms=50, max_future_skew_ms=5000), {"max_event_times": {"a": 10_000}}),
    ],
)
def test_a_report_that_changes_nothing_is_a_sign_of_life(config: JobConfig, values: dict[str, dict[str, int]]) -> None:
    """A source that reports the same watermark again and again is not silent."""
    job = JobMachine(config, 0)
    first = "watermarks" if isinstance(config.policy, Reported) else "max_event_times"
    report(job, {first: {"a": 10, "b": 500}}, 0)
    for now_ms in range(40, 200, 40):
        report(job, values, now_ms)
        assert job.sweep(now_ms).watermark == 10
    assert job.sweep(209).watermark == 10
    assert job.sweep(210).watermark == 500
    report(job, values, 220)
    assert [row.state for row in job.substream_table(220)] == ["active", "idle"]


def report(job: JobMachine, values: dict[str, dict[str, int]], now_ms: int) -> None:
    job.report(values.get("max_event_times", {}), now_ms, watermarks=values.get("watermarks", {}))


def test_rows_without_event_times_in_a_batch_are_a_sign_of_life() -> None:
    """A partition whose rows all lie too far in the future, or have no event time, is not silent."""
    job = JobMachine(JobConfig(LimitingLag(0), idle_timeout_ms=50), 0)
    batch(job, RUN, 0, {"a": 10, "b": 500, "c": 600}, 0)
    job.begin(RUN, 1, 60)
    job.stage(RUN, 1, PartitionReport(0, {}, {"a": 1}), 60)
    job.stage(RUN, 1, PartitionReport(1, {}, {}, {}, {"b": 1}), 60)
    job.commit(RUN, 1, None, 60)
    assert [row.state for row in job.substream_table(60)] == ["active", "active", "idle"]


def test_a_substream_that_an_operator_made_idle_waits_for_an_event() -> None:
    """The operator knows more than a source that repeats itself."""
    job = JobMachine(JobConfig(Reported()), 0)
    job.report({}, 0, watermarks={"a": 10, "b": 500})
    assert job.idle("", ["a"], 1).state.watermark == 500
    assert not job.report({}, 2, watermarks={"a": 10}).applied
    assert job.substream_table(2)[0].state == "idle"
    job.report({}, 3, watermarks={"a": 11})
    assert job.substream_table(3)[0].state == "active"
