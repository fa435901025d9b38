"""The page of a job: the explanation of the watermark, live updates and actions."""

import re
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import expect

from tests.page.conftest import choose, open_job
from tests.support.api import BASE, FRAMES, HOUR, batch, report
from tests.support.browser import PHONE, Visitor
from tidegate_spark.testing import CoordinatorProcess

MARKUP = "<img src=x onerror=alert(1)>"
SLOW = "ANC"


@pytest.fixture
def held(http: httpx.Client, make: Callable[..., str]) -> str:
    """Create a job with three committed batches, in which ANC is two hours behind the other substreams."""
    job = make(idle_timeout_ms=10 * HOUR, **FRAMES)
    for number in range(3):
        at = BASE + number * HOUR
        batch(http, job, number, {SLOW: at - 2 * HOUR, "BOS": at, MARKUP: at + 60_000})
    return job


def test_the_page_names_the_substream_that_holds_the_watermark(
    tidegate: CoordinatorProcess, visitor: Visitor, held: str
) -> None:
    page = open_job(visitor, tidegate, held)
    sentence = page.locator(".sentence")
    expect(sentence).to_contain_text(re.compile(r"2013-01-07 09:00:00Z(; held)? by ANC of departures, (the|silent)"))
    expect(sentence).to_contain_text("it becomes idle in 9 h 59 min")
    expect(page.locator("#headline")).to_contain_text("If ANC of departures is evicted, the watermark moves to")
    expect(page.locator("#headline")).to_contain_text("held by BOS of departures")
    expect(page.locator("#headline")).to_contain_text(re.compile(r"The watermark last moved \d+ m?s ago, at 20\d\d-"))
    row = page.locator("tr.holds")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("ANC")
    expect(row).to_contain_text("holds the watermark")
    expect(page.locator("#facts")).to_contain_text("18")  # late rows: 2 of 3 substreams in 3 batches
    first = page.locator(".substreams tbody tr").first
    expect(first).to_contain_text("ANC")  # the slowest substream comes first


def test_the_watermark_moves_without_a_reload(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, held: str
) -> None:
    page = open_job(visitor, tidegate, held)
    page.evaluate("window.loaded = 'once'")
    emitted = page.locator(".picture .line.watermark tspan")
    expect(emitted).to_have_text("2013-01-07 09:00:00Z")
    batch(http, held, 3, {SLOW: BASE + 3 * HOUR, "BOS": BASE + 4 * HOUR, MARKUP: BASE + 4 * HOUR})
    expect(emitted).to_have_text("2013-01-07 12:00:00Z")
    expect(page.locator("#history li.emission").first).to_contain_text("2013-01-07 12:00:00Z")
    expect(page.locator("#queries")).to_contain_text("no")
    assert page.evaluate("window.loaded") == "once"


def test_an_eviction_needs_a_reason_and_is_recorded(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, held: str
) -> None:
    """The form shows the effect of the action and requires a reason. The history contains the action."""
    page = open_job(visitor, tidegate, held)
    choose(page.locator("tr.holds"), "Evict")
    expect(page.locator("h1")).to_have_text("Evict ANC")
    main = page.locator("main")
    expect(main).to_contain_text("Afterwards: 2013-01-07 11:00:00Z, held by BOS of departures")
    page.get_by_role("button", name="Evict").click()
    expect(page.locator("h1")).to_have_text("Evict ANC")  # the form requires a reason
    assert http.get(f"/v1/jobs/{held}").json()["substreams"]["active"] == 3
    page.get_by_label("Reason").fill("the <b>station</b> is closed")
    page.get_by_role("button", name="Evict").click()
    expect(page.locator(".banner.good")).to_have_text("The substream is evicted.")
    expect(page.locator(".sentence")).to_contain_text(re.compile("2013-01-07 11:00:00Z(; held)? by BOS"))
    expect(page.locator("#history li.action").first).to_contain_text("the <b>station</b> is closed")
    record = http.get(f"/v1/jobs/{held}/history", params={"kind": "action"}).json()["records"][0]
    assert (record["action"], record["substreams"]) == ("evict", ["departures/ANC"])


