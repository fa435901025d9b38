"""Creation, change, listing and deletion of jobs."""

import re
from collections.abc import Callable

import httpx

from tests.support.api import CONFIG

Make = Callable[..., str]


def test_a_change_needs_the_etag_that_was_read(http: httpx.Client, make_job: Make) -> None:
    """A change is refused if the configuration has changed since the client read it."""
    path = make_job()
    etag = http.get(path).headers["ETag"]
    other = CONFIG | {"idle_timeout_ms": 500}
    assert http.put(path, json=other).status_code == 428
    assert http.put(path, json=other, headers={"If-None-Match": "*"}).json()["code"] == "job_exists"
    changed = http.put(path, json=other, headers={"If-Match": etag})
    assert (changed.status_code, changed.json()["config"]["idle_timeout_ms"]) == (200, 500)
    stale = http.put(path, json=CONFIG, headers={"If-Match": etag})
    assert (stale.status_code, stale.json()["code"]) == (412, "revision_mismatch")
    assert http.get(path).json()["config"]["idle_timeout_ms"] == 500


def test_a_deleted_job_is_gone_until_it_is_put_again(http: httpx.Client, make_job: Make) -> None:
    """Reports to a deleted job are refused until the job is created again."""
    path = make_job()
    report = {"substreams": ["a"], "max_event_times": [100]}
    token = http.post(f"{path}:report", json=report).json()["watermark_token"]
    assert http.delete(path).status_code == 204
    assert http.delete(path).status_code == 204
    gone = http.post(f"{path}:report", json=report)
    assert (gone.status_code, gone.json()["code"]) == (410, "job_deleted")
    make_job()
    again = http.post(f"{path}:report", json={"substreams": ["a"], "max_event_times": [50], "watermark_token": token})
    assert again.json()["watermark"] == 40, "a token of an earlier incarnation must be ignored"
    assert http.get(path).json()["tokens_ignored"] == 1


def test_the_list_is_paged_by_name(http: httpx.Client, job_name: str) -> None:
    names = [f"{job_name}.{number}" for number in range(5)]
    for name in names:
        http.put(f"/v1/jobs/{name}", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
    http.delete(f"/v1/jobs/{names[2]}").raise_for_status()
    found: list[str] = []
    after = job_name
    while True:
        page = http.get("/v1/jobs", params={"limit": 2, "after": after}).raise_for_status().json()
        found += [listed["job"] for listed in page["jobs"] if listed["job"].startswith(job_name)]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == [name for name in names if name != names[2]]


def test_the_list_does_not_read_each_job(http: httpx.Client, job_name: str) -> None:
    """The list of jobs does not read the status of each job from the store."""
    for number in range(5):
        assert http.put(f"/v1/jobs/{job_name}-{number}", json=CONFIG, headers={"If-None-Match": "*"}).status_code == 201
    counted = re.compile(r'tidegate_store_command_duration_seconds_count{command="status"} (\S+)')
    before = counted.findall(http.get("/metrics").text)
    listed = http.get("/v1/jobs", params={"after": f"{job_name}-", "limit": 5}).json()["jobs"]
    assert [job["job"] for job in listed] == [f"{job_name}-{number}" for number in range(5)]
    assert counted.findall(http.get("/metrics").text) == before


def test_a_token_heals_a_job_and_a_forged_one_does_nothing(http: httpx.Client, make_job: Make) -> None:
    """The coordinator ignores and counts forged and malformed tokens."""
    path = make_job()
    reported = http.post(f"{path}:report", json={"substreams": ["a"], "max_event_times": [1000]}).json()
    forged = reported["watermark_token"].replace(".990.", ".999990.")
    assert forged != reported["watermark_token"]
    for token in (forged, "nonsense", "1..", "99999.5.é"):
        report = {"substreams": ["a"], "max_event_times": [1001], "watermark_token": token}
        assert http.post(f"{path}:report", json=report).json()["watermark"] == 991
    assert http.get(path).json()["tokens_ignored"] == 4
