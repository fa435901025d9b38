"""The operators' page in Firefox."""

import os
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.support.api import BASE, HOUR, report
from tests.support.browser import SCREENS
from tests.support.firefox import Firefox, NoFirefox, executable, firefox
from tests.support.waiting import until
from tidegate_spark.testing import CoordinatorProcess

SIZES = """["picture", "lag"].flatMap(name => {
    const box = document.querySelector(`svg.${name}`).getBoundingClientRect();
    return [box.width, box.height];
})"""


@pytest.fixture
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    """Yield a window. At the end, the test fails if Firefox reported an error."""
    try:
        executable()
    except NoFirefox as absent:  # only CI requires Firefox
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(absent))
    with firefox(tmp_path_factory.mktemp("firefox")) as found:
        yield found
    assert found.errors == []


def test_the_page_in_firefox(
    tidegate: CoordinatorProcess, window: Firefox, http: httpx.Client, make: Callable[..., str]
) -> None:
    """Firefox shows the list and a job, and updates the job without a reload."""
    job = make()
    report(http, job, {"BOS": BASE, "HNL": BASE - HOUR})
    window.open(tidegate.url)
    is_live = "document.getElementById('connection').textContent === 'live'"
    until(lambda: bool(window.evaluate(is_live)), "the list is live")
    assert job in window.evaluate("document.getElementById('jobs').textContent")
    window.open(f"{tidegate.url}/jobs/{job}")
    until(lambda: bool(window.evaluate(is_live)), "the job is live")
    window.evaluate("window.loaded = 'once'")
    assert "2013-01-07 08:59:59Z" in headline(window)
    report(http, job, {"BOS": BASE + HOUR, "HNL": BASE})
    until(lambda: "2013-01-07 09:59:59Z" in headline(window), "the watermark moves")
    assert window.evaluate("window.loaded") == "once"
    until(lambda: bool(window.evaluate("document.querySelector('svg.lag') !== null")), "the lag chart has samples")
    assert all(size > 100 for size in window.evaluate(SIZES))
    assert window.evaluate("document.querySelectorAll('.picture .mark circle').length") == 2
    SCREENS.mkdir(parents=True, exist_ok=True)
    window.screenshot(SCREENS / "firefox-job.png")


def headline(window: Firefox) -> str:
    text: str = window.evaluate("document.querySelector('.sentence').textContent")
    return text
