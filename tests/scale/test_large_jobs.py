"""Calls that read all substreams of a large job: one at a time, with little memory, and only for clients that still
wait.
"""

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
    """A coordinator with one large job, whose substreams may all be exported as metrics."""
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
def test_calls_whose_client_has_given_up_are_not_executed(large: CoordinatorProcess, path: str) -> None:
    """Without a limit, eight such calls took 1.8 GB and ran to their end."""
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
        until(quiet, "no call is running any more")
    print(
        f"{one:.2f} s of CPU a call, {cpu_s(large) - used:.2f} s after eight gave up, "
        f"{longest * 1000:.0f} ms for /livez"
    )
    print(f"memory {before / 1e6:.0f} MB, then {memory().rss / 1e6:.0f} MB, {time.monotonic() - began:.0f} s")
    # Half of the eight, because a busy machine makes the CPU time of a call vary.
    assert cpu_s(large) - used < 4 * one
    assert memory().rss - before < 150_000_000, "eight callers must not cost eight times the memory of one"


def test_pages_of_a_sorted_table_list_each_substream_once_and_in_order(large: CoordinatorProcess) -> None:
    rows: list[tuple[int, str]] = []
    with httpx.Client(base_url=large.url, timeout=300) as http:
        after = ""
        for _ in range(3):
            page = (
                http.get(
                    f"{JOB}/substreams",
                    params={"sort": "max_event_time", "descending": True, "limit": 5000, "after": after},
                )
                .raise_for_status()
                .json()
            )
            rows += [(row["max_event_time"], row["substream"]) for row in page["substreams"]]
            after = page["next"]
    expected = sorted(((n * 7919 % SUBSTREAMS, f"s{n:05}") for n in range(SUBSTREAMS)), reverse=True)
    assert rows == expected[:15_000]


def test_metrics_of_too_many_substreams_are_refused(tmp_path: Path) -> None:
    """The error names the limit."""
    with (
        CoordinatorProcess(tmp_path, max_scraped_substreams="5") as process,
        httpx.Client(base_url=process.url, timeout=60) as http,
    ):
        for job in ("a", "b"):
            http.put(f"/v1/jobs/{job}", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
            report = {"substreams": list("xyz"), "max_event_times": [1, 2, 3]}
            http.post(f"/v1/jobs/{job}:report", json=report).raise_for_status()
        refusal = problem(http.get("/metrics", params={"substreams": "*"}), 422, "too_many_rows")
        assert "6 substreams match, over the limit of 5" in refusal["detail"]
        assert http.get("/metrics", params={"substreams": "a"}).status_code == 200
