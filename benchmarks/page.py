"""The page of a job with 10 000 substreams: its first byte, its size, and the longest task of the browser.

The browser shows the page while reports of 50 substreams arrive four times a second. Chromium reports tasks of the main
thread that take longer than 50 ms.
"""

import time
from collections.abc import Callable
from pathlib import Path

import httpx

from benchmarks.results import Row, Spread
from tests.support import scenes
from tests.support.browser import Visitor, chromium
from tests.support.driver import Driver
from tidegate.store.embedded import EmbeddedValkey
from tidegate_spark.testing import CoordinatorProcess

SUBSTREAMS = 10_000
UPDATED = 50
INTERVAL_S = 0.25
UPDATES = 60
LOADS = 10
RECORD_LONG_TASKS = """
window.longTasks = [];
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) window.longTasks.push(task.duration);
}).observe({ type: "longtask", buffered: true });
"""


def run(out: Path, rounds: int, show: Callable[[str], None]) -> list[Row]:
    """Measure the page in each round on a new job."""
    first_bytes, sizes, tasks = [], [], []
    work = out / f"page-{time.time_ns()}"
    with EmbeddedValkey(work / "valkey") as valkey:
        driver = Driver(valkey.url)
        with CoordinatorProcess(work / "coordinator", redis_url=valkey.url) as coordinator:
            for number in range(rounds):
                driver(scenes.many(driver.store, f"sensors-{number}", round(time.time() * 1000), SUBSTREAMS))
                url = f"{coordinator.url}/jobs/sensors-{number}"
                loads = [_load(url) for _ in range(LOADS)]
                first_bytes.append(max(first_byte_ms for first_byte_ms, _ in loads[1:]))
                sizes.append(loads[-1][1] / 1024)
                tasks.append(_longest_task_ms(coordinator.url, f"sensors-{number}"))
                show(f"  round {number + 1}/{rounds}")
        driver.close()
    return [
        Row("first byte of the page, slowest of nine loads", Spread.of(first_bytes), "ms", at_most=100),
        Row("size of the page", Spread.of(sizes), "KB"),
        Row("longest task of the browser, 0 if below 50", Spread.of(tasks), "ms", at_most=100),
    ]


def _load(url: str) -> tuple[float, int]:
    """Return the milliseconds until the first byte, and the number of bytes."""
    began = time.perf_counter()
    with httpx.stream("GET", url) as answer:
        first_byte_ms = 1000 * (time.perf_counter() - began)
        return first_byte_ms, len(answer.raise_for_status().read())


def _longest_task_ms(url: str, job: str) -> float:
    with chromium() as browser:
        visitor = Visitor(browser)
        page = visitor.window()
        page.add_init_script(RECORD_LONG_TASKS)
        page.goto(f"{url}/jobs/{job}")
        for update in range(UPDATES):
            names = [f"sensor-{(update * UPDATED + number) % SUBSTREAMS:05}" for number in range(UPDATED)]
            body = {"substreams": names, "max_event_times": [round(time.time() * 1000)] * UPDATED}
            httpx.post(f"{url}/v1/jobs/{job}:report", json=body).raise_for_status()
            time.sleep(INTERVAL_S)
        longest: float = max(page.evaluate("window.longTasks"), default=0.0)
        visitor.leave()
    return longest
