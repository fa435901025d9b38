"""The list of jobs: its order, its filters, the lines of the watermark lag, and live updates."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.support.api import BASE, batch, create, report
from tests.support.browser import PHONE, Visitor, shoot
from tests.support.driver import with_store_beside_browser
from tests.support.scenes import HOUR, MINUTE
from tests.support.store import JobStore
from tidegate.domain.config import JobConfig
from tidegate.domain.policies import LimitingLag
from tidegate.store.embedded import EmbeddedValkey
from tidegate_spark.testing import CoordinatorProcess

YEARS = 12 * 365 * 24 * HOUR


@dataclass(frozen=True)
class Jobs:
    """A coordinator with jobs of several healths. Some have a past of three hours."""

    url: str
    http: httpx.Client

    def open(self, visitor: Visitor, query: str = "", **options: object) -> Page:
        page = visitor.window(**options)
        page.goto(f"{self.url}/{query}")
        if options.get("java_script_enabled", True):
            expect(page.locator("#connection")).to_have_text("live")
        return page


async def _past(store: JobStore, job: str, now_ms: int, lag_ms: int, max_lag_ms: int | None = None) -> None:
    """Create a job that has reported every five minutes, and whose lag has grown in the last hour."""
    config = {"policy": {"type": "limiting_lag", "lag_ms": 0}, "max_future_skew_ms": None, "max_lag_ms": max_lag_ms}
    parsed = JobConfig(LimitingLag(0), max_future_skew_ms=None, max_lag_ms=max_lag_ms)
    await store.configure(job, parsed, config, None, now_ms=now_ms - 4 * HOUR)
    for at_ms in range(now_ms - 4 * HOUR, now_ms + 1, 5 * MINUTE):
        growth_ms = max(0, at_ms - now_ms + HOUR) // 2
        await store.report(job, {"a": at_ms - lag_ms - growth_ms}, now_ms=at_ms)


async def _fill(store: JobStore) -> None:
    now_ms = int(time.time() * 1000)
    await _past(store, "fl-held", now_ms, MINUTE)
    await _past(store, "fl-lagging", now_ms, 10 * MINUTE, max_lag_ms=20 * MINUTE)
    await _past(store, "replay", now_ms, YEARS)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with EmbeddedValkey(tmp_path / "valkey") as valkey:
        with_store_beside_browser(valkey, _fill)
        with (
            CoordinatorProcess(tmp_path / "data", redis_url=valkey.url) as coordinator,
            httpx.Client(base_url=coordinator.url, timeout=30) as http,
        ):
            create(http, "empty")
            create(http, "late")
            now_ms = http.get("/v1/jobs/late").json()["now_ms"]
            batch(http, "late", 0, {"a": now_ms})
            hold = {"at_most": BASE, "hold": "audit", "reason": "quarter close"}
            http.post("/v1/jobs/fl-held/holds", json=hold).raise_for_status()
            yield Jobs(coordinator.url, http)


def expect_jobs(page: Page, *names: str) -> None:
    expect(page.locator("#jobs tbody th")).to_have_text(list(names))


def test_column_heads_sort_the_list(jobs: Jobs, visitor: Visitor) -> None:
    """A second click reverses the order. Jobs without a value come last in both orders."""
    page = jobs.open(visitor, java_script_enabled=False)
    expect_jobs(page, "fl-held", "fl-lagging", "replay", "late", "empty")
    expect(page.get_by_role("columnheader", name="Health")).to_have_attribute("aria-sort", "ascending")

    def click(column: str) -> None:
        page.get_by_role("columnheader", name=column).get_by_role("link").click()

    click("Lag")
    expect_jobs(page, "fl-lagging", "fl-held", "late", "empty", "replay")
    expect(page.get_by_role("columnheader", name="Lag")).to_have_attribute("aria-sort", "descending")
    expect(page.get_by_role("columnheader", name="Health")).to_have_attribute("aria-sort", "none")
    click("Lag")
    expect_jobs(page, "late", "fl-held", "fl-lagging", "empty", "replay")
    click("Late rows")
    expect_jobs(page, "late", "empty", "fl-held", "fl-lagging", "replay")
    click("Job")
    expect_jobs(page, "empty", "fl-held", "fl-lagging", "late", "replay")
    click("Job")
    expect_jobs(page, "replay", "late", "fl-lagging", "fl-held", "empty")
    click("Health")
    click("Health")
    expect_jobs(page, "empty", "replay", "late", "fl-lagging", "fl-held")
    click("Last contact")
    expect(page.locator("#jobs tbody th").last).to_have_text("empty")
    assert page.url == f"{jobs.url}/?sort=last_contact"


def test_the_list_is_filtered_by_health_and_name(jobs: Jobs, visitor: Visitor) -> None:
    """The text above the table says what the table shows. A filter keeps the order, and the order keeps the filter."""
    page = jobs.open(visitor, "?sort=job&descending=true")
    shown = page.locator(".shown")
    expect(shown).to_have_text("5 jobs")
    page.get_by_label("Name").fill("fl*")
    page.get_by_role("button", name="Show").click()
    expect(shown).to_have_text("2 of 5 jobs: name fl* Show all jobs")
    expect_jobs(page, "fl-lagging", "fl-held")
    page.get_by_label("Health").select_option("held")
    page.get_by_role("button", name="Show").click()
    expect(shown).to_have_text("1 of 5 jobs: health held, name fl* Show all jobs")
    page.get_by_role("columnheader", name="Lag").get_by_role("link").click()
    expect_jobs(page, "fl-held")
    expect(page.get_by_label("Health")).to_have_value("held")
    page.get_by_label("Health").select_option("no watermark")
    page.get_by_role("button", name="Show").click()
    expect(shown).to_have_text("0 of 5 jobs: health no watermark, name fl* Show all jobs")
    expect(page.locator(".nothing")).to_have_text("No job matches.")
    page.get_by_role("link", name="Show all jobs").click()
    expect(shown).to_have_text("5 jobs")
    expect_jobs(page, "fl-lagging", "fl-held", "late", "empty", "replay")
    assert jobs.http.get("/", params={"health": "excellent"}).status_code == 422
    assert jobs.http.get("/", params={"sort": "color"}).status_code == 422


def test_each_job_has_a_line_of_its_lag(jobs: Jobs, visitor: Visitor) -> None:
    """The line of replayed event times shows the watermark itself, and the Lag column shows its time."""
    page = jobs.open(visitor)
    lag = page.get_by_role("row", name="fl-lagging").locator("td[data-label=Lag]")
    expect(lag).to_contain_text(re.compile(r"^40 min( \d+ s)?\s*$"))
    label = re.compile(r"^lag between 10 min and 40 min( \d+ s)? in the last 3 h$")
    expect(lag.get_by_role("img")).to_have_attribute("aria-label", label)
    expect(lag.locator("polyline")).to_have_count(1)
    lag.get_by_role("img").hover()
    expect(page.get_by_role("tooltip")).to_contain_text("lag between 10 min")
    replayed = page.get_by_role("row", name="replay").locator("td[data-label=Lag]")
    expect(replayed).to_contain_text(re.compile(r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ\s*$"))
    expect(replayed.get_by_role("img")).to_have_attribute(
        "aria-label", re.compile(r"^watermark from 20\S+ \S+Z to 20\S+ \S+Z in the last 3 h$")
    )
    expect(page.get_by_role("row", name="empty").locator("svg")).to_have_count(0)
    shoot(visitor, jobs.url, "jobs-list", "#connection.on")
    shoot(visitor, jobs.url, "phone-jobs-list", "#connection.on", viewport=PHONE, is_mobile=True)


def test_the_list_can_be_sorted_on_a_phone(jobs: Jobs, visitor: Visitor) -> None:
    page = jobs.open(visitor, viewport=PHONE, is_mobile=True)
    page.get_by_role("link", name="Late rows").click()
    expect(page.locator("#jobs tbody th").first).to_have_text("late")


def test_the_sentence_of_a_held_job_has_the_reason_of_the_hold(jobs: Jobs, visitor: Visitor) -> None:
    page = jobs.open(visitor)
    says = re.compile(r"Held at \S+ \S+ by the hold audit \(quarter close\), set by an operator\.")
    expect(page.get_by_role("row", name="fl-held")).to_contain_text(says)
    page.get_by_role("link", name="fl-held").click()
    expect(page.locator(".sentence")).to_contain_text(says)


def test_live_updates_keep_the_order_and_the_filter(jobs: Jobs, visitor: Visitor) -> None:
    page = jobs.open(visitor, "?health=held&sort=job&descending=true")
    page.evaluate("window.loaded = 'once'")
    expect_jobs(page, "fl-held")
    jobs.http.post("/v1/jobs/late/holds", json={"at_most": BASE, "reason": "migration"}).raise_for_status()
    expect_jobs(page, "late", "fl-held")
    expect(page.locator(".shown")).to_have_text("2 of 5 jobs: health held Show all jobs")
    jobs.http.delete("/v1/jobs/fl-held").raise_for_status()
    expect_jobs(page, "late")
    expect(page.locator(".shown")).to_have_text("1 of 4 jobs: health held Show all jobs")
    create(jobs.http, "other")
    report(jobs.http, "other", {"a": BASE})
    expect(page.locator(".shown")).to_contain_text("1 of 5 jobs")
    assert page.evaluate("window.loaded") == "once"
