"""The picture of a job and its lag chart: what they show, and how they move."""

import re
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import open_job
from tests.support import scenes
from tests.support.api import report
from tests.support.browser import PHONE, Visitor
from tests.support.driver import with_store_beside_browser
from tests.support.store import JobStore
from tidegate.store.embedded import EmbeddedValkey
from tidegate_spark.testing import CoordinatorProcess

MARKUP = "<b>&amp; name"
REPLAY_MS = -13 * 365 * scenes.DAY


@pytest.fixture(scope="module")
def own_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="module")
def tidegate(own_valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    """Yield a coordinator whose Valkey the tests fill with the past of jobs."""
    with CoordinatorProcess(tmp_path_factory.mktemp("coordinator"), redis_url=own_valkey.url) as coordinator:
        yield coordinator


Fill = Callable[[Callable[[JobStore], Awaitable[None]]], None]


@pytest.fixture
def fill(own_valkey: EmbeddedValkey) -> Fill:
    """Return a function that fills the store."""
    return partial(with_store_beside_browser, own_valkey)


def past_day(fill: Fill, job: str, shift_ms: int = 0) -> str:
    fill(lambda store: scenes.past_day(store, job, now_ms(), shift_ms))
    return job


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def tip(page: Page) -> str:
    found = page.locator("#tip")
    expect(found).to_be_visible()
    return found.inner_text()


def mark(page: Page, name: str) -> str:
    """Return the selector of the mark of a substream without a query."""
    return f'.picture a.mark[data-key="mark /{name}"]'


def test_the_picture_shows_every_substream_and_who_holds_the_watermark(
    tidegate: CoordinatorProcess, visitor: Visitor, fill: Fill, job_name: str
) -> None:
    page = open_job(visitor, tidegate, past_day(fill, job_name))
    marks = page.locator(".picture a.mark")
    expect(marks).to_have_count(len(scenes.AIRPORTS) - 1)  # ATL is idle, and far to the left
    expect(page.locator("#picture")).to_contain_text("1 skewed, idle or done substream to the left")
    expect(page.locator(".picture a.mark.holds")).to_have_attribute("aria-label", "HNL")
    places = {name: page.locator(f"{mark(page, name)} circle").bounding_box() for name in ("HNL", "JFK")}
    line = page.locator(".picture .line.watermark line").bounding_box()
    assert places["HNL"] and places["JFK"] and line
    assert places["HNL"]["x"] + places["HNL"]["width"] / 2 == pytest.approx(line["x"] + line["width"] / 2, abs=2)
    assert places["HNL"]["x"] < places["JFK"]["x"]
    legend = page.locator("#picture .legend")
    for text in ("W, watermark", "C, coalesced watermark", "max event time", "counts as late", "lowest watermark"):
        expect(legend).to_contain_text(text)


def test_a_mark_names_its_substream_and_leads_to_it(
    tidegate: CoordinatorProcess, visitor: Visitor, fill: Fill, job_name: str
) -> None:
    page = open_job(visitor, tidegate, past_day(fill, job_name))
    page.locator(f"{mark(page, 'HNL')} circle").hover()
    assert re.match(r"HNL, active: watermark \d{4}-.*, holds the watermark$", tip(page))
    page.keyboard.press("Escape")
    expect(page.locator("#tip")).to_be_hidden()
    page.locator(mark(page, "HNL")).focus()  # a keyboard reaches the holders
    assert tip(page).startswith("HNL, active")
    page.locator(f"{mark(page, 'JFK')} circle").click()
    rows = page.locator(".substreams tbody th")
    expect(rows.filter(has_text="JFK")).to_have_count(1)
    assert "name=JFK" in page.url


def test_marks_move_and_the_axis_stays(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, fill: Fill, job_name: str
) -> None:
    # In a replay, the axis does not reach to now, which may pass the end of an axis during the test.
    page = open_job(visitor, tidegate, past_day(fill, job_name, REPLAY_MS))
    ticks = page.locator(".picture text.tick").all_inner_texts()
    assert len(ticks) > 3
    holder = page.locator(mark(page, "HNL"))
    before = float(holder.get_attribute("data-x") or 0)
    report(http, job_name, {"HNL": now_ms() + REPLAY_MS - 30 * scenes.MINUTE})
    expect(holder).not_to_have_attribute("data-x", str(before))
    assert float(holder.get_attribute("data-x") or 0) > before
    assert page.locator(".picture text.tick").all_inner_texts() == ticks


def test_the_lag_chart_shows_the_lag_and_the_holder_of_each_moment(
    tidegate: CoordinatorProcess, visitor: Visitor, fill: Fill, job_name: str
) -> None:
    page = open_job(visitor, tidegate, past_day(fill, job_name), "?range=1d")
    chart = page.locator("svg.lag")
    box = chart.bounding_box()
    assert box
    hours_ago = {8: ("HNL", r"lag 1 h 1\d min"), 3.5: ("SJU", r"lag 4\d min")}
    for hours, (name, lag) in hours_ago.items():
        page.mouse.move(box["x"] + box["width"] * (1 - hours / 24), box["y"] + 60)
        text = tip(page)
        assert re.search(rf"{lag}.*, held by {name}$", text), text
    page.mouse.move(2, 2)
    expect(page.locator("#tip")).to_be_hidden()
    expect(page.locator(".holders li").filter(has_text="HNL")).to_have_count(1)


@pytest.mark.parametrize(("shown", "hours"), [("15m", 0.25), ("1h", 1), ("6h", 6), ("1d", 24)])
def test_the_range_of_the_lag_chart_is_chosen(
    tidegate: CoordinatorProcess, visitor: Visitor, fill: Fill, job_name: str, shown: str, hours: float
) -> None:
    page = open_job(visitor, tidegate, past_day(fill, job_name))
    page.get_by_role("link", name=shown, exact=True).click()
    expect(page.locator(".ranges a[aria-current]")).to_have_text(shown)
    chart = page.locator("svg.lag")
    reach = int(chart.get_attribute("data-to") or 0) - int(chart.get_attribute("data-from") or 0)
    # The first sample may be a little later than the start. An update may come between the two reads.
    assert reach == pytest.approx(hours * scenes.HOUR, rel=0.01, abs=scenes.MINUTE)
    points = chart.locator("polyline").first.get_attribute("points") or ""
    assert float(points.split(",")[0]) < 6  # the line starts near the left end


def test_the_band_leads_to_the_history_of_its_time(
    tidegate: CoordinatorProcess, visitor: Visitor, fill: Fill, job_name: str
) -> None:
    """Which hour was held by whom, and what happened then."""
    page = open_job(visitor, tidegate, past_day(fill, job_name), "?range=6h")
    band = page.locator("svg.lag a[data-tip^='SJU: ']")
    band.locator("rect").click()
    expect(page.locator("#history")).to_contain_text("SJU")
    assert "before=" in page.url


def test_replayed_event_times_are_shown_as_times(
    tidegate: CoordinatorProcess, visitor: Visitor, fill: Fill, job_name: str
) -> None:
    page = open_job(visitor, tidegate, past_day(fill, job_name, REPLAY_MS), "?range=6h")
    expect(page.locator("#lag h2")).to_contain_text("without its lag, because the event times are old")
    expect(page.locator("main")).not_to_contain_text(re.compile(r"1[23] y"))
    expect(page.locator("#picture")).to_contain_text("is outside the chart")


def test_a_large_job_is_a_density_with_named_stragglers(
    tidegate: CoordinatorProcess, visitor: Visitor, fill: Fill, job_name: str
) -> None:
    fill(lambda store: scenes.many(store, job_name, now_ms(), 3000))
    page = open_job(visitor, tidegate, job_name)
    expect(page.locator(".picture a.mark")).to_have_count(5)  # the stragglers
    bars = page.locator(".picture g[data-tip]")
    assert 3 < bars.count() <= 60
    counted = sum(int((bar.get_attribute("data-tip") or "").split(" ")[0].replace(",", "")) for bar in bars.all())
    assert counted == 3000 - 3000 // 20
    expect(page.locator("#picture")).to_contain_text("sensor-01507")
    expect(page.locator(".substreams tbody tr").first).to_contain_text("sensor-01507")
    page.locator("#picture .note a").first.click()
    expect(page.locator(".substreams tbody tr").first).to_contain_text("sensor-01507")


def test_charts_fit_a_phone(tidegate: CoordinatorProcess, visitor: Visitor, fill: Fill, job_name: str) -> None:
    page = open_job(visitor, tidegate, past_day(fill, job_name), viewport=PHONE, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    for chart in ("svg.picture", "svg.lag"):
        box = page.locator(chart).bounding_box()
        assert box and box["width"] > 200


def test_names_in_charts_are_text(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, fill: Fill, job_name: str
) -> None:
    past_day(fill, job_name)
    report(http, job_name, {MARKUP: now_ms() - 5 * scenes.HOUR})
    page = open_job(visitor, tidegate, job_name)
    page.locator(f".picture a.mark[aria-label='{MARKUP}'] circle").hover()
    assert tip(page).startswith(MARKUP)
