"""Accessibility of the operators' page: the rules of axe-core, contrast of charts, and spoken changes."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.page.conftest import open_job
from tests.support.api import BASE, HOUR, create, report
from tests.support.browser import DESK, PHONE, Visitor
from tests.support.site import STATES, Site
from tidegate_spark.testing import CoordinatorProcess

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
OPTIONS = {"runOnly": {"type": "tag", "values": RULES}, "rules": {"target-size": {"enabled": True}}}
SCHEMES: Sequence[Literal["light", "dark"]] = ("light", "dark")
CHART_COLORS = ("sea", "pinned", "open", "bad", "good", "violet")
CONTRAST_OF_GRAPHICS = 3.0
"""Minimum contrast of graphics with their background (WCAG 2.1, success criterion 1.4.11)."""


@pytest.mark.parametrize("name", STATES)
def test_no_rule_is_violated(site: Site, visitor: Visitor, name: str) -> None:
    check(site.open(visitor, name))


def test_no_rule_is_violated_while_updates_have_stopped(site: Site, visitor: Visitor) -> None:
    visitor.expect("ERR_")
    page = site.open(visitor, "running")
    page.route("**/live?*", lambda route: route.abort())
    page.reload()
    expect(page.locator("#trouble")).to_contain_text("Not connected to the coordinator")
    check(page)


def check(page: Page) -> None:
    """Check a page in light and dark mode, on a desktop and on a phone."""
    for size in (DESK, PHONE):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            assert violations(page) == [], (size, scheme)


def violations(page: Page) -> list[Any]:
    found = Axe().run(page, options=OPTIONS).response["violations"]
    return [(rule["id"], node["target"], node["failureSummary"]) for rule in found for node in rule["nodes"]]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_charts_stand_out(site: Site, visitor: Visitor, scheme: str) -> None:
    """axe-core does not measure the contrast of charts, nor of their labels."""
    page = site.open(visitor, "running", color_scheme=scheme)
    values = page.evaluate(
        "names => names.map(name => getComputedStyle(document.documentElement).getPropertyValue('--' + name))",
        ["card", "soft", *CHART_COLORS],
    )
    card, soft, *colors = map(luminance, values)
    assert contrast(card, soft) >= 4.5
    weak = [
        name for name, color in zip(CHART_COLORS, colors, strict=True) if contrast(card, color) < CONTRAST_OF_GRAPHICS
    ]
    assert weak == []


def luminance(color: str) -> float:
    """Return the relative luminance of a color ``#rrggbb``, as WCAG defines it."""
    parts = [int(part, 16) / 255 for part in re.findall(r"[0-9a-f]{2}", color)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: float, other: float) -> float:
    low, high = sorted((one, other))
    return (high + 0.05) / (low + 0.05)


def test_a_change_of_health_is_spoken(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, make: Callable[..., str]
) -> None:
    """The headline itself is no live region, because its durations change each second."""
    job = make()
    page = open_job(visitor, tidegate, job)
    spoken = page.get_by_role("status").and_(page.locator("#health"))
    expect(spoken).to_have_text("")
    report(http, job, {"BOS": BASE, "HNL": BASE - HOUR})
    expect(spoken).to_contain_text("running Complete up to 2013-01-07 08:59:59Z; held by HNL")
    assert page.locator("#headline[aria-live]").count() == 0


def test_an_error_page_loads_the_job_once_it_exists(
    tidegate: CoordinatorProcess, visitor: Visitor, http: httpx.Client, job_name: str
) -> None:
    """The page does not load again before the answer changes. Without scripts, it loads again every five seconds."""
    visitor.expect("404")
    page = visitor.window()
    page.goto(f"{tidegate.url}/jobs/{job_name}")
    expect(page.locator("h1")).to_have_text("Job not found")
    page.evaluate("window.loaded = 'once'")
    with page.expect_response(re.compile(job_name)) as answer:
        pass
    assert answer.value.status == 404
    assert page.evaluate("window.loaded") == "once"
    create(http, job_name)
    expect(page.locator("h1")).to_have_text(job_name)
    plain = visitor.window(java_script_enabled=False)
    plain.goto(f"{tidegate.url}/jobs/{job_name}-none")
    assert plain.locator("meta[http-equiv=refresh]").get_attribute("content") == "5"
