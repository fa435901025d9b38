"""Edge cases of the Lua functions: ends of ranges, unusual names, many substreams, large counters, deleted keys."""

import functools
from dataclasses import replace

import pytest

from tests.support.driver import Driver, records
from tidegate.domain.batches import PartitionReport
from tidegate.domain.completeness import NO_ROWS, BatchAccounting
from tidegate.domain.config import Frame, FrameThrottle, JobConfig
from tidegate.domain.errors import JobDeleted, JobNotFound, RevisionMismatch
from tidegate.domain.history import RECORDS_KEPT, RECORDS_KEPT_MS
from tidegate.domain.job import ANY_VERSION, ConfigVersion, Run, TokenClaim
from tidegate.domain.policies import LimitingLag
from tidegate.store import jobs
from tidegate.store.keyspace import TOMBSTONE_KEPT_MS, job_key


@pytest.mark.parametrize("offset", [0, 7, 3_599_999])
def test_frames_are_exact_at_the_ends_of_the_range(driver: Driver, job_name: str, offset: int) -> None:
    """Every step of the arithmetic must be exact in doubles. Lua's own modulus is not."""
    frame = Frame(3_600_000, 3_600_000, offset)
    config = JobConfig(LimitingLag(0), FrameThrottle(frame.size, frame.slide, frame.offset))
    for time in (2**53 - 1, 2**53 - 2, 2**53 - 3_600_001, -(2**53) + 1, -(2**53) + 3_600_000, -1, 0, 1, 3_599_999):
        name = f"{job_name}-{time % 10**9}-{offset}"
        driver(driver.store.configure(name, config, {}, None, now_ms=0))
        assert driver(driver.store.report(name, {"a": time}, now_ms=0)).state.watermark == frame.floor(time)
        assert driver(driver.store.actions.complete(name, now_ms=0)).state.watermark == frame.higher(time)


def test_a_substream_name_may_contain_any_character(driver: Driver, job_name: str) -> None:
    """Names come from data. They may contain quotes, slashes, spaces, right-to-left marks and emoji."""
    odd = ['"', "a/b", " ", "x y/z", "‏שלום", "😀", "<b>", "a:b", "{a}"]
    run = Run("q", "c", "r")
    driver(driver.store.configure(job_name, JobConfig(LimitingLag(0)), {}, None))
    driver(driver.store.begin(job_name, run, 0))
    driver(driver.store.stage(job_name, run, 0, PartitionReport(3, dict.fromkeys(odd, 5), dict.fromkeys(odd, 2))))
    account = BatchAccounting(tuple(odd), (replace(NO_ROWS, on_time=1, late=1),) * len(odd))
    driver(driver.store.commit(job_name, run, 0, account))
    rows = driver(driver.store.reads.substreams(job_name)).rows
    assert {row.substream: (row.reported, row.rows) for row in rows} == dict.fromkeys(
        odd, (2, replace(NO_ROWS, on_time=1, late=1))
    )