def test_every_action_does_what_it_says(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, held: str
) -> None:
    page = open_job(visitor, tidegate, held)

    def do(button: str, done: str, **fields: str) -> None:
        for label, value in {"Reason": "a test", **fields}.items():
            page.get_by_label(label).fill(value)
        page.get_by_role("button", name=button).click()
        expect(page.locator(".banner.good")).to_have_text(done)

    choose(page.get_by_role("row", name=re.compile("BOS")), "Declare idle")
    expect(page.locator("main")).to_contain_text("The substream does not hold the watermark")
    do("Declare idle", "The substream is idle.")
    choose(page.get_by_role("row", name=re.compile("ANC")), "Mark as done")
    do("Mark as done", "The substream is done.")
    page.get_by_role("link", name="Hold watermark").click()
    page.get_by_label("At most").fill("tomorrow")
    page.get_by_label("Reason").fill("a test")
    page.get_by_role("button", name="Hold watermark").click()
    visitor.expect("422")
    expect(page.locator("main .banner.bad")).to_contain_text(
        "at_most: 'tomorrow' is not a time: write 2013-01-14T00:00Z"
    )
    do("Hold watermark", "The watermark is held.", **{"At most": "2013-01-20", "Duration": "2h", "Name": "audit"})
    expect(page.locator("#facts")).to_contain_text("Hold audit at 2013-01-20 00:00:00Z")
    page.get_by_role("link", name="Release").click()
    do("Release hold", "The hold is released.")
    choose(page.locator("#queries tbody tr"), "Retire query")
    do("Retire query", "The query is retired.", Successor="arrivals")
    choose(page.locator("#headline"), "Complete job")
    do("Complete job", "The job is complete.")
    expect(page.locator(".badge").first).to_have_text("complete")
    choose(page.locator("#headline"), "Reopen job")
    do("Reopen job", "The job is open again.")
    choose(page.locator("#headline"), "Reset job")
    page.get_by_label("Name of the job").fill("another")
    page.get_by_label("Reason").fill("a test")
    page.get_by_role("button", name="Reset job").click()
    visitor.expect("422")
    expect(page.locator("main .banner.bad")).to_contain_text(f"type {held}")
    do("Reset job", "The job is reset.", **{"Name of the job": held})
    records = http.get(f"/v1/jobs/{held}/history", params={"kind": "action"}).json()["records"]
    assert [record["action"] for record in records[::-1]] == [
        "idle",
        "done",
        "hold",
        "release",
        "hand_over",  # a retirement with a successor
        "complete",
        "reopen",
        "reset",
    ]
    assert {record["reason"] for record in records} == {"a test"}


def test_markup_in_names_is_shown_as_text(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, held: str
) -> None:
    """Markup in names and reasons is shown as text. The content security policy blocks scripts that get through."""
    hold = {"at_most": BASE, "reason": MARKUP, "hold": "mine"}
    http.post(f"/v1/jobs/{held}/holds", json=hold).raise_for_status()
    idle = {"substreams": [MARKUP], "query": "departures", "reason": f"</li><script>alert(2)</script>{MARKUP}"}
    http.post(f"/v1/jobs/{held}/substreams:idle", json=idle).raise_for_status()
    page = open_job(visitor, tidegate, held, "?state=any")
    row = page.get_by_role("row", name=re.compile(re.escape(MARKUP)))
    expect(row).to_contain_text("idle")
    expect(page.locator("#facts")).to_contain_text(MARKUP)
    expect(page.locator("#history")).to_contain_text(f"</li><script>alert(2)</script>{MARKUP}")
    choose(row, "Evict")
    expect(page.locator("h1")).to_have_text(f"Evict {MARKUP}")
    assert page.locator("main img, main script").count() == 0
    page.goto(f"{tidegate.url}/?name={MARKUP}")
    expect(page.locator("#jobs")).to_contain_text(f"jobs: name {MARKUP} Show all jobs")
    # The policy also stops markup that a script inserts into the page.
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = 1\">')")
    page.evaluate("document.body.append(document.createElement('script'))")
    page.evaluate("document.body.lastChild.textContent = 'window.ran = 1'")
    page.wait_for_timeout(300)
    assert page.evaluate("window.ran") is None
    assert any("Content Security Policy" in said for said in visitor.wrong)
    visitor.expect("Content Security Policy|404")


