"""The page of a job as printed."""

import re

from playwright.sync_api import expect

from tests.support.browser import SCREENS, Visitor
from tests.support.site import Site

MAX_PAGES = 4


def test_a_job_prints_on_few_pages(site: Site, visitor: Visitor) -> None:
    page = site.open(visitor, "running")
    SCREENS.mkdir(parents=True, exist_ok=True)
    document = page.pdf(path=SCREENS / "running.pdf", format="A4")
    pages = len(re.findall(rb"/Type\s*/Page\b", document))
    assert 1 <= pages <= MAX_PAGES


def test_print_has_no_controls_and_light_colors(site: Site, visitor: Visitor) -> None:
    page = site.open(visitor, "held", color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    for selector in ("#connection", "#times", ".actions", ".ranges", "form.filter", "td.links", ".hold .button"):
        expect(page.locator(selector).first).to_be_hidden()
    for selector in (".sentence", ".picture", ".chart", ".substreams", ".queries", ".history"):
        expect(page.locator(selector).first).to_be_visible()
    colors = "getComputedStyle(document.body).backgroundColor + getComputedStyle(document.body).color"
    assert page.evaluate(colors) == "rgb(255, 255, 255)rgb(0, 0, 0)"