def test_a_report_of_many_substreams_is_accepted(driver: Driver, job_name: str) -> None:
    """Redis commands in functions take at most about 8000 arguments, and a batch may report more substreams."""
    many = {f"s{number}": number for number in range(25_000)}
    run = Run("q", "c", "r")
    driver(driver.store.configure(job_name, JobConfig(LimitingLag(0), idle_timeout_ms=10), {}, None, now_ms=0))
    driver(driver.store.begin(job_name, run, 0, now_ms=0))
    driver(driver.store.stage(job_name, run, 0, PartitionReport(0, many, many), now_ms=0))
    assert driver(driver.store.commit(job_name, run, 0, None, now_ms=0)).state.watermark == 0
    assert driver(driver.store.reads.status(job_name, 0)).summary.active == len(many)
    # All substreams become idle at once, and active again at once.
    driver(driver.store.heartbeat(job_name, run, 10, now_ms=10))
    for _ in range(len(many) // 500):  # one call makes a bounded number of substreams idle
        state = driver(driver.store.sweep(job_name, now_ms=10))
    assert state.watermark == 24_999
    driver(driver.store.begin(job_name, run, 1, now_ms=11))
    driver(driver.store.stage(job_name, run, 1, PartitionReport(0, dict.fromkeys(many, 30000)), now_ms=11))
    assert driver(driver.store.commit(job_name, run, 1, None, now_ms=11)).state.watermark == 30_000


def test_deleting_leaves_nothing_but_a_tombstone(driver: Driver, job_name: str) -> None:
    """A new job of the same name must not have the watermarks of the deleted one."""
    run = Run("q", "c", "r")
    config = JobConfig(LimitingLag(0))
    first = driver(driver.store.configure(job_name, config, {}, None)).state
    driver(driver.store.actions.declare(job_name, "only-declared", ["x"]))
    driver(driver.store.begin(job_name, run, 0))
    driver(driver.store.stage(job_name, run, 0, PartitionReport(0, {"a": 1}, {"a": 1})))
    driver(driver.store.delete(job_name))

    async def keys() -> list[str]:
        return [str(key) for key in await driver.store.redis.keys("*") if job_name in str(key)]

    assert driver(keys()) == [f"tidegate:{{{job_name}}}"]
    again = driver(driver.store.configure(job_name, config, {}, None))
    assert (again.state.incarnation, again.state.watermark) == (first.incarnation + 1, None)
    assert replace(again.state, now_ms=0) == replace(driver(driver.store.sweep(job_name)), now_ms=0)


def test_no_incarnation_repeats_after_a_tombstone_has_expired(driver: Driver, job_name: str) -> None:
    """A token of a deleted job must never move a later job of its name, however long ago the deletion was."""

    async def life() -> int:
        await driver.store.configure(job_name, JobConfig(LimitingLag(0)), {}, None)
        state = await driver.store.actions.reset(job_name)
        await driver.store.delete(job_name)
        left_ms = await driver.store.redis.pttl(job_key(job_name))
        assert 0 < left_ms <= TOMBSTONE_KEPT_MS
        with pytest.raises(JobDeleted):
            await driver.store.sweep(job_name)
        await driver.store.redis.delete(job_key(job_name))  # as if it had expired
        with pytest.raises(JobNotFound):
            await driver.store.sweep(job_name)
        return state.incarnation

    first, second = driver(life()), driver(life())
    assert second > first + 1
    report = driver.store.configure(job_name, JobConfig(LimitingLag(0)), {}, None)
    assert driver(report).state.incarnation == second + 1
    token = TokenClaim(second, 9_000)
    assert driver(driver.store.report(job_name, {"a": 5}, token=token)).state.watermark == 5


def test_creating_and_deleting_jobs_does_not_fill_redis(
    driver: Driver, job_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of tombstones is limited, and tombstones of older versions get an expiry, too."""
    monkeypatch.setattr(jobs, "TOMBSTONES_KEPT", 5)

    async def live_and_die(number: int) -> None:
        name = f"{job_name}-{number}"
        await driver.store.configure(name, JobConfig(LimitingLag(0)), {}, None)
        await driver.store.report(name, {"a": 1})
        await driver.store.delete(name)

    async def keys() -> list[str]:
        return sorted([str(key) async for key in driver.store.redis.scan_iter(f"*{job_name}*")])

    async def made_older(name: str) -> int:
        await driver.store.redis.persist(job_key(name))
        await driver.store.delete(name)
        return int(await driver.store.redis.pttl(job_key(name)))

    for number in range(20):
        driver(live_and_die(number))
    assert driver(keys()) == sorted(job_key(f"{job_name}-{number}") for number in range(15, 20))
    assert driver(made_older(f"{job_name}-19")) > 0


def test_a_version_of_a_deleted_job_does_not_delete_its_successor(driver: Driver, job_name: str) -> None:
    """The function compares the version, because the job may change after the coordinator has read it."""
    create = functools.partial(driver.store.configure, job_name, JobConfig(LimitingLag(0)), {})
    first = driver(create(None))
    old = ConfigVersion(first.state.state_epoch, first.revision)
    driver(driver.store.delete(job_name, old))
    assert driver(create(None)).revision == first.revision
    for command in (driver.store.delete(job_name, old), create(old)):
        with pytest.raises(RevisionMismatch):
            driver(command)
    assert driver(create(ANY_VERSION)).revision == 2


def test_counters_at_their_maximum_do_not_fail_a_commit(driver: Driver, job_name: str) -> None:
    """A sum beyond 64 bits must not leave a batch half committed or block its query."""
    run = Run("q", "c", "r")
    driver(driver.store.configure(job_name, JobConfig(LimitingLag(0)), {}, None))
    most = 2**53 - 1
    names = tuple(f"s{number}" for number in range(1100))
    for batch_id in range(2):
        driver(driver.store.begin(job_name, run, batch_id))
        for partition in range(3):
            report = PartitionReport(partition, {"s0": batch_id + 5}, {"s0": most})
            driver(driver.store.stage(job_name, run, batch_id, report))
        account = BatchAccounting(names, (replace(NO_ROWS, on_time=most),) * len(names))
        assert driver(driver.store.commit(job_name, run, batch_id, account)).state.watermark == batch_id + 5
    assert driver(driver.store.reads.status(job_name)).summary.counts.on_time <= 2**63 - 1


def test_sums_of_counts_are_exact(driver: Driver, job_name: str) -> None:
    """Sums of row counts must be exact, although Lua computes with doubles."""
    run = Run("q", "c", "r")
    driver(driver.store.configure(job_name, JobConfig(LimitingLag(0)), {}, None))
    driver(driver.store.begin(job_name, run, 0))
    account = BatchAccounting(("a", "b"), (replace(NO_ROWS, late=2**53 - 1), replace(NO_ROWS, late=2**53 - 2)))
    driver(driver.store.commit(job_name, run, 0, account))
    assert driver(driver.store.reads.status(job_name)).summary.counts.late == 2**54 - 3


def test_a_job_of_many_queries_can_be_changed_completed_and_deleted(driver: Driver, job_name: str) -> None:
    """An operator can change, complete and delete a job that has had thousands of queries."""

    async def declare() -> None:
        for number in range(9000):
            await driver.store.actions.declare(job_name, f"q{number}", ["a"], now_ms=0)

    driver(driver.store.configure(job_name, JobConfig(LimitingLag(0)), {}, None, now_ms=0))
    driver(declare())
    assert driver(driver.store.configure(job_name, JobConfig(LimitingLag(1)), {}, ANY_VERSION, now_ms=1)).revision == 2
    assert driver(driver.store.actions.complete(job_name, now_ms=2)).applied
    driver(driver.store.delete(job_name))


def test_the_history_of_a_job_is_bounded(driver: Driver, job_name: str) -> None:
    """The history of a job that runs for years must not fill Redis."""

    async def emit() -> None:
        for number in range(RECORDS_KEPT + 10):
            await driver.store.report(job_name, {"a": number}, now_ms=1)

    driver(driver.store.configure(job_name, JobConfig(LimitingLag(0)), {}, None, now_ms=0))
    driver(emit())
    assert len(driver(records(driver.store, job_name))) == RECORDS_KEPT
    driver(driver.store.report(job_name, {"a": RECORDS_KEPT + 10}, now_ms=RECORDS_KEPT_MS + 2))
    assert [record.details["coalesced_watermark"] for _, record in driver(records(driver.store, job_name))] == [
        RECORDS_KEPT + 10
    ]


def test_a_report_leaves_most_idle_substreams_to_sweeps(driver: Driver, job_name: str) -> None:
    """When many substreams become idle together, a report must not block Redis for a second. Sweeps handle the rest."""
    many = {f"s{number}": number for number in range(5000)}
    driver(driver.store.configure(job_name, JobConfig(LimitingLag(0), idle_timeout_ms=10), {}, None, now_ms=0))
    driver(driver.store.report(job_name, many, now_ms=0))
    driver(driver.store.report(job_name, {"late": 9000}, now_ms=10))
    assert 0 < driver(driver.store.reads.status(job_name, 10)).summary.idle < len(many)
    sweeps = (driver(driver.store.sweep(job_name, now_ms=10)) for _ in range(len(many) // 500))
    assert [state.watermark for state in sweeps][-1] == 9000
