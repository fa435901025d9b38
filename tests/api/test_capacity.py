"""Limits on the number of jobs and of substreams, and the errors that name them."""

from collections.abc import Iterator

import httpx
import pytest

from tests.support.api import CONFIG, RUN, problem
from tidegate_spark.testing import CoordinatorProcess

CREATE = {"If-None-Match": "*"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Start a coordinator that allows two jobs with three substreams each."""
    directory = tmp_path_factory.mktemp("small")
    with (
        CoordinatorProcess(directory, max_jobs="2", max_substreams="3") as process,
        httpx.Client(base_url=process.url, timeout=30) as http,
    ):
        yield http


@pytest.fixture
def path(small: httpx.Client) -> Iterator[str]:
    path = "/v1/jobs/j"
    small.put(path, json=CONFIG, headers=CREATE).raise_for_status()
    yield path
    small.delete(path).raise_for_status()


def names(http: httpx.Client, path: str) -> list[str]:
    return [row["substream"] for row in http.get(f"{path}/substreams").json()["substreams"]]


def too_many(answer: httpx.Response, code: str, most: int) -> None:
    assert problem(answer, 429, code)["limit"] == most
    assert int(answer.headers["Retry-After"]) > 0


def test_jobs_over_the_limit_are_refused(small: httpx.Client, path: str) -> None:
    """A client that creates a job for each run cannot fill the store."""
    small.put("/v1/jobs/other", json=CONFIG, headers=CREATE).raise_for_status()
    too_many(small.put("/v1/jobs/third", json=CONFIG, headers=CREATE), "too_many_jobs", 2)
    problem(small.get("/v1/jobs/third"), 404, "job_not_found")
    problem(small.put(path, json=CONFIG, headers=CREATE), 412, "job_exists")
    assert small.put(path, json=CONFIG, headers={"If-Match": "*"}).status_code == 200
    small.delete("/v1/jobs/other").raise_for_status()
    assert small.put("/v1/jobs/third", json=CONFIG, headers=CREATE).status_code == 201
    problem(small.get("/v1/jobs/other"), 410, "job_deleted")
    too_many(small.put("/v1/jobs/other", json=CONFIG, headers=CREATE), "too_many_jobs", 2)
    small.delete("/v1/jobs/third").raise_for_status()
    assert [job["job"] for job in small.get("/v1/jobs").json()["jobs"]] == ["j"]


def test_substreams_over_the_limit_are_refused(small: httpx.Client, path: str) -> None:
    """A report over the limit has no effect. Known substreams still report, and an eviction makes room."""
    small.post(f"{path}:report", json={"substreams": ["a", "b"], "max_event_times": [50, 50]}).raise_for_status()
    beyond = {"substreams": ["a", "c", "d"], "max_event_times": [90, 90, 90]}
    too_many(small.post(f"{path}:report", json=beyond), "too_many_substreams", 3)
    too_many(small.post(f"{path}:declare", json={"substreams": ["c", "d"]}), "too_many_substreams", 3)
    assert names(small, path) == ["a", "b"]
    small.post(f"{path}:declare", json={"substreams": ["b", "c"]}).raise_for_status()
    small.post(f"{path}:report", json={"substreams": ["a", "b", "c"], "max_event_times": [60] * 3}).raise_for_status()
    small.post(f"{path}/substreams:evict", json={"substreams": ["b", "c"]}).raise_for_status()
    assert small.post(f"{path}:report", json=beyond).json()["watermark"] == 80


def test_staged_substreams_count(small: httpx.Client, path: str) -> None:
    """Staged substreams count towards the limit, so every staged batch can be committed."""
    small.put(f"{path}/queries/q/batches/0", json=RUN).raise_for_status()
    batch = {"query": "q", **RUN, "batch_id": 0}

    def stage(partition: int, *substreams: str) -> httpx.Response:
        times = [50] * len(substreams)
        at = batch | {"partition": partition}
        body = {"substreams": substreams, "max_event_times": times, "counts": times, "batch": at}
        return small.post(f"{path}:report", json=body)

    assert stage(0, "a", "b").json()["applied"] is True
    too_many(stage(1, "b", "c", "d"), "too_many_substreams", 3)
    assert stage(1, "b", "c").json()["applied"] is True
    small.post(f"{path}/queries/q/batches/0:commit", json=RUN | {"reported": 4}).raise_for_status()
    assert names(small, path) == ["a", "b", "c"]


def test_staged_substreams_of_all_open_batches_count(small: httpx.Client, path: str) -> None:
    """The limit applies to the sum over all open batches."""
    for query, substreams in (("q", ["a", "b"]), ("r", ["c", "d"])):
        small.put(f"{path}/queries/{query}/batches/0", json=RUN).raise_for_status()
        batch = {"query": query, **RUN, "batch_id": 0, "partition": 0}
        body = {"substreams": substreams, "max_event_times": [50, 50], "batch": batch}
        answer = small.post(f"{path}:report", json=body)
        if query == "q":
            answer.raise_for_status()
    too_many(answer, "too_many_substreams", 3)
    small.put(f"{path}/queries/q/batches/1", json=RUN).raise_for_status()
    assert names(small, path) == ["a", "b"]


def test_expected_queries_do_not_count_as_substreams(small: httpx.Client) -> None:
    """Placeholders of expected queries do not count towards the limit of substreams."""
    path = "/v1/jobs/expected"
    config = CONFIG | {"expected_queries": ["p", "q", "r", "s"]}
    small.put(path, json=config, headers=CREATE).raise_for_status()
    small.put(f"{path}/queries/p/batches/0", json=RUN).raise_for_status()
    batch = {"query": "p", **RUN, "batch_id": 0, "partition": 0}
    body = {"substreams": ["a", "b", "c"], "max_event_times": [50] * 3, "batch": batch}
    small.post(f"{path}:report", json=body).raise_for_status()
    small.delete(path).raise_for_status()


def test_rows_of_unknown_substreams_count_in_the_totals_only(small: httpx.Client, path: str) -> None:
    """Rows of unknown substreams count in the job's totals and create no substream."""
    small.put(f"{path}/queries/q/batches/0", json=RUN).raise_for_status()
    unknown = [f"name-{number}" for number in range(100)]
    rows = {"substreams": unknown, "on_time": [0] * 100, "late": [1] * 100, "null_event_time": [1] * 100}
    small.post(f"{path}/queries/q/batches/0:commit", json=RUN | {"rows": rows}).raise_for_status()
    counted = small.get(path).json()["rows"]
    assert (counted["late"], counted["null_event_time"]) == (100, 100)
    assert names(small, path) == []
