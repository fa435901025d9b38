"""The scripts do what the domain says: both get the same commands, and every reply and table must be the same.

The domain looks at everything in each step, as the rules are written; the scripts touch only what changes. Beside that,
what must always hold is asserted from the history of the commands, not from either side's word.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.store.conftest import Driver
from tidegate.domain.config import JobConfig
from tidegate.domain.errors import DomainError
from tidegate.domain.frame import Frame
from tidegate.domain.job import JobMachine
from tidegate.domain.numbers import above
from tidegate.domain.policy import LimitingLag
from tidegate.domain.query import KnownPin, Run
from tidegate.domain.records import Accounting, Answer, Counts
from tidegate.domain.throttle import FrameThrottle, NoThrottle
from tidegate.store.redis import TokenClaim

names = st.sampled_from(["a", "b", "c", "d/é", "e"])
times = st.one_of(st.integers(-50, 400), st.sampled_from([2**53 - 1, -(2**53) + 1, -(2**53) + 5]))
ordinary_times = st.integers(-50, 400)
tops = st.dictionaries(names, ordinary_times, max_size=4)
batches = st.integers(0, 4)
runs = st.builds(Run, st.sampled_from(["p", "q"]), st.sampled_from(["c1", "c1", "c1", "c2"]), st.sampled_from("rst"))
pins = st.one_of(st.none(), st.none(), st.builds(KnownPin, st.one_of(st.none(), ordinary_times)))
configs = st.builds(
    JobConfig,
    st.builds(LimitingLag, st.sampled_from([0, 5, 60])),
    st.one_of(st.just(NoThrottle()), st.builds(FrameThrottle, st.sampled_from([Frame(20, 10, 3), Frame(50, 50)]))),
    st.sampled_from([None, 1, 7, 40]),
)
waits = st.sampled_from([0, 0, 0, 3, 20])
counts = st.builds(Counts, *[st.integers(0, 3)] * 5)
tokens = st.one_of(st.none(), st.none(), st.builds(TokenClaim, st.integers(0, 2), st.one_of(st.none(), ordinary_times)))
serial = iter(range(10**9))


def outcome(command: Callable[[], Any]) -> tuple[Any, DomainError | None]:
    """What a command gave, or why it was refused."""
    try:
        return command(), None
    except DomainError as refused:
        return None, refused


class Twins(RuleBasedStateMachine):
    """``self.both`` gives a command to both sides and compares; ``make_driver`` is set by the test."""

    make_driver: Callable[[], Driver]

    @initialize(config=configs)
    def create(self, config: JobConfig) -> None:
        self.driver = self.make_driver()
        self.job = f"twin-{next(serial)}"
        self.now = 1000
        self.document: dict[str, Any] = {}
        stored = self.driver(self.driver.store.put(self.job, config, self.document, None, self.now))
        self.machine = JobMachine(config, self.now, state_epoch=stored.answer.state_epoch)
        self.told: list[Answer] = [stored.answer]
        self.pins: dict[tuple[str, str, int], int | None] = {}
        self.open: dict[str, int | None] = {}
        assert stored.answer == self.machine.answer()

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.close()

    def both(self, domain: Callable[[], Any], store: Any) -> Any:
        """The reply that both sides gave; None where both refused, for the same reason."""
        expected, refused = outcome(domain)
        got, also_refused = outcome(lambda: self.driver(store))
        assert (type(also_refused), str(also_refused)) == (type(refused), str(refused))
        assert got == expected
        if refused is not None:
            return None
        self.told.append(getattr(got, "answer", got))
        return got

    def heal(self, token: TokenClaim | None) -> None:
        if token is not None:
            self.machine.heal(token.incarnation, token.watermark)

    @rule(step=st.one_of(st.integers(0, 30), st.integers(-20, 0)))
    def time_passes(self, step: int) -> None:
        """Or stands still, or steps back."""
        self.now += step

    @rule(run=runs, batch=batches, pin=pins, waited=waits)
    def begin(self, run: Run, batch: int, pin: KnownPin | None, waited: int) -> None:
        begun = self.both(
            lambda: self.machine.begin(run, batch, self.now, pin, waited_ms=waited),
            self.driver.store.begin(self.job, run, batch, pin, waited_ms=waited, now_ms=self.now),
        )
        if begun is not None:
            key = run.query, run.query_id, batch
            if begun.replayed:
                assert begun.pin == self.pins[key], "a replay must get the pin its batch had"
            else:
                self.pins[key] = begun.pin
                self.open[run.query] = begun.pin

    @rule(run=runs, batch=batches, partition=st.integers(0, 1), tops=tops)
    def report_staged(self, run: Run, batch: int, partition: int, tops: dict[str, int]) -> None:
        rows = dict.fromkeys(tops, partition + 1)
        self.both(
            lambda: self.machine.report_staged(run, batch, partition, tops, rows, self.now),
            self.driver.store.report_staged(self.job, run, batch, partition, tops, rows, now_ms=self.now),
        )

    @rule(run=runs, batch=batches, rows=st.dictionaries(names, counts, max_size=3), waited=waits)
    def commit(self, run: Run, batch: int, rows: dict[str, Counts], waited: int) -> None:
        account = Accounting("row", tuple(rows), tuple(rows.values())) if rows else None
        effect = self.both(
            lambda: self.machine.commit(run, batch, account, self.now, waited),
            self.driver.store.commit(self.job, run, batch, account, waited, now_ms=self.now),
        )
        if effect is not None and effect.applied:
            self.open.pop(run.query)

    @rule(tops=st.dictionaries(names, times, min_size=1, max_size=4))
    def report(self, tops: dict[str, int]) -> None:
        self.both(
            lambda: self.machine.report(tops, self.now), self.driver.store.report(self.job, tops, now_ms=self.now)
        )

    @rule(run=runs, age=st.integers(-5, 20), waited=waits)
    def heartbeat(self, run: Run, age: int, waited: int) -> None:
        seen = self.now - age
        self.both(
            lambda: self.machine.heartbeat(run, seen, self.now, waited),
            self.driver.store.heartbeat(self.job, run, seen, waited, now_ms=self.now),
        )

    @rule(tops=st.dictionaries(names, ordinary_times, min_size=1, max_size=2), token=tokens)
    def report_with_token(self, tops: dict[str, int], token: TokenClaim | None) -> None:
        def domain() -> Any:
            if not self.machine.complete:
                self.machine.now_ms = max(self.machine.now_ms, self.now)
                self.heal(token)
            return self.machine.report(tops, self.now)

        self.both(domain, self.driver.store.report(self.job, tops, token, now_ms=self.now))

    @rule(query=st.sampled_from(["", "p", "z"]), names=st.lists(names, unique=True, min_size=1))
    def declare(self, query: str, names: list[str]) -> None:
        self.both(
            lambda: self.machine.declare(query, names, self.now),
            self.driver.store.declare(self.job, query, names, now_ms=self.now),
        )

    @rule(query=st.sampled_from(["", "p"]), names=st.lists(names, unique=True, min_size=1, max_size=2))
    def done(self, query: str, names: list[str]) -> None:
        self.both(
            lambda: self.machine.done(query, names, self.now),
            self.driver.store.done(self.job, query, names, now_ms=self.now),
        )

    @rule(config=configs)
    def change(self, config: JobConfig) -> None:
        revision = self.driver(self.driver.store.status(self.job)).revision
        stored = self.driver(self.driver.store.put(self.job, config, self.document, revision, self.now))
        assert stored.answer == self.machine.change(config, self.now)
        self.told.append(stored.answer)

    @rule()
    def sweep(self) -> None:
        self.both(lambda: self.machine.sweep(self.now), self.driver.store.sweep(self.job, now_ms=self.now))

    @rule(really=st.integers(0, 5))
    def complete(self, really: int) -> None:
        if really == 0:
            self.both(lambda: self.machine.finish(self.now), self.driver.store.complete(self.job, now_ms=self.now))

    @invariant()
    def tables_are_the_same(self) -> None:
        if not hasattr(self, "machine"):
            return
        _, substreams = self.driver(self.driver.store.substreams(self.job, self.now))
        assert substreams == self.machine.substream_table(self.now)
        _, queries = self.driver(self.driver.store.queries(self.job, self.now))
        assert queries == self.machine.query_table()
        assert self.driver(self.driver.store.status(self.job)).tokens_ignored == self.machine.tokens_ignored

    @invariant()
    def nothing_goes_back_and_no_open_batch_is_passed(self) -> None:
        if not hasattr(self, "told"):
            return
        for before, after in zip(self.told[-2:], self.told[-1:], strict=False):
            assert not above(before.watermark, after.watermark)
            assert not above(before.coalesced, after.coalesced)
            assert not above(after.watermark, after.coalesced)
            assert after.now_ms >= before.now_ms


def test_scripts_and_domain_agree_on_every_reply(make_driver: Callable[[], Driver]) -> None:
    """A difference between the two is a rule that one of them does not keep."""
    Twins.make_driver = staticmethod(make_driver)
    run_state_machine_as_test(
        Twins,
        settings=settings(
            max_examples=int(os.environ.get("TWIN_EXAMPLES", "200")),
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("offset", [0, 7, 3_599_999])
def test_frames_are_exact_at_the_ends_of_the_range(driver: Driver, job: str, offset: int) -> None:
    """Doubles are exact only where every step of the arithmetic is; Lua's own modulus is not."""
    frame = Frame(3_600_000, 3_600_000, offset)
    config = JobConfig(LimitingLag(0), FrameThrottle(frame))
    for time in (2**53 - 1, 2**53 - 2, 2**53 - 3_600_001, -(2**53) + 1, -(2**53) + 3_600_000, -1, 0, 1, 3_599_999):
        name = f"{job}-{time % 10**9}-{offset}"
        driver(driver.store.put(name, config, {}, None, 0))
        assert driver(driver.store.report(name, {"a": time}, now_ms=0)).answer.watermark == frame.floor(time)
        assert driver(driver.store.complete(name, now_ms=0)).answer.watermark == frame.higher(time)


