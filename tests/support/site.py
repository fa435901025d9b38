"""The operators' page in each of its states: a coordinator with jobs from ``scenes``, and an empty one with keys."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Page

from tests.support import scenes
from tests.support.api import BASE, FRAMES, HOUR, batch, create, report
from tests.support.browser import Visitor
from tests.support.driver import with_store_beside_browser
from tests.support.store import JobStore
from tidegate.auth import keyring
from tidegate.auth.roles import Role
from tidegate.store.embedded import EmbeddedValkey
from tidegate_spark.testing import CoordinatorProcess

LIVE = "#connection.on"
SUBSTREAMS_OF_LARGE_JOB = 2500
YEARS_AGO_MS = 13 * 365 * scenes.DAY


@dataclass(frozen=True)
class State:
    """A page in one state.

    Attributes:
        path: Path of the page.
        settled: Selector of an element that the page has once it is complete.
        has_keys: Whether the page is on the coordinator with keys.
        is_logged_in: Whether to log in first.
    """

    path: str
    settled: str = LIVE
    has_keys: bool = False
    is_logged_in: bool = False


STATES: Mapping[str, State] = {
    "jobs": State("/"),
    "jobs-empty": State("/", has_keys=True, is_logged_in=True),
    "running": State("/jobs/running?range=1d"),
    "held": State("/jobs/held"),
    "hourly": State("/jobs/hourly"),
    "large": State("/jobs/large"),
    "late": State("/jobs/late"),
    "replayed": State("/jobs/replayed?range=6h"),
    "complete": State("/jobs/complete"),
    "empty": State("/jobs/empty"),
    "action": State("/jobs/held/act/evict?query=departures&substream=HNL", "form.act"),
    "action-hold": State("/jobs/held/act/hold", "form.act"),
    "login": State("/", "form.act", has_keys=True),
    "error": State("/jobs/none", ".error"),
}


@dataclass(frozen=True)
class Site:
    """Two coordinators.

    Attributes:
        jobs_url: URL of the coordinator with jobs.
        keys_url: URL of the coordinator with keys, which has no jobs.
        key: A key of the latter.
    """

    jobs_url: str
    keys_url: str
    key: str

    def open(self, visitor: Visitor, name: str, **options: Any) -> Page:
        """Open the page in the state with this name; ``options`` are those of the window."""
        state = STATES[name]
        if name == "error":
            visitor.expect("404")
        page = visitor.window(**options)
        page.goto((self.keys_url if state.has_keys else self.jobs_url) + state.path)
        if state.is_logged_in:
            page.get_by_label("Key").fill(self.key)
            page.get_by_role("button", name="Log in").click()
        page.locator(state.settled).first.wait_for()
        return page


@contextmanager
def run_site(directory: Path) -> Iterator[Site]:
    """Run both coordinators for the duration of a block."""
    keys_file = directory / "keys.json"
    key = keyring.create(keys_file, "on-call", Role.OPERATE, "")
    with (
        EmbeddedValkey(directory / "valkey") as valkey,
        CoordinatorProcess(directory / "jobs", redis_url=valkey.url) as with_jobs,
        CoordinatorProcess(directory / "keys", keys_file=str(keys_file)) as with_keys,
    ):
        with_store_beside_browser(valkey, _fill)
        with httpx.Client(base_url=with_jobs.url, timeout=30) as http:
            _report(http)
        yield Site(with_jobs.url, with_keys.url, key)


async def _fill(store: JobStore) -> None:
    seconds, micros = await store.redis.time()
    now_ms = seconds * 1000 + micros // 1000
    await scenes.past_day(store, "running", now_ms)
    await scenes.past_day(store, "replayed", now_ms, -YEARS_AGO_MS)
    await scenes.hourly(store, "hourly", now_ms)
    await scenes.many(store, "large", now_ms, SUBSTREAMS_OF_LARGE_JOB)


HOURLY_LOSSES = {("HNL", 9): 61, ("HNL", 8): 24, ("SJU", 3): 7}
"""Dropped rows by substream and hours ago, in the job ``late``."""


def _report_day(http: httpx.Client, now_ms: int) -> None:
    """Commit a batch for each hour of the last day. Two substreams lost rows in some hours."""
    create(http, "late", policy={"type": "limiting_lag", "lag_ms": scenes.LAG_MS}, idle_timeout_ms=10 * HOUR)
    this_hour = now_ms // HOUR
    for number, hours_ago in enumerate(range(24, -1, -1)):
        hour = this_hour - hours_ago
        losses = [HOURLY_LOSSES.get((airport, hours_ago), 0) for airport in scenes.AIRPORTS]
        rows = [180 + 7 * place + 5 * (number * place % 11) for place in range(len(scenes.AIRPORTS))]
        counts = {
            "on_time": [all_ - lost for all_, lost in zip(rows, losses, strict=True)],
            "late": losses,
            "hours": [[[hour, all_, 0, lost]] for all_, lost in zip(rows, losses, strict=True)],
        }
        delays = {airport: (2 + place % 4) * scenes.MINUTE for place, airport in enumerate(scenes.AIRPORTS)}
        delays["SEA"] = 25 * scenes.MINUTE
        times = {airport: now_ms - hours_ago * HOUR - delay for airport, delay in delays.items()}
        batch(http, "late", number, times, counts)


def _report(http: httpx.Client) -> None:
    _report_day(http, http.get("/v1/jobs/running").json()["now_ms"])
    create(http, "empty")
    create(http, "complete")
    report(http, "complete", {"BOS": BASE, "HNL": BASE - HOUR})
    http.post("/v1/jobs/complete:complete", json={"reason": "the year is over"}).raise_for_status()
    create(http, "held", **FRAMES, idle_timeout_ms=10 * HOUR)
    for number in range(3):
        at = BASE + number * HOUR
        batch(http, "held", number, {"ANC": at - 2 * HOUR, "BOS": at, "HNL": at - HOUR})
    hold = {"at_most": BASE, "reason": "the books are being audited", "hold": "audit", "duration_ms": 2 * HOUR}
    http.post("/v1/jobs/held/holds", json=hold).raise_for_status()
    batch(http, "held", 3, {"ANC": BASE + 2 * HOUR, "BOS": BASE + 4 * HOUR, "HNL": BASE + 3 * HOUR})