def test_times_in_utc_or_in_local_time(tidegate: CoordinatorProcess, visitor: Visitor, held: str) -> None:
    """The page remembers the choice across reloads and updates."""
    page = open_job(visitor, tidegate, held, timezone_id="America/Anchorage")
    emitted = page.locator(".picture .line.watermark tspan")
    expect(emitted).to_have_text("2013-01-07 09:00:00Z")
    page.get_by_role("button", name="UTC").click()
    expect(emitted).to_have_text("2013-01-07 00:00:00")
    expect(page.get_by_role("button", name="America/Anchorage")).to_be_visible()
    page.reload()
    expect(page.locator("#connection")).to_have_text("live")
    expect(emitted).to_have_text("2013-01-07 00:00:00")
    expect(page.locator(".sentence time").first).to_have_text("2013-01-07 00:00:00")


def test_the_table_is_sorted_and_filtered(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, held: str
) -> None:
    page = open_job(visitor, tidegate, held)
    names = page.locator(".substreams tbody th")
    page.get_by_role("link", name="Substream", exact=True).click()
    expect(names).to_have_text(["ANC", MARKUP, "BOS"])  # the holder is the first row in each order
    page.get_by_role("link", name="Substream ↑").click()
    expect(names).to_have_text(["ANC", "BOS", MARKUP])
    page.get_by_label("Name").fill("*N*")
    page.locator("#substreams").get_by_role("button", name="Show").click()
    expect(names).to_have_text(["ANC"])
    # The chosen state remains when the table is updated, even if the focus is elsewhere.
    page.get_by_label("State").select_option("done")
    page.evaluate("document.activeElement.blur()")
    shown = page.locator(".substreams tbody tr").first.element_handle()
    assert shown is not None
    batch(http, held, 3, {SLOW: BASE + HOUR, "BOS": BASE + 4 * HOUR, MARKUP: BASE + 4 * HOUR})
    page.wait_for_function("row => !row.isConnected", arg=shown)
    expect(page.get_by_label("State")).to_have_value("done")
    page.locator("#substreams").get_by_role("button", name="Show").click()
    expect(page.locator("#substreams")).to_contain_text("0 of 3 substreams: name *N*, state done")