def test_a_counted_substream_name_may_hold_any_character(driver: Driver, job: str) -> None:
    """Names come from data: quotes, slashes, spaces, right-to-left marks, emoji."""
    odd = ['"', "a/b", " ", "x y/z", "‏שלום", "😀", "<b>", "a:b", "{a}"]
    run = Run("q", "c", "r")
    driver(driver.store.put(job, JobConfig(LimitingLag(0)), {}, None))
    driver(driver.store.begin(job, run, 0))
    driver(driver.store.report_staged(job, run, 0, 3, dict.fromkeys(odd, 5), dict.fromkeys(odd, 2)))
    account = Accounting("row", tuple(odd), (Counts(on_time=1, late=1),) * len(odd))
    driver(driver.store.commit(job, run, 0, account))
    _, rows = driver(driver.store.substreams(job))
    assert {row.substream: (row.reported, row.counts) for row in rows} == dict.fromkeys(
        odd, (2, Counts(on_time=1, late=1))
    )


def test_a_report_of_many_substreams_is_taken_whole(driver: Driver, job: str) -> None:
    """Variadic commands break near 8000 arguments; a batch may well report more."""
    many = {f"s{number}": number for number in range(25_000)}
    run = Run("q", "c", "r")
    driver(driver.store.put(job, JobConfig(LimitingLag(0), idle_timeout_ms=10), {}, None, 0))
    driver(driver.store.begin(job, run, 0, now_ms=0))
    driver(driver.store.report_staged(job, run, 0, 0, many, many, now_ms=0))
    assert driver(driver.store.commit(job, run, 0, None, now_ms=0)).answer.watermark == 0
    assert driver(driver.store.status(job, 0)).active == len(many)
    # All fall idle at once, and come back at once.
    assert driver(driver.store.heartbeat(job, run, 10, now_ms=10)).answer.watermark == 24_999
    driver(driver.store.begin(job, run, 1, now_ms=11))
    driver(driver.store.report_staged(job, run, 1, 0, dict.fromkeys(many, 30000), now_ms=11))
    assert driver(driver.store.commit(job, run, 1, None, now_ms=11)).answer.watermark == 30_000


