"""The history on the page of a job: runs of emissions, the filter by kind, and links to a moment."""

import re
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import httpx
from playwright.sync_api import Locator, expect

from tests.page.conftest import open_job
from tests.support.api import BASE, report
from tests.support.browser import PHONE, Visitor
from tidegate_spark.testing import CoordinatorProcess

MINUTE = 60_000
Make = Callable[..., str]


def emit(http: httpx.Client, job: str, emissions: range) -> None:
    """Report substreams. HNL holds the watermark, and each report moves it by a minute."""
    for number in emissions:
        at = BASE + number * MINUTE
        report(http, job, {"HNL": at, "BOS": at + 10 * MINUTE})


def hold(http: httpx.Client, job: str, reason: str) -> None:
    body = {"at_most": BASE + 10_000 * MINUTE, "reason": reason, "hold": reason}
    http.post(f"/v1/jobs/{job}/holds", json=body).raise_for_status()


def rows(page_rows: Locator) -> list[str]:
    """Return the kinds of the rows, which are in the second column."""
    return page_rows.locator(".kind").all_inner_texts()


def test_emissions_are_folded_and_can_be_unfolded(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, make: Make
) -> None:
    job = make()
    emit(http, job, range(5))
    hold(http, job, "audit")
    emit(http, job, range(5, 6))
    page = open_job(visitor, tidegate, job)
    shown = page.locator("#history li")
    expect(shown).to_have_count(4)
    assert rows(shown) == ["emission", "hold", "5 emissions", "created"]
    run = shown.nth(2)
    expect(run).to_contain_text(re.compile("W from 2013-01-07 09:59:59Z to 2013-01-07 10:03:59Z in .*; held by HNL"))
    emit(http, job, range(6, 9))
    expect(shown.first).to_contain_text("4 emissions")  # without a reload
    run.get_by_role("link", name="5 emissions").click()
    expect(shown).to_have_count(5)
    assert rows(shown) == ["emission"] * 5
    expect(shown.first).to_contain_text("2013-01-07 10:03:59Z; held by HNL")
    expect(page.get_by_label("Kind")).to_have_value("movements")


def test_a_link_shows_the_history_up_to_a_record(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, make: Make
) -> None:
    job = make()
    emit(http, job, range(1))
    for reason in ("first", "second", "third"):
        hold(http, job, reason)
    page = open_job(visitor, tidegate, job, "?name=B*&range=6h")
    shown = page.locator("#history li")
    expect(shown).to_have_count(5)
    shown.nth(1).locator("a.at").click()
    expect(page.locator("#history .selected")).to_contain_text(re.compile(r"Up to 2\d{3}-.*Z"))
    expect(shown.first).to_contain_text("second")
    assert urlsplit(page.url).fragment == "history"
    expect(page.locator("#connection")).to_have_text("live")
    hold(http, job, "fourth")
    expect(page.locator("#facts")).to_contain_text("fourth")
    expect(shown.first).to_contain_text("second")  # the moment stays
    page.get_by_role("link", name="Latest").click()
    expect(shown.first).to_contain_text("fourth")
    assert parse_qs(urlsplit(page.url).query) == {"name": ["B*"], "range": ["6h"]}


def test_the_history_is_filtered_by_kind(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, make: Make
) -> None:
    job = make()
    emit(http, job, range(40))
    hold(http, job, "audit")
    page = open_job(visitor, tidegate, job, "?state=any&sort=late")
    shown, kind = page.locator("#history li"), page.get_by_label("Kind")
    options = kind.locator("option").all_inner_texts()
    assert options[:3] == ["all", "watermark movements", "created"] and "movement of C" not in options
    kind.select_option("action")
    page.locator("#history").get_by_role("button", name="Show").click()
    expect(shown).to_have_count(1)
    expect(shown).to_contain_text("audit")
    assert parse_qs(urlsplit(page.url).query) == {"state": ["any"], "sort": ["late"], "kind": ["action"]}
    page.get_by_label("Kind").select_option("watermark movements")
    page.locator("#history").get_by_role("button", name="Show").click()
    expect(shown).to_have_count(30)
    page.get_by_role("link", name="Earlier").click()
    expect(shown).to_have_count(10)
    page.get_by_label("Kind").select_option("query joined")
    page.locator("#history").get_by_role("button", name="Show").click()
    expect(page.locator("#history")).to_contain_text("No records of this kind.")
    visitor.expect("422")
    page.goto(f"{tidegate.url}/jobs/{job}?kind=none")
    expect(page.locator("main")).to_contain_text("must be one of movements, created")


def test_links_keep_the_parameters_and_leave_out_defaults(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, make: Make
) -> None:
    job = make()
    report(http, job, {f"s{number:03}": BASE + number for number in range(60)})
    page = open_job(visitor, tidegate, job)

    def links() -> list[dict[str, list[str]]]:
        found = page.evaluate(
            "[...document.querySelectorAll('main a')].map((link) => link.getAttribute('href'))"
            ".filter((address) => !address.includes('/act/'))"
        )
        return [parse_qs(urlsplit(address).query, keep_blank_values=True) for address in found]

    plain = links()
    assert max(map(len, plain)) <= 2 and {} in plain  # {}: the current range
    assert {"sort": ["name"]} in plain and {"name": ["s000"], "state": ["any"]} in plain
    page.goto(f"{tidegate.url}/jobs/{job}?name=s*&state=any&sort=late&descending=true&range=6h&before=99999999999999-0")
    kept = {"name", "state", "sort", "descending", "range", "before"}
    dropped = [kept - set(link) for link in links()]
    allowed: list[set[str]] = [set(), {"name", "state"}, {"descending"}, {"before"}, {"range"}]
    assert all(one in allowed for one in dropped), dropped
    assert all(one in dropped for one in allowed), dropped


def test_a_page_with_many_emissions_is_short_on_a_phone(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, make: Make
) -> None:
    job = make()
    emit(http, job, range(200))
    report(http, job, {f"s{number:03}": BASE + 10_000 * MINUTE for number in range(10)})
    page = open_job(visitor, tidegate, job, viewport=PHONE, is_mobile=True, has_touch=True)
    expect(page.locator("#history li").first).to_contain_text("200 emissions")
    for address in ("", "?kind=movements"):
        page.goto(f"{tidegate.url}/jobs/{job}{address}")
        # All 200 would take four times as much. On a slow machine, some lines wrap, because their durations are longer.
        assert page.evaluate("document.documentElement.scrollHeight") < 7500, address
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], address


def test_sections_without_content_take_one_line(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, make: Make
) -> None:
    job = make()
    page = open_job(visitor, tidegate, job)
    reasons = {
        "completeness": "No delays reported.",
        "late": "No committed rows yet. Only batches count rows.",
        "queries": "No batches yet.",
        "substreams": "No substreams yet.",
    }
    for section, reason in reasons.items():
        found = page.locator(f"#{section}")
        expect(found).to_contain_text(reason)
        box = found.bounding_box()
        assert box is not None and box["height"] < 48, section
    report(http, job, {"BOS": BASE})
    expect(page.locator("#substreams tbody tr")).to_have_count(1)
