"""Merged reports: they act as one report of all their substreams, and each caller gets its own result."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.store import strategies
from tests.support.driver import Driver
from tests.support.machine import JobMachine
from tests.support.store import JobStore
from tidegate.domain.config import JobConfig, Override
from tidegate.domain.errors import DomainError, EventTimeMissing, JobComplete, TooManySubstreams
from tidegate.domain.job import TokenClaim
from tidegate.domain.policies import LimitingLag, LimitingLagAndDelay, LimitingLagAndLull, Reported
from tidegate.domain.results import Effect
from tidegate.store.jobs import Capacity
from tidegate.store.merging import MAX_EACH

CONFIG = JobConfig(LimitingLag(10))
serial = itertools.count()

Outcome = Effect | DomainError


class Clocked:
    """A store that merges reports, at a time that the test sets."""

    def __init__(
        self, driver: Driver, config: JobConfig = CONFIG, now_ms: int = 0, capacity: Capacity | None = None
    ) -> None:
        self.driver, self.now_ms = driver, now_ms
        self.store = JobStore(driver.store.redis, capacity=capacity, clock=lambda: self.now_ms)
        self.job = f"merged-{next(serial)}"
        self.state = driver(self.store.configure(self.job, config, {}, None)).state

    def reports(self, *reports: dict[str, Any]) -> list[Outcome]:
        """Send reports at the same time; return the result or the error of each."""

        async def send() -> list[Any]:
            calls = [self.store.report(self.job, **report) for report in reports]
            return await asyncio.gather(*calls, return_exceptions=True)

        outcomes = self.driver(send())
        for outcome in outcomes:
            if not isinstance(outcome, Effect | DomainError):
                raise outcome
        return outcomes

    def calls(self) -> int:
        """Return the number of functions that the server has run."""

        async def count() -> int:
            stats: Any = await self.store.redis.info("commandstats")
            return int(stats["cmdstat_fcall"]["calls"])

        return self.driver(count())


def of(outcomes: list[Outcome]) -> list[Effect]:
    """Return the outcomes, and check that none is an error."""
    results = [outcome for outcome in outcomes if isinstance(outcome, Effect)]
    assert len(results) == len(outcomes), outcomes
    return results


def test_reports_at_the_same_time_are_one_call(driver: Driver) -> None:
    clocked = Clocked(driver)
    before = clocked.calls()
    results = of(clocked.reports(*({"max_event_times": {f"s{n}": 100 + n}} for n in range(50))))
    assert clocked.calls() - before == 1
    assert {result.state.watermark for result in results} == {90}
    assert all(result.applied for result in results)


def test_a_report_of_many_substreams_is_a_call_of_its_own(driver: Driver) -> None:
    """Small reports neither wait for the large report nor fail with it."""
    clocked = Clocked(driver, capacity=Capacity(substreams=10))
    large = {f"large{n}": 5 for n in range(MAX_EACH + 1)}
    first, refused, last = clocked.reports(
        {"max_event_times": {"a": 1}}, {"max_event_times": large}, {"max_event_times": {"b": 2}}
    )
    assert isinstance(refused, TooManySubstreams)
    assert [result.applied for result in of([first, last])] == [True, True]


def test_a_refused_report_does_not_fail_the_others(driver: Driver) -> None:
    """Within the limit of two substreams, the reports that come first are accepted."""
    clocked = Clocked(driver, capacity=Capacity(substreams=2))
    *accepted, refused, missing = clocked.reports(
        {"max_event_times": {"a": 100}},
        {"max_event_times": {"b": 200}},
        {"max_event_times": {"c": 300}},
        {"max_event_times": {}, "watermarks": {"a": 7}},
    )
    assert isinstance(refused, TooManySubstreams) and isinstance(missing, EventTimeMissing)
    assert [result.applied for result in of(accepted)] == [True, True]
    status = driver(clocked.store.reads.status(clocked.job))
    assert status.state.watermark == 90 and status.summary.active == 2


def test_one_report_that_is_always_refused_leaves_the_others_merged(driver: Driver) -> None:
    """A client over the limit of substreams must not cause a separate call for each report of other clients."""
    clocked = Clocked(driver, capacity=Capacity(substreams=64))
    of(clocked.reports(*({"max_event_times": {f"s{n}": 100}} for n in range(64))))
    before = clocked.calls()
    *accepted, refused = clocked.reports(
        *({"max_event_times": {f"s{n}": 200}} for n in range(63)), {"max_event_times": {"another": 200}}
    )
    assert isinstance(refused, TooManySubstreams)
    assert all(result.applied for result in of(accepted))
    assert clocked.calls() - before == 13


def test_a_refusal_that_applies_to_all_is_one_call(driver: Driver) -> None:
    clocked = Clocked(driver)
    driver(clocked.store.actions.complete(clocked.job))
    before = clocked.calls()
    refused = clocked.reports(*({"max_event_times": {f"s{n}": 100}} for n in range(50)))
    assert {type(refusal) for refusal in refused} == {JobComplete}
    assert clocked.calls() - before == 1


def test_a_lowest_event_time_without_an_event_time_holds_nothing(driver: Driver) -> None:
    """A report with a watermark, merged or not, must not cap the watermarks that follow the clock."""
    config = JobConfig(LimitingLagAndLull(60, 0), overrides=(Override("r", Reported()),))
    for sends in ([2], [1, 1]):
        clocked = Clocked(driver, config, 1000)
        of(clocked.reports({"max_event_times": {"b": 1000}, "watermarks": {"r": 2000}}))
        clocked.now_ms = 1200
        waiting = iter(
            [
                {"max_event_times": {}, "watermarks": {"r": 2100}, "min_event_times": {"r": 900}},
                {"max_event_times": {"b": 1500}},
            ]
        )
        for count in sends:
            results = of(clocked.reports(*itertools.islice(waiting, count)))
        assert results[-1].state.coalesced_watermark == 1440


def test_a_substream_in_two_reports_is_in_two_calls(driver: Driver) -> None:
    """An event time too far in the future does not discard the event time of another client."""
    clocked = Clocked(driver, JobConfig(LimitingLag(10), max_future_skew_ms=1000))
    before = clocked.calls()
    future, accepted = of(clocked.reports({"max_event_times": {"a": 5000}}, {"max_event_times": {"a": 500}}))
    assert clocked.calls() - before == 2
    assert (future.applied, accepted.applied) == (False, True)
    assert accepted.state.watermark == 490


def test_each_result_says_whether_its_own_report_had_an_effect(driver: Driver) -> None:
    clocked = Clocked(driver)
    of(clocked.reports({"max_event_times": {"a": 100, "b": 100}}))
    driver(clocked.store.actions.done(clocked.job, "", ["a"]))
    done, both, active = of(
        clocked.reports(
            {"max_event_times": {"a": 200}}, {"max_event_times": {"b": 200, "c": 200}}, {"max_event_times": {"d": 200}}
        )
    )
    assert (done.applied, both.applied, active.applied) == (False, True, True)


def test_a_token_of_one_report_restores_the_watermark_for_all(driver: Driver) -> None:
    """All callers get the watermark after the merged call."""
    clocked = Clocked(driver)
    incarnation = clocked.state.incarnation
    results = of(
        clocked.reports(
            {"max_event_times": {"a": 100}, "token": TokenClaim(incarnation, 40)},
            {"max_event_times": {"b": 100}, "token": TokenClaim(incarnation, 400)},
            {"max_event_times": {"c": 100}, "token": TokenClaim(incarnation - 1, 900)},
        )
    )
    assert {result.state.watermark for result in results} == {400}
    assert driver(clocked.store.reads.status(clocked.job)).summary.tokens_ignored == 1


def test_a_cancelled_caller_leaves_the_others_their_result(driver: Driver) -> None:
    clocked = Clocked(driver)

    async def send() -> list[Any]:
        calls = [clocked.store.report(clocked.job, {name: 100}) for name in "abc"]
        tasks = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, cancelled, last = driver(send())
    assert isinstance(cancelled, asyncio.CancelledError)
    assert (first.state.watermark, last.state.watermark) == (90, 90)


reports = st.fixed_dictionaries(
    {
        "max_event_times": st.dictionaries(strategies.names, strategies.ordinary_times, max_size=2),
        "min_event_times": st.dictionaries(strategies.names, strategies.ordinary_times, max_size=1),
        "watermarks": strategies.marks,
    }
)
rounds = st.lists(st.tuples(st.integers(0, 60), st.lists(reports, min_size=1, max_size=5)), min_size=1, max_size=5)


def substreams_of(report: dict[str, Any]) -> set[str]:
    return {*report["max_event_times"], *report["watermarks"]}


def grouped(sent: list[dict[str, Any]]) -> list[list[int]]:
    """Return the indexes of the reports in each group: a report of a substream in the last group starts a new one."""
    groups: list[list[int]] = []
    members: set[str] = set()
    for place, report in enumerate(sent):
        if not groups or not members.isdisjoint(substreams_of(report)):
            groups.append([])
            members = set()
        groups[-1].append(place)
        members |= substreams_of(report)
    return groups


def union(sent: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the union of reports, without lowest event times that are alone in their report."""
    whole: dict[str, Any] = {"max_event_times": {}, "min_event_times": {}, "watermarks": {}}
    for report in sent:
        for column, values in report.items():
            whole[column] |= {name: value for name, value in values.items() if name in substreams_of(report)}
    return whole


