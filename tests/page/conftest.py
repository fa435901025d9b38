"""Fixtures for tests of the operators' page: a real browser and a real coordinator."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.support.api import create
from tests.support.browser import NoChromium, Visitor, chromium, executable
from tests.support.site import Site, run_site
from tidegate_spark.testing import CoordinatorProcess


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield a browser for the tests of a file. While it runs, no other test can run an event loop in this thread."""
    try:
        executable()
    except NoChromium as absent:  # only CI requires a browser
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(absent))
    with chromium() as found:
        yield found


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Visitor]:
    """Yield a visitor of the page. At the end, the test fails if the browser reported an unexpected error."""
    found = Visitor(browser)
    yield found
    found.leave()
    assert found.wrong == []


@pytest.fixture
def http(tidegate: CoordinatorProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tidegate.url, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield coordinators that have a page in each of its states."""
    with run_site(tmp_path_factory.mktemp("site")) as found:
        yield found


Report = Callable[..., None]


@pytest.fixture
def make(http: httpx.Client, job_name: str) -> Callable[..., str]:
    """Return a function that creates the job of this test and returns its name."""

    def created(**config: Any) -> str:
        return create(http, job_name, **config)

    return created


def open_job(visitor: Visitor, tidegate: CoordinatorProcess, job: str, query: str = "", **options: object) -> Page:
    page = visitor.window(**options)
    page.goto(f"{tidegate.url}/jobs/{job}{query}")
    if options.get("java_script_enabled", True):
        expect(page.locator("#connection")).to_have_text("live")
    return page


def choose(within: Locator, action: str) -> None:
    """Open the menu of an element, and follow the link to an action."""
    within.locator("summary").click()
    within.get_by_role("link", name=action).click()