def test_more_substreams_than_a_page(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, make: Callable[..., str]
) -> None:
    job = make()
    report(http, job, {f"s{number:03}": BASE + number for number in range(120)})
    page = open_job(visitor, tidegate, job)
    rows = page.locator(".substreams tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("link", name="More").click()
    expect(rows.first).to_contain_text("s050")
    page.get_by_role("link", name="More").click()
    expect(rows).to_have_count(20)
    page.get_by_role("link", name="First").click()
    expect(rows.first).to_contain_text("s000")


def test_an_action_by_keyboard_alone(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, held: str
) -> None:
    """A user can complete an action by keyboard, while updates replace the table around the focus."""
    page = open_job(visitor, tidegate, held)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    menu = page.locator("tr.holds summary")
    for _ in range(60):
        page.keyboard.press("Tab")
        if menu.evaluate("one => one === document.activeElement"):
            break
    expect(menu).to_be_focused()
    shown = page.locator("tr.holds").element_handle()
    batch(http, held, 3, {SLOW: BASE + HOUR, "BOS": BASE + 4 * HOUR})
    page.wait_for_function("row => !row.isConnected", arg=shown)
    expect(menu).to_be_focused()
    page.keyboard.press("Enter")
    link = page.locator("tr.holds").get_by_role("link", name="Evict")
    for _ in range(3):
        page.keyboard.press("Tab")
    expect(link).to_be_focused()
    batch(http, held, 4, {SLOW: BASE + 2 * HOUR, "BOS": BASE + 4 * HOUR})
    expect(page.locator(".sentence")).to_contain_text("2013-01-07 11:00:00Z")
    expect(link).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Reason")).to_be_focused()
    page.keyboard.type("by hand")
    page.keyboard.press("Enter")
    expect(page.locator(".banner.good")).to_have_text("The substream is evicted.")


def test_updates_keep_the_text_that_is_being_typed(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, held: str
) -> None:
    page = open_job(visitor, tidegate, held)
    page.get_by_label("Name").fill("B")
    batch(http, held, 3, {SLOW: BASE + 3 * HOUR, "BOS": BASE + 4 * HOUR, MARKUP: BASE + 4 * HOUR})
    expect(page.locator(".picture .line.watermark tspan")).to_have_text("2013-01-07 12:00:00Z")
    expect(page.get_by_label("Name")).to_have_value("B")
    page.get_by_label("Name").blur()
    expect(page.locator(".substreams tbody tr").first).to_contain_text("2013-01-07 13:00:00Z")


def test_the_page_works_without_scripts(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, held: str
) -> None:
    """Without scripts, the page is complete and its actions work, but it does not update itself."""
    page = open_job(visitor, tidegate, held, java_script_enabled=False)
    expect(page.locator(".sentence")).to_contain_text(re.compile("2013-01-07 09:00:00Z(; held)? by ANC"))
    choose(page.locator("tr.holds"), "Declare idle")
    page.get_by_label("Reason").fill("no scripts")
    page.get_by_role("button", name="Declare idle").click()
    expect(page.locator(".sentence")).to_contain_text(re.compile("2013-01-07 11:00:00Z(; held)? by BOS"))


def test_pages_fit_a_phone(tidegate: CoordinatorProcess, visitor: Visitor, held: str) -> None:
    """No page is wider than the screen, and links are large enough to touch."""
    page = open_job(visitor, tidegate, held, viewport=PHONE, is_mobile=True, has_touch=True)
    for address in (f"/jobs/{held}", "/", f"/jobs/{held}/act/evict?query=departures&substream={SLOW}"):
        page.goto(tidegate.url + address)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], address
    page.goto(f"{tidegate.url}/jobs/{held}")
    page.locator("tr.holds summary").click()  # an update does not replace a table with an open menu
    for target in (page.locator("tr.holds summary"), page.locator("tr.holds").get_by_role("link", name="Evict")):
        box = target.bounding_box()
        assert box is not None and box["width"] >= 24 and box["height"] >= 24


def test_event_times_that_are_not_dates(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, make: Callable[..., str]
) -> None:
    """Event times outside the years 1 to 9999 are shown as numbers, in UTC and in local time."""
    job = make(max_future_skew_ms=None)
    report(http, job, {"a": -9_000_000_000_000_000, "b": 2**53 - 1})
    page = open_job(visitor, tidegate, job, timezone_id="Asia/Kolkata")
    for _ in range(2):
        expect(page.locator(".picture .line.watermark text")).to_have_text("W -9000000000000010")
        page.get_by_role("button", name=re.compile("UTC|Kolkata|Calcutta")).click()


def test_only_event_times_from_the_future(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, make: Callable[..., str]
) -> None:
    """Microseconds sent as milliseconds are ignored, so the page must say why the job has no watermark."""
    job = make()
    report(http, job, {"a": 2**53 - 1})
    page = open_job(visitor, tidegate, job)
    expect(page.locator(".sentence")).to_contain_text("event times too far in the future, which are ignored")
    expect(page.locator("#facts")).to_contain_text("1 in the future")
