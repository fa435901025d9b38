"""The stored consumers of a job: their key, and the clock by which a lease ends."""

import secrets

import pytest

from tests.support.driver import Driver
from tidegate.domain.calendar import Frames
from tidegate.domain.config import JobConfig
from tidegate.domain.errors import ConsumerHeld
from tidegate.domain.job import ConsumerPosition
from tidegate.domain.policies import LimitingLag
from tidegate.store.keyspace import key_of

POSITION = ConsumerPosition(1000, 0, 1)


@pytest.fixture
def job(driver: Driver) -> str:
    name = f"job-{secrets.token_hex(6)}"
    driver(driver.store.configure(name, JobConfig(LimitingLag(10)), {}, None, now_ms=1000))
    return name


def test_a_deleted_job_leaves_no_key(driver: Driver, job: str) -> None:
    async def run() -> tuple[int, int]:
        await driver.store.consume(job, "c", "one", 1000, POSITION)
        before = await driver.store.redis.exists(key_of(job, "consumers"))
        await driver.store.delete(job)
        return before, await driver.store.redis.exists(key_of(job, "consumers"))

    assert driver(run()) == (1, 0)


def test_a_created_job_has_no_consumer_of_an_earlier_job(driver: Driver, job: str) -> None:
    """The previous version does not know the key, so it keeps it when it deletes a job."""

    async def run() -> None:
        await driver.store.consume(job, "c", "one", 1000, POSITION)
        await driver.store.redis.copy(key_of(job, "consumers"), f"{key_of(job, 'consumers')}:kept")
        await driver.store.delete(job)
        await driver.store.redis.rename(f"{key_of(job, 'consumers')}:kept", key_of(job, "consumers"))
        await driver.store.configure(job, JobConfig(LimitingLag(10)), {}, None)

    driver(run())
    assert driver(driver.store.reads.consumers(job)).consumers == []


def test_a_lease_ends_by_the_clock_of_the_store(driver: Driver, job: str) -> None:
    """The clock of a job never goes back, so a lease does not become longer."""
    assert driver(driver.store.consume(job, "c", "one", 50, now_ms=2000)).consumer.lease_until_ms == 2050
    for now_ms in (2049, 1000):
        with pytest.raises(ConsumerHeld):
            driver(driver.store.consume(job, "c", "two", 50, now_ms=now_ms))
    assert driver(driver.store.consume(job, "c", "two", 50, now_ms=2050)).consumer.lease_until_ms == 2100
    with pytest.raises(ConsumerHeld):
        driver(driver.store.consume(job, "c", "one", 50, now_ms=1000))


def test_later_generations_are_not_made_before_the_time_in_the_answer(driver: Driver) -> None:
    """A follower delivers what was made before this time, and must not miss what is made while the clock is back."""
    name, hours = f"job-{secrets.token_hex(6)}", JobConfig(LimitingLag(0), frames=Frames(100))
    driver(driver.store.configure(name, hours, {}, None, now_ms=1000))
    driver(driver.store.report(name, {"a": 50}, now_ms=1000))
    answer = driver(driver.store.consume(name, "c", "one", 1000, now_ms=5000))
    driver(driver.store.report(name, {"a": 150}, now_ms=4000))
    [first, *_] = driver(driver.store.reads.frames(name, last=50, now_ms=4000)).frames
    assert first.state == "complete"
    assert first.generations[0].at_ms >= answer.state.now_ms == 5000
