"""The slowest substreams of a large job in pages, and the distribution of its watermarks."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.support.driver import Driver
from tests.support.store import JobStore
from tidegate.domain.config import JobConfig, Override
from tidegate.domain.policies import LimitingLag, LimitingTimestampAndWallClockLag
from tidegate.store.reads import ROWS_AT_ONCE
from tidegate.times import ROUND_MS
from tidegate.views.job_page import BINS, JobPage, JobPageSelection, read_job_page
from tidegate.views.reader import Reader

START = 1_700_000_000_000
SUBSTREAMS = 3 * ROWS_AT_ONCE
CONFIG = JobConfig(
    LimitingLag(0),
    overrides=(Override("clock-*", LimitingTimestampAndWallClockLag(1000, 60_000)),),
    idle_timeout_ms=50_000,
    max_future_skew_ms=None,
)


@pytest.fixture(params=[None, 10_000], ids=["all hold", "some are skewed"])
def job(driver: Driver, job_name: str, request: pytest.FixtureRequest) -> str:
    """Create a job of active and idle substreams with many equal watermarks. A third follows the clock.

    With a limit on skew, more substreams than a page has are behind it, some of them far.
    """
    drawn = random.Random(4)  # noqa: S311 - the same job in each run
    document = {"policy": {"type": "limiting_lag", "lag_ms": 0}}
    config = replace(CONFIG, max_skew_ms=request.param)
    driver(driver.store.configure(job_name, config, document, None, now_ms=START))
    names = [f"{'clock' if number % 3 == 0 else 'flat'}-{drawn.randrange(10**9)}" for number in range(SUBSTREAMS)]
    times = {name: START + drawn.randrange(40) * 1000 for name in names}
    driver(driver.store.report(job_name, times, now_ms=START))
    driver(driver.store.report(job_name, dict(list(times.items())[: SUBSTREAMS // 2]), now_ms=START + 40_000))
    if request.param is not None:
        far = {f"far-{number}": START - 10**7 for number in range(ROWS_AT_ONCE // 2)}
        driver(driver.store.report(job_name, far, now_ms=START + 40_000))
    driver(driver.store.actions.declare(job_name, "", ["new-1", "new-2"], now_ms=START + 40_000))
    driver(driver.store.sweep(job_name, now_ms=START + 60_000))
    return job_name


def page(driver: Driver, job: str, after: str = "") -> JobPage:
    """Read the page of the job at the time of the last sweep."""
    store = JobStore(driver.store.redis, clock=lambda: START + 60_000)
    return driver(read_job_page(Reader(store, lambda job, state: "token", 1000), job, JobPageSelection(after=after)))


async def everything(driver: Driver, job: str) -> list[tuple[int | None, str, str]]:
    """Return the watermark, name and state of all substreams, read in parts."""
    found: list[tuple[int | None, str, str]] = []
    async for keys in driver.store.reads.substream_keys(job):
        table = await driver.store.reads.substreams(job, keys, now_ms=START + 60_000)
        found += [(row.watermark, row.substream, row.state) for row in table.rows]
    return found


def test_the_pages_contain_each_active_substream_once_slowest_first(driver: Driver, job: str) -> None:
    shown: list[tuple[int | None, str]] = []
    after: str | None = ""
    while after is not None:
        table = page(driver, job, after).substreams
        shown += [(row.watermark, row.substream) for row in table.substreams]
        after = table.next
    rows = driver(everything(driver, job))
    active = [(watermark, name) for watermark, name, state in rows if state in ("active", "blocked")]
    assert len(active) > ROWS_AT_ONCE
    assert shown == sorted(active, key=lambda row: (row[0] is not None, row[0] or 0, row[1]))
    assert shown[:2] == [(None, "new-1"), (None, "new-2")]


def test_a_page_continues_after_a_substream_that_has_moved(driver: Driver, job: str) -> None:
    first = page(driver, job).substreams
    last = first.substreams[-1]
    driver(driver.store.report(job, {last.substream: START + 10**6}, now_ms=START + 60_000))
    second = page(driver, job, first.next or "").substreams
    seen = {row.substream for row in first.substreams}
    assert not seen & {row.substream for row in second.substreams}
    assert min(row.watermark or 0 for row in second.substreams) >= (last.watermark or 0)


def test_the_distribution_counts_each_substream_with_a_watermark(driver: Driver, job: str) -> None:
    found = page(driver, job).distribution
    assert found is not None
    assert found.width_ms in ROUND_MS and found.start % found.width_ms == 0 and len(found.active) <= BINS
    rows = driver(everything(driver, job))
    expected: Counter[tuple[int, bool]] = Counter()
    for watermark, _, state in rows:
        if watermark is not None:
            expected[(watermark - found.start) // found.width_ms, state in ("active", "blocked")] += 1
    counted: Counter[tuple[int, bool]] = Counter()
    for is_active, column in ((True, found.active), (False, found.others)):
        counted.update({(place, is_active): count for place, count in enumerate(column) if count})
    earlier = sum(count for (place, _), count in expected.items() if place < 0)
    assert counted == Counter({key: count for key, count in expected.items() if key[0] >= 0})
    assert found.earlier == earlier


def test_the_distribution_of_a_complete_job_contains_all_substreams(driver: Driver, job: str) -> None:
    driver(driver.store.actions.complete(job, now_ms=START + 60_000))
    found = page(driver, job).distribution
    assert found is not None
    known = sum(watermark is not None for watermark, _, _ in driver(everything(driver, job)))
    assert (sum(found.active), sum(found.others) + found.earlier) == (0, known)
    assert found.earlier == 0


def test_a_wide_range_of_watermarks_has_a_distribution(driver: Driver, job: str) -> None:
    """One substream may be decades behind the others."""
    driver(driver.store.report(job, {"flat-old": 0}, now_ms=START + 60_000))
    found = page(driver, job).distribution
    assert found is not None and len(found.active) <= BINS
    assert sum(found.active) + sum(found.others) > ROWS_AT_ONCE
