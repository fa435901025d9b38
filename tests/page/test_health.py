"""The pages of jobs in every health, and pages during failures. ``out/screens`` has screenshots in light and dark."""

import time
from pathlib import Path

import httpx
from playwright.sync_api import expect

from tests.support.api import BASE, FRAMES, HOUR, RUN, batch, create, report
from tests.support.browser import PHONE, Visitor, shoot
from tidegate.store.embedded import EmbeddedValkey
from tidegate_spark.testing import CoordinatorProcess

LIVE = "#connection.on"


def test_jobs_of_every_health(tmp_path: Path, visitor: Visitor) -> None:
    """One job per health, and the list of all jobs with the worst health first."""
    with (
        CoordinatorProcess(tmp_path) as coordinator,
        httpx.Client(base_url=coordinator.url, timeout=30) as http,
    ):
        for job in ("empty", "no-watermark", "all-idle", "complete", "running", "held", "blocked", "unthrottled"):
            throttle = {} if job == "unthrottled" else FRAMES
            create(http, job, **throttle, idle_timeout_ms=500 if job == "blocked" else HOUR)
        create(http, "lagging", max_lag_ms=HOUR)
        report(http, "lagging", {"BOS": BASE})
        names = {"substreams": ["HNL"], "reason": "lands tomorrow"}
        http.post("/v1/jobs/no-watermark:declare", json=names).raise_for_status()
        report(http, "no-watermark", {"BOS": BASE})
        report(http, "all-idle", {"BOS": BASE, "HNL": BASE - HOUR})
        idle = {"substreams": ["BOS", "HNL"], "reason": "the night"}
        http.post("/v1/jobs/all-idle/substreams:idle", json=idle).raise_for_status()
        report(http, "complete", {"BOS": BASE, "HNL": BASE - HOUR})
        http.post("/v1/jobs/complete:complete", json={"reason": "the year is over"}).raise_for_status()
        for job in ("held", "blocked"):
            batch(http, job, 0, {"BOS": BASE, "HNL": BASE - 3 * HOUR})
        hold = {"at_most": BASE, "reason": "the books are being audited", "hold": "audit", "duration_ms": 2 * HOUR}
        http.post("/v1/jobs/held/holds", json=hold).raise_for_status()
        batch(http, "held", 1, {"BOS": BASE + 4 * HOUR, "HNL": BASE + 5 * HOUR})
        now = http.get("/v1/jobs/running").json()["now_ms"]
        for number in range(8):
            at = now - 3 * HOUR + number * HOUR // 4
            batch(http, "running", number, {"BOS": at + HOUR, "HNL": at, "ORD": at + HOUR // 2}, open_=number == 7)
            report(http, "unthrottled", {"BOS": at + HOUR, "HNL": at + number % 3 * HOUR // 3})
        time.sleep(0.5)  # the idle timeout of the job `blocked`
        healths = {job["job"]: job["health"] for job in http.get("/v1/jobs").json()["jobs"]}
        assert healths == {
            "empty": "empty",
            "no-watermark": "no_watermark",
            "all-idle": "all_idle",
            "complete": "complete",
            "running": "running",
            "held": "held",
            "blocked": "held",
            "lagging": "lagging",
            "unthrottled": "running",
        }
        page = visitor.window()
        page.goto(coordinator.url)
        badges = page.locator("tbody .badge").all_inner_texts()
        calm = ["running", "running", "all idle", "empty", "complete"]
        assert badges == ["held", "held", "lagging", "no watermark", *calm]
        for job in healths:
            shoot(visitor, f"{coordinator.url}/jobs/{job}", f"job-{job}", LIVE)
        shoot(visitor, coordinator.url, "jobs", LIVE)
        shoot(visitor, f"{coordinator.url}/jobs/running", "phone-job", LIVE, viewport=PHONE, is_mobile=True)
        shoot(visitor, coordinator.url, "phone-jobs", LIVE, viewport=PHONE, is_mobile=True)
        ask = f"{coordinator.url}/jobs/running/act/evict?query=departures&substream=HNL"
        shoot(visitor, ask, "act-evict", "form.act")
        shoot(visitor, f"{coordinator.url}/jobs/running/act/reset", "act-reset", "form.act")


def test_a_stale_job(tmp_path: Path, visitor: Visitor) -> None:
    """A job without client contact is stale, unless a batch is open."""
    with (
        CoordinatorProcess(tmp_path, stale_after_s="0.3") as coordinator,
        httpx.Client(base_url=coordinator.url, timeout=30) as http,
    ):
        for job in ("quiet", "at-work"):
            create(http, job)
            batch(http, job, 0, {"BOS": BASE})
        http.put("/v1/jobs/at-work/queries/departures/batches/1", json=RUN).raise_for_status()
        time.sleep(0.4)
        healths = {job["job"]: job["health"] for job in http.get("/v1/jobs").json()["jobs"]}
        assert healths == {"quiet": "stale", "at-work": "running"}
        shoot(visitor, f"{coordinator.url}/jobs/quiet", "job-stale", LIVE)
        page = visitor.window()
        page.goto(f"{coordinator.url}/jobs/quiet")
        expect(page.locator("#headline")).to_contain_text("No client contact for")


def test_no_jobs(tmp_path: Path, visitor: Visitor) -> None:
    with CoordinatorProcess(tmp_path) as coordinator:
        shoot(visitor, coordinator.url, "no-jobs", LIVE)
        page = visitor.window()
        page.goto(coordinator.url)
        expect(page.locator("main")).to_contain_text("No jobs yet.")
        with httpx.Client(base_url=coordinator.url, timeout=30) as http:
            create(http, "first")
        expect(page.get_by_role("link", name="first")).to_be_visible()  # without a reload


def test_pages_while_redis_is_away(tmp_path: Path, visitor: Visitor) -> None:
    """An open page keeps its content and shows the failure. A newly opened page shows the failure. Both recover."""
    visitor.expect("503")
    valkey = EmbeddedValkey(tmp_path / "valkey")
    with (
        valkey,
        CoordinatorProcess(tmp_path / "data", redis_url=valkey.url) as coordinator,
        httpx.Client(base_url=coordinator.url, timeout=30) as http,
    ):
        create(http, "flights")
        batch(http, "flights", 0, {"BOS": BASE})
        page = visitor.window()
        page.goto(f"{coordinator.url}/jobs/flights")
        page.locator(LIVE).wait_for()
        valkey.stop()
        expect(page.locator("#trouble")).to_contain_text("Redis does not answer")
        expect(page.locator(".sentence")).to_contain_text("BOS")
        for address in ("/", "/jobs/flights"):
            shoot(visitor, coordinator.url + address, f"redis-away{address.replace('/', '-').rstrip('-')}", "h1")
        late = visitor.window()
        late.goto(f"{coordinator.url}/jobs/flights")
        expect(late.locator("h1")).to_have_text("Redis does not answer")
        assert http.get("/jobs/flights").status_code == 503
        assert "tidegate_store_up 0.0" in http.get("/metrics").text
        valkey.start()
        expect(page.locator("#trouble")).to_be_hidden()
        expect(late.locator("h1")).to_have_text("flights")
        for window in (page, late):
            window.close()  # the pages would report the end of the coordinator as an error


def test_a_page_while_the_coordinator_is_away(tmp_path: Path, visitor: Visitor) -> None:
    """An open page shows that it is not connected. The page continues with the next coordinator at the address."""
    visitor.expect("ERR_")
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator, httpx.Client(base_url=coordinator.url, timeout=30) as http:
        create(http, "flights")
        report(http, "flights", {"BOS": BASE})
        page = visitor.window()
        page.goto(f"{coordinator.url}/jobs/flights")
        page.locator(LIVE).wait_for()
        coordinator.stop()
        expect(page.locator("#trouble")).to_contain_text("Not connected to the coordinator")
        coordinator.start()
        expect(page.locator("#trouble")).to_be_hidden()
        report(http, "flights", {"BOS": BASE + HOUR})
        expect(page.locator(".picture .line.watermark tspan")).to_have_text("2013-01-07 10:59:59Z")


def test_a_deleted_job(visitor: Visitor, tidegate: CoordinatorProcess, http: httpx.Client, job_name: str) -> None:
    visitor.expect("404|410")
    create(http, job_name)
    page = visitor.window()
    page.goto(f"{tidegate.url}/jobs/{job_name}")
    page.locator(LIVE).wait_for()
    http.delete(f"/v1/jobs/{job_name}").raise_for_status()
    expect(page.locator("h1")).to_have_text("This job was deleted")
    page.goto(f"{tidegate.url}/jobs/never-there")
    expect(page.locator("h1")).to_have_text("Job not found")
