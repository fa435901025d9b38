"""The table of substreams on the page of a job: the holder, the filter, and the menus of the rows."""

import re
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import expect

from tests.page.conftest import open_job
from tests.support.api import BASE, HOUR, batch, report
from tests.support.browser import Visitor
from tidegate.store.reads import ROWS_AT_ONCE
from tidegate_spark.testing import CoordinatorProcess

Make = Callable[..., str]
SIZES = (120, ROWS_AT_ONCE + 40)
"""A job whose substreams the page reads at once, and a larger job."""


@pytest.mark.parametrize("size", SIZES)
def test_the_holder_is_always_the_first_row(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, make: Make, size: int
) -> None:
    job = make()
    report(http, job, {f"s{number:03}": BASE + (number - 60) % size for number in range(size)})  # s060 is slowest
    page = open_job(visitor, tidegate, job)
    rows, holder = page.locator(".substreams tbody tr"), page.locator(".substreams tbody tr.holds")
    for address in ("", "?sort=name&descending=true", "?state=any&sort=late", "?name=s1*", "?state=idle"):
        page.goto(f"{tidegate.url}/jobs/{job}{address}")
        expect(rows.first).to_contain_text("s060")
        expect(rows.first).to_contain_text("holds the watermark")
        expect(holder).to_have_count(1)
    page.goto(f"{tidegate.url}/jobs/{job}?sort=name&state=any")
    names = page.locator(".substreams tbody th")
    found = names.all_inner_texts()
    while page.locator("#substreams").get_by_role("link", name="More").count():
        page.locator("#substreams").get_by_role("link", name="More").click()
        expect(names.first).not_to_have_text(found[0])
        expect(holder).to_have_count(0)
        found += names.all_inner_texts()
        expect(names.first).to_have_text(found[-names.count()])
    assert len(found) == len(set(found))
    assert found[0] == "s060" and set(found) == {f"s{number:03}" for number in range(size)}


@pytest.mark.parametrize("size", SIZES)
def test_the_filter_states_what_it_selects(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, make: Make, size: int
) -> None:
    job = make()
    report(http, job, {f"s{number:03}": BASE + number for number in range(size)})
    names = [f"s{number:03}" for number in range(100, 106)]
    body = {"substreams": names, "query": "", "reason": "a test"}
    http.post(f"/v1/jobs/{job}/substreams:idle", json=body).raise_for_status()
    page = open_job(visitor, tidegate, job, "?range=6h")
    selected = page.locator("#substreams .selected")
    expect(selected).to_have_count(0)
    page.get_by_label("Name").fill("s10*")
    page.locator("#substreams").get_by_role("button", name="Show").click()
    expect(selected).to_contain_text(f"4 of {size} substreams: name s10*, active or blocked")
    page.get_by_label("State").select_option("idle")
    page.locator("#substreams").get_by_role("button", name="Show").click()
    expect(selected).to_contain_text(f"6 of {size} substreams: name s10*, state idle")
    page.get_by_label("State").select_option("any")
    page.locator("#substreams").get_by_role("button", name="Show").click()
    expect(selected).to_contain_text(f"10 of {size} substreams: name s10*, any state")
    page.get_by_role("link", name="Clear").click()
    expect(selected).to_have_count(0)
    assert page.url.endswith("?range=6h#substreams")


def test_menus_close_and_updates_wait_for_them(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, make: Make
) -> None:
    job = make()
    batch(http, job, 0, {"ANC": BASE, "BOS": BASE + HOUR})
    page = open_job(visitor, tidegate, job)
    first, second = (page.locator(".substreams tbody tr").nth(number) for number in (0, 1))
    first.locator("summary").click()
    evict = first.get_by_role("link", name="Evict…")
    expect(evict).to_be_visible()
    batch(http, job, 1, {"ANC": BASE + HOUR, "BOS": BASE + 2 * HOUR})
    expect(page.locator(".sentence")).to_contain_text(re.compile("2013-01-07 10:59:59Z(; held)? by ANC"))
    expect(evict).to_be_visible()
    expect(first).to_contain_text("2013-01-07 09:59:59Z")  # the table waits for the menu
    page.keyboard.press("Escape")
    expect(evict).to_be_hidden()
    expect(first.locator("summary")).to_be_focused()
    expect(first).to_contain_text("2013-01-07 10:59:59Z")
    first.locator("summary").click()
    second.locator("summary").click()
    expect(evict).to_be_hidden()
    expect(second.get_by_role("link", name="Evict…")).to_be_visible()
    page.locator("h1").click()
    expect(page.locator("details[open]")).to_have_count(0)
    more = page.locator("#headline summary")
    more.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Reset job…")).to_be_visible()
    batch(http, job, 2, {"ANC": BASE + 2 * HOUR, "BOS": BASE + 3 * HOUR})
    expect(page.locator("#history")).to_contain_text("3 emissions")
    expect(page.locator(".sentence")).to_contain_text(re.compile("2013-01-07 10:59:59Z(; held)? by ANC"))
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")  # leaves the menu, which closes
    expect(page.locator(".sentence")).to_contain_text(re.compile("2013-01-07 11:59:59Z(; held)? by ANC"))
    expect(page.locator("details[open]")).to_have_count(0)