def test_deleting_leaves_nothing_but_a_tombstone(driver: Driver, job: str) -> None:
    """A job that comes back must not find the watermarks of the one before."""
    run = Run("q", "c", "r")
    config = JobConfig(LimitingLag(0))
    driver(driver.store.put(job, config, {}, None))
    driver(driver.store.declare(job, "only-declared", ["x"]))
    driver(driver.store.begin(job, run, 0))
    driver(driver.store.report_staged(job, run, 0, 0, {"a": 1}, {"a": 1}))
    driver(driver.store.delete(job))

    async def keys() -> list[str]:
        return [str(key) for key in await driver.store.redis.keys("*") if job in str(key)]

    assert driver(keys()) == [f"tidegate:{{{job}}}"]
    again = driver(driver.store.put(job, config, {}, None))
    assert (again.answer.incarnation, again.answer.watermark) == (2, None)
    assert replace(again.answer, now_ms=0) == replace(driver(driver.store.sweep(job)), now_ms=0)


def test_counters_at_their_end_take_nothing_with_them(driver: Driver, job: str) -> None:
    """A sum past 64 bits must not leave a batch half committed, nor a query stuck for ever."""
    run = Run("q", "c", "r")
    driver(driver.store.put(job, JobConfig(LimitingLag(0)), {}, None))
    most = 2**53 - 1
    names = tuple(f"s{number}" for number in range(1100))
    for batch_id in range(2):
        driver(driver.store.begin(job, run, batch_id))
        for partition in range(3):
            driver(driver.store.report_staged(job, run, batch_id, partition, {"s0": batch_id + 5}, {"s0": most}))
        account = Accounting("row", names, (Counts(on_time=most),) * len(names))
        assert driver(driver.store.commit(job, run, batch_id, account)).answer.watermark == batch_id + 5
    assert driver(driver.store.status(job)).counts.on_time <= 2**63 - 1


def test_sums_of_counts_are_exact(driver: Driver, job: str) -> None:
    """Row counts of a year must not lose their last digit to a double."""
    run = Run("q", "c", "r")
    driver(driver.store.put(job, JobConfig(LimitingLag(0)), {}, None))
    driver(driver.store.begin(job, run, 0))
    account = Accounting("row", ("a", "b"), (Counts(late=2**53 - 1), Counts(late=2**53 - 2)))
    driver(driver.store.commit(job, run, 0, account))
    assert driver(driver.store.status(job)).counts.late == 2**54 - 3


def test_a_job_of_many_queries_can_be_changed_completed_and_deleted(driver: Driver, job: str) -> None:
    """Thousands of short-lived queries must not make a job impossible to get rid of."""

    async def declare() -> None:
        for number in range(9000):
            await driver.store.declare(job, f"q{number}", ["a"], 0)

    driver(driver.store.put(job, JobConfig(LimitingLag(0)), {}, None, 0))
    driver(declare())
    assert driver(driver.store.put(job, JobConfig(LimitingLag(1)), {}, 1, 1)).revision == 2
    assert driver(driver.store.complete(job, 2)).applied
    driver(driver.store.delete(job))