def expected(machine: JobMachine, sent: list[dict[str, Any]], now_ms: int) -> list[Any]:
    """Return the domain's answers to the union of each group. If the domain refuses a union, apply its halves instead.

    In each round trip, each group has one call.
    """
    answers: list[Any] = [None] * len(sent)
    waiting = [[group] for group in grouped(sent)]
    while any(waiting):
        for places, calls in [(calls.pop(0), calls) for calls in waiting if calls]:
            try:
                result = machine.report(now_ms=now_ms, **union([sent[place] for place in places]))
            except DomainError as error:
                middle = len(places) // 2
                calls[:0] = [places[:middle], places[middle:]] if middle else []
                answers[places[0]] = str(error)
            else:
                for place in places:
                    answers[place] = result.state
    return answers


def _event_times(**distances: int) -> dict[str, Any]:
    """Return a report of event times by their distance from the start."""
    times = {name: strategies.START + distance for name, distance in distances.items()}
    return {"max_event_times": times, "min_event_times": {}, "watermarks": {}}


def test_merged_reports_act_as_the_union_in_the_domain(make_driver: Callable[[], Driver]) -> None:
    """Random reports at random times under random configurations: states, errors and substreams are equal."""
    driver = make_driver()

    @settings(max_examples=150, deadline=None)
    @given(strategies.configs, rounds)
    @example(JobConfig(LimitingLagAndDelay(0, 1), max_skew_ms=1), [(0, [_event_times(c=2), _event_times(a=0, b=2)])])
    def check(config: JobConfig, sent: list[tuple[int, list[dict[str, Any]]]]) -> None:
        clocked = Clocked(driver, config, strategies.START)
        machine = JobMachine(
            config,
            strategies.START,
            incarnation=clocked.state.incarnation,
            state_epoch=clocked.state.state_epoch,
        )
        for wait_ms, at_once in sent:
            clocked.now_ms += wait_ms
            answers = [
                outcome.state if isinstance(outcome, Effect) else str(outcome) for outcome in clocked.reports(*at_once)
            ]
            assert answers == expected(machine, at_once, clocked.now_ms)
        rows = driver(clocked.store.reads.substreams(clocked.job)).rows
        assert {(row.substream, row.state, row.watermark, row.max_event_time) for row in rows} == {
            (row.substream, row.state, row.watermark, row.max_event_time)
            for row in machine.substream_table(clocked.now_ms)
        }

    check()
    driver.close()


@pytest.mark.parametrize("policy", [Reported(), LimitingLag(0)])
def test_a_report_without_substreams_has_no_effect(driver: Driver, policy: Any) -> None:
    clocked = Clocked(driver, JobConfig(policy))
    [result] = of(clocked.reports({"max_event_times": {}}))
    assert not result.applied
