"""Reading all of a large job: one call at a time, in little memory, and only for a client that still waits."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.api import CONFIG, problem
from tests.support.waiting import until
from tidegate_spark.testing import CoordinatorProcess

SUBSTREAMS = 60_000
JOB = "/v1/jobs/large"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    """A coordinator with one large job, every substream of which may be exported."""
    directory = tmp_path_factory.mktemp("large")
    with CoordinatorProcess(directory, max_scraped_substreams=str(SUBSTREAMS)) as process:
        with httpx.Client(base_url=process.url, timeout=120) as http:
            http.put(JOB, json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
            for first in range(0, SUBSTREAMS, 5000):
                numbers = range(first, first + 5000)
                report = {
                    "substreams": [f"s{n:05}" for n in numbers],
                    "max_event_times": [n * 7919 % SUBSTREAMS for n in numbers],
                }
                http.post(f"{JOB}:report", json=report).raise_for_status()
        yield process


def cpu_s(process: CoordinatorProcess) -> float:
    times = psutil.Process(process.pid).cpu_times()
    return times.user + times.system


@pytest.mark.parametrize(
    "path",
    ["/metrics?substreams=large", f"{JOB}/substreams?sort=max_event_time&limit=10"],
    ids=["metrics", "sorted table"],
)
def test_callers_that_give_up_cost_nothing_more(large: CoordinatorProcess, path: str) -> None:
    """Eight of them took 1.8 GB, and went on to the end."""
    with httpx.Client(base_url=large.url, timeout=120) as http:
        http.get(path).raise_for_status()
        memory = psutil.Process(large.pid).memory_info
        before, began, used = memory().rss, time.monotonic(), cpu_s(large)
        http.get(path).raise_for_status()
        one = cpu_s(large) - used
        for _ in range(8):
            with pytest.raises(httpx.ReadTimeout):
                httpx.get(large.url + path, timeout=0.2)
        longest = 0.0

        def quiet() -> bool:
            nonlocal longest
            asked, used = time.monotonic(), cpu_s(large)
            http.get("/livez").raise_for_status()
            longest = max(longest, time.monotonic() - asked)
            time.sleep(0.5)
            return cpu_s(large) - used < 0.1

        used = cpu_s(large)
        until(quiet, "nobody is served any more")
    print(
        f"{one:.2f} s of CPU a call, {cpu_s(large) - used:.2f} s after eight gave up, "
        f"{longest * 1000:.0f} ms for /livez"
    )
    print(f"memory {before / 1e6:.0f} MB, then {memory().rss / 1e6:.0f} MB, {time.monotonic() - began:.0f} s")
    assert cpu_s(large) - used < one
    assert memory().rss - before < 150_000_000, "eight callers must not cost eight times the memory of one"


def test_pages_of_a_sorted_table_have_each_substream_once_and_in_order(large: CoordinatorProcess) -> None:
    rows: list[tuple[int, str]] = []
    with httpx.Client(base_url=large.url, timeout=300) as http:
        after = ""
        for _ in range(3):
            told = (
                http.get(
                    f"{JOB}/substreams",
                    params={"sort": "max_event_time", "descending": True, "limit": 5000, "after": after},
                )
                .raise_for_status()
                .json()
            )
            rows += [(row["max_event_time"], row["substream"]) for row in told["substreams"]]
            after = told["next"]
    expected = sorted(((n * 7919 % SUBSTREAMS, f"s{n:05}") for n in range(SUBSTREAMS)), reverse=True)
    assert rows == expected[:15_000]


def test_metrics_of_too_many_substreams_are_refused(tmp_path: Path) -> None:
    """With the setting that would allow them."""
    with (
        CoordinatorProcess(tmp_path, max_scraped_substreams="5") as process,
        httpx.Client(base_url=process.url, timeout=60) as http,
    ):
        for job in ("a", "b"):
            http.put(f"/v1/jobs/{job}", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
            report = {"substreams": list("xyz"), "max_event_times": [1, 2, 3]}
            http.post(f"/v1/jobs/{job}:report", json=report).raise_for_status()
        told = problem(http.get("/metrics", params={"substreams": "*"}), 422, "too_many_rows")
        assert "6 substreams match, over the limit of 5" in told["detail"]
        assert http.get("/metrics", params={"substreams": "a"}).status_code == 200
