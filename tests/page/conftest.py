"""The operators' page in a real browser, on the real coordinator."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser

from tests.api.conftest import RULES, RUN
from tests.page.browser import NoChromium, Visitor, chromium, executable
from tidegate_spark.testing import CoordinatorProcess

HOUR = 3_600_000
BASE = 1_357_552_800_000  # 2013-01-07 10:00
FRAMES = {"throttle": {"type": "frame", "size_ms": HOUR, "slide_ms": HOUR, "offset_ms": 0}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for the tests of a file, no longer: while it is there, no other test can run an event loop in this thread."""
    try:
        executable()
    except NoChromium as absent:  # a desk may be without, but no build is
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(absent))
    with chromium() as found:
        yield found


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Visitor]:
    """Somebody who looks at the page; at the end nothing may have gone wrong in the browser."""
    found = Visitor(browser)
    yield found
    found.leave()
    assert found.wrong == []


@pytest.fixture
def http(tidegate: CoordinatorProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tidegate.url, timeout=30) as client:
        yield client


Report = Callable[..., None]


@pytest.fixture
def make(http: httpx.Client, job: str) -> Callable[..., str]:
    """Creates this test's job; returns its name."""

    def created(**rules: Any) -> str:
        return create(http, job, **rules)

    return created


def create(http: httpx.Client, job: str, **rules: Any) -> str:
    http.put(f"/v1/jobs/{job}", json=RULES | rules, headers={"If-None-Match": "*"}).raise_for_status()
    return job


def report(http: httpx.Client, job: str, tops: dict[str, int]) -> None:
    """Without a batch."""
    body = {"substreams": list(tops), "event_times": list(tops.values())}
    http.post(f"/v1/jobs/{job}:report", json=body).raise_for_status()


def batch(http: httpx.Client, job: str, number: int, tops: dict[str, int], *, open_: bool = False) -> None:
    """A whole batch of the query ``departures``."""
    path = f"/v1/jobs/{job}/queries/departures/batches/{number}"
    http.put(path, json=RUN).raise_for_status()
    reference = {"query": "departures", **RUN, "batch_id": number, "partition": 0}
    body = {"substreams": list(tops), "event_times": list(tops.values()), "batch": reference}
    http.post(f"/v1/jobs/{job}:report", json=body).raise_for_status()
    if not open_:
        columns = {"on_time": [40] * len(tops), "late": [2] * len(tops), "null_event_time": [0] * len(tops)}
        rows = {"rule": "pin", "substreams": list(tops), **columns}
        http.post(f"{path}:commit", json={**RUN, "rows": rows}).raise_for_status()
