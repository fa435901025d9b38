"""The requests to Redis that load the page of a job."""

from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from tests.support.driver import Driver, records
from tidegate.domain.config import JobConfig
from tidegate.domain.history import COARSE_MS, AuditInfo
from tidegate.domain.policies import LimitingLag, LimitingLagAndDelay
from tidegate.store.embedded import EmbeddedValkey
from tidegate.store.keyspace import key_of
from tidegate.store.reads import ROWS_AT_ONCE
from tidegate.views.history import FILTERS
from tidegate.views.job_page import GROUPS_SHOWN, RECORDS_READ, JobPageSelection, read_job_page
from tidegate.views.reader import Reader


def page_reads(driver: Driver, job: str, names: list[str]) -> tuple[int, set[str]]:
    """Return the number of requests that the server receives for the page of a job, and the names of the page's
    substreams.
    """
    store, reader = driver.store, Reader(driver.store, lambda job, state: "token", 1000)
    driver(store.configure(job, JobConfig(LimitingLag(0)), {"policy": {"type": "limiting_lag", "lag_ms": 0}}, None))
    driver(store.report(job, dict.fromkeys(names, 5)))
    driver(read_job_page(reader, job, JobPageSelection()))  # loads the functions

    async def received() -> int:
        return int((await store.redis.info("stats"))["total_reads_processed"])

    before = driver(received())
    page = driver(read_job_page(reader, job, JobPageSelection()))
    return driver(received()) - before - 1, {row.substream for row in page.substreams.substreams}


def test_a_job_page_is_one_read(driver: Driver, job_name: str) -> None:
    """Each open page repeats this read several times a second."""
    assert page_reads(driver, job_name, ["a", "b"]) == (1, {"a", "b"})


def test_the_page_of_a_large_job_is_one_read(driver: Driver, job_name: str) -> None:
    """The page shows the slowest substreams, which Redis keeps in order."""
    names = [f"s{number:04}" for number in range(10 * ROWS_AT_ONCE)]
    assert page_reads(driver, job_name, names) == (1, set(names[:50]))


def test_the_pages_of_the_history_contain_each_record_once(driver: Driver, job_name: str) -> None:
    """A run of more than 300 movements, runs of two movements with actions between them, and each kind of filter."""
    store, reader = driver.store, Reader(driver.store, lambda job, state: "token", 1000)
    driver(
        store.configure(job_name, JobConfig(LimitingLag(0)), {"policy": {"type": "limiting_lag", "lag_ms": 0}}, None)
    )
    driver(store.report(job_name, {"a": -2, "b": -1}))
    for number in range(50):
        driver(store.actions.idle(job_name, "", ["b"], AuditInfo("", "a test")))
        for event_time in (2 * number, 2 * number + 1):
            driver(store.report(job_name, {"a": event_time, "b": event_time}))
    for event_time in range(100, 500):
        driver(store.report(job_name, {"a": event_time, "b": event_time}))

    def pages(kind: str) -> list[list[list[str]]]:
        found, before = [], ""
        while True:
            page = driver(read_job_page(reader, job_name, JobPageSelection(kind=kind, before=before)))
            found.append([[record.id for record in run] for run in page.history])
            if page.next is None:
                return found
            before = page.next

    written = [record_id for record_id, _ in driver(records(store, job_name))][::-1]
    folded = pages("")
    assert [record_id for page in folded for run in page for record_id in run] == written
    assert [len(page[0]) for page in folded[:2]] == [RECORDS_READ, 102]
    assert max(map(len, folded)) == GROUPS_SHOWN
    filtered = [record_id for kind in FILTERS for page in pages(kind) for run in page for record_id in run]
    assert sorted(filtered) == sorted(written)


def test_functions_that_the_server_does_not_have_are_loaded_for_the_page(driver: Driver, job_name: str) -> None:
    """After ``FUNCTION FLUSH``, the page loads the functions again."""
    assert page_reads(driver, job_name, ["a"])[1] == {"a"}

    async def flush() -> None:
        await driver.store.redis.execute_command("FUNCTION", "FLUSH")  # type: ignore[no-untyped-call]

    driver(flush())
    reader = Reader(driver.store, lambda job, state: "token", 1000)
    assert driver(read_job_page(reader, job_name, JobPageSelection())).status.watermark == 5


def test_the_timelines_of_all_jobs_are_one_read(driver: Driver, job_name: str) -> None:
    """A job whose timeline cannot be read has no samples, and the other jobs keep theirs."""
    store, config = driver.store, {"policy": {"type": "limiting_lag", "lag_ms": 0}}
    names = [f"{job_name}-{number}" for number in range(50)]
    for name in names:
        driver(store.configure(name, JobConfig(LimitingLag(0)), config, None, now_ms=1))
        for interval in range(1, 4):
            driver(store.report(name, {"a": interval}, now_ms=interval * COARSE_MS))

    async def damage() -> None:
        await store.redis.rpush(key_of(names[0], "timeline", COARSE_MS), "1 2")
        await store.redis.set(key_of(names[1], "timeline", COARSE_MS), "text")

    async def received() -> int:
        return int((await store.redis.info("stats"))["total_reads_processed"])

    driver(damage())
    before = driver(received())
    found = driver(store.reads.timelines([*names, "absent"], COARSE_MS, 2))
    assert driver(received()) - before - 1 == 1
    assert found[names[0]] == found[names[1]] == found["absent"] == []
    for name in names[2:]:
        assert [(sample.at_ms, sample.watermark) for sample in found[name]] == [(2 * COARSE_MS, 2), (3 * COARSE_MS, 3)]
    assert driver(store.reads.timelines([], COARSE_MS, 2)) == {}


def test_an_error_begins_with_its_code(tmp_path: Path) -> None:
    """By this code, the service distinguishes a store that accepts no writes from a defect."""
    with EmbeddedValkey(tmp_path) as server:
        driver = Driver(server.url)
        config = {"policy": {"type": "limiting_lag_and_delay", "lag_ms": 100, "max_delay_ms": 1}}
        driver(driver.store.configure("j", JobConfig(LimitingLagAndDelay(100, 1)), config, None, now_ms=0))
        driver(driver.store.report("j", {"a": 50}, now_ms=1))

        async def accept_no_writes() -> None:
            await driver.store.redis.config_set("min-replicas-to-write", 1)

        driver(accept_no_writes())
        with pytest.raises(ResponseError, match=r"^NOREPLICAS "):
            driver(driver.store.reads.held("j", 1, now_ms=100))
        driver.close()
