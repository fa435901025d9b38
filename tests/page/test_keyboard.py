"""Use of a job's page by keyboard alone."""

import re
from collections.abc import Iterator

import httpx
from playwright.sync_api import Locator, Page, expect

from tests.page.conftest import open_job
from tests.support.api import BASE, FRAMES, HOUR, batch, create
from tests.support.browser import Visitor
from tidegate_spark.testing import CoordinatorProcess

MAX_STOPS = 120
FOCUSED = """() => {
    const one = document.activeElement, style = getComputedStyle(one);
    return {
        stop: `${one.localName} ${one.getAttribute("href") || one.name || one.textContent.trim()}`,
        isVisible: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
        isOnScreen: one.getBoundingClientRect().right > 0,
    };
}"""


def held(http: httpx.Client, job: str) -> str:
    """Create a job with a hold and three substreams. ANC holds the watermark."""
    create(http, job, idle_timeout_ms=10 * HOUR, **FRAMES)
    for number in range(3):
        at = BASE + number * HOUR
        batch(http, job, number, {"ANC": at - 2 * HOUR, "BOS": at, "HNL": at - HOUR})
    hold = {"at_most": BASE + 9 * HOUR, "reason": "an audit", "hold": "audit"}
    http.post(f"/v1/jobs/{job}/holds", json=hold).raise_for_status()
    return job


def stops(page: Page) -> Iterator[str]:
    """Press Tab until the focus leaves the page; yield each element that gets the focus."""
    for _ in range(MAX_STOPS):
        page.keyboard.press("Tab")
        found = page.evaluate(FOCUSED)
        if found["stop"].startswith("body"):
            return
        assert found["isVisible"], f"no visible focus: {found}"
        assert found["isOnScreen"], f"focus outside the screen: {found}"
        yield found["stop"]
    raise AssertionError(f"the focus did not leave the page after {MAX_STOPS} stops")


def tab_to(page: Page, target: Locator) -> None:
    for _ in stops(page):
        if target.evaluate("one => one === document.activeElement"):
            return
    raise AssertionError(f"Tab does not reach {target}")


def follow(page: Page) -> None:
    """Press Enter on a link or in a form of the job's page, and wait for the next page to be live."""
    with page.expect_event("load"):
        page.keyboard.press("Enter")
    expect(page.locator("#connection")).to_have_text("live")


def test_tab_reaches_every_control(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, job_name: str
) -> None:
    """The focus is visible at each stop, and the stops are in the order of the page."""
    job = held(http, job_name)
    page = open_job(visitor, tidegate, job)
    found = list(stops(page))
    in_order = [
        "a #main",
        "a /",
        "button UTC",
        f"a /jobs/{job}/act/hold",
        "summary More",
        f"a /jobs/{job}?name=ANC&state=any#substreams",
        f"a /jobs/{job}?range=15m#lag",
        f"a /jobs/{job}/act/release?hold=audit",
        "input name",
        "select state",
        "button Show",
        f"a /jobs/{job}?sort=late#substreams",
        "summary Actions",
        "select kind",
    ]
    assert list(dict.fromkeys(stop for stop in found if stop in in_order)) == in_order


def test_the_skip_link_leads_to_the_content(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, job_name: str
) -> None:
    page = open_job(visitor, tidegate, held(http, job_name))
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_in_viewport()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Hold watermark")).to_be_focused()


def test_filters_ranges_and_sorting_by_keyboard(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, job_name: str
) -> None:
    page = open_job(visitor, tidegate, held(http, job_name))
    names = page.locator(".substreams tbody th")
    tab_to(page, page.get_by_role("link", name="15m"))
    follow(page)
    expect(page.locator(".ranges [aria-current]")).to_have_text("15m")
    tab_to(page, page.get_by_role("link", name="Substream", exact=True))
    follow(page)
    expect(names).to_have_text(["ANC", "BOS", "HNL"])
    tab_to(page, page.get_by_label("Name"))
    page.keyboard.type("B*")
    follow(page)
    expect(names).to_have_text(["ANC", "BOS"])  # the holder, and the match


def test_the_focus_survives_updates(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, job_name: str
) -> None:
    """Updates keep the focus on links and buttons, and do not scroll back to them."""
    job = held(http, job_name)
    page = open_job(visitor, tidegate, job)
    targets = (
        page.locator("tr.holds summary"),
        page.locator("#substreams").get_by_role("button", name="Show"),
        page.locator(".picture a.mark.holds"),
    )
    for number, target in enumerate(targets, start=3):
        target.focus()
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        scrolled = page.evaluate("scrollY")
        at = BASE + number * HOUR
        batch(http, job, number, {"ANC": at - 2 * HOUR, "BOS": at, "HNL": at - HOUR})
        expect(page.locator(".queries tbody td").first).to_have_text(str(number))
        expect(target).to_be_focused()
        assert scrolled > 0
        assert page.evaluate("scrollY") >= scrolled


def test_escape_hides_a_tooltip(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, job_name: str
) -> None:
    """The tooltip of the focused mark stays hidden after Escape, also when the picture is updated."""
    job = held(http, job_name)
    page = open_job(visitor, tidegate, job)
    mark = page.locator(".picture a.mark.holds")
    tab_to(page, mark)
    tip = page.get_by_role("tooltip")
    expect(tip).to_have_text(re.compile(r"ANC of departures, active: watermark .*, holds the watermark"))
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    batch(http, job, 3, {"ANC": BASE + HOUR, "BOS": BASE + 3 * HOUR, "HNL": BASE + 2 * HOUR})
    expect(page.locator(".queries tbody td").first).to_have_text("3")
    expect(mark).to_be_focused()
    expect(tip).to_be_hidden()


def test_an_action_by_keyboard(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, job_name: str
) -> None:
    page = open_job(visitor, tidegate, held(http, job_name))
    tab_to(page, page.get_by_role("link", name="Release hold"))
    page.keyboard.press("Enter")
    expect(page.get_by_label("Reason")).to_be_focused()
    page.keyboard.type("the audit is over")
    tab_to(page, page.get_by_role("button", name="Release hold"))
    page.keyboard.press("Enter")
    expect(page.locator(".banner.good")).to_have_text("The hold is released.")
