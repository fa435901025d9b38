"""Creation, change, listing and deletion of jobs."""

import re
from collections.abc import Callable

import httpx
import pytest
from redis import Redis

from tests.support.api import CONFIG, batch, create, problem, read, report
from tests.support.local import LocalCoordinator
from tests.support.waiting import until
from tidegate.domain.config import POLICY_LIMITS
from tidegate.domain.history import SAMPLES_KEPT
from tidegate.store.keyspace import ATTENDANCE, PROBE, job_key

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


@pytest.mark.parametrize("how", ["deleted and created", "reset", "lost and created"])
def test_an_etag_does_not_outlive_its_job(own: LocalCoordinator, how: str) -> None:
    """A client that has read an earlier job of the same name must not change or delete the new one."""
    with httpx.Client(base_url=own.url, timeout=30) as http:
        path = f"/v1/jobs/{create(http, 'job')}"
        old = http.get(path).headers["ETag"]
        if how == "reset":
            http.post(f"{path}:reset", json={}).raise_for_status()
        else:
            own.empty() if how.startswith("lost") else http.delete(path).raise_for_status()
            create(http, "job")
        status = http.get(path)
        assert (status.json()["revision"], status.headers["ETag"] == old) == (1, False)
        changed = http.put(path, json=CONFIG | {"idle_timeout_ms": 500}, headers={"If-Match": old})
        assert "read it again" in problem(changed, 412, "revision_mismatch")["detail"]
        problem(http.delete(path, headers={"If-Match": old}), 412, "revision_mismatch")
        assert http.get(path).json() | {"now_ms": 0} == status.json() | {"now_ms": 0}
        for etag in (status.headers["ETag"], "*"):
            http.put(path, json=CONFIG, headers={"If-Match": etag}).raise_for_status()
        assert http.delete(path, headers={"If-Match": http.get(path).headers["ETag"]}).status_code == 204


DAMAGES: dict[str, Callable[[Redis, str], object]] = {
    "a list": lambda redis, key: (redis.delete(key), redis.lpush(key, "x")),
    "an empty hash": lambda redis, key: (redis.delete(key), redis.hset(key, "state", "live")),
    "no number": lambda redis, key: redis.hset(key, "scalars", b"\xc1"),
    "another record": lambda redis, key: redis.hset(key, "scalars", b"\x80"),
    "no time": lambda redis, key: redis.hdel(key, "created"),
    "no JSON": lambda redis, key: redis.hset(key, "config", "{"),
    "no object": lambda redis, key: redis.hset(key, "config", "[1]"),
    "no policy": lambda redis, key: redis.hset(key, "config", '{"policy": 1}'),
    "no limit": lambda redis, key: redis.hset(key, "config", '{"max_lag_ms": "x"}'),
    "no model": lambda redis, key: redis.hset(key, "config", '{"policy": {"type": "x"}}'),
    "no rule": lambda redis, key: redis.hset(key, "compiled_config", "{}"),
    "a foreign set": lambda redis, key: (redis.delete(f"{key}:frozen"), redis.set(f"{key}:frozen", "x")),
    "a tombstone": lambda redis, key: redis.hset(key, mapping={"state": "deleted", "scalars": b"\xc1"}),
}


def test_damaged_jobs_hide_no_other(own: LocalCoordinator) -> None:
    """The keys of another program must not stop the lists, the page, the metrics and the sweeps of all other jobs."""
    damaged = {f"broken-{damage.replace(' ', '-')}": damage for damage in sorted(DAMAGES)}
    with httpx.Client(base_url=own.url, timeout=30) as http, Redis.from_url(own.redis_url) as redis:
        for job in (*damaged, "sound"):
            create(http, job, idle_timeout_ms=1000)
            report(http, job, {"a": 100})
        for job, damage in damaged.items():
            DAMAGES[damage](redis, job_key(job))
        redis.sadd("tidegate:jobs", "no hash", "", b"no text \xff")
        due: dict[str | bytes, int] = {"no hash": 1, b"no text \xff": 1, "sound": 2, **dict.fromkeys(damaged, 1)}
        redis.zadd("tidegate:sweeps", due)
        listed = read(http, "/v1/jobs")
        assert ([job["job"] for job in listed["jobs"]], listed["unreadable"]) == (["sound"], list(damaged))
        assert 'tidegate_job_max_event_timestamp_seconds{job_name="sound"} 0.1' in http.get("/metrics").text
        page = http.get("/")
        assert (page.status_code, ">sound<" in page.text, http.get("/jobs/sound").status_code) == (200, True, 200)
        for job in damaged:
            assert job in page.text
            assert "keys in Redis" in problem(http.get(f"/v1/jobs/{job}"), 500, "state_damaged")["detail"]
        until(lambda: read(http, "/v1/jobs/sound")["limits"] == {"idle_timeout_ms": 1}, "the sound job is swept")
        for job in damaged:
            redis.delete(*redis.scan_iter(match=f"{job_key(job)}*"))
            create(http, job)


def test_a_set_that_only_a_scrape_reads_hides_no_other(own: LocalCoordinator) -> None:
    with httpx.Client(base_url=own.url, timeout=30) as http, Redis.from_url(own.redis_url) as redis:
        for job in ("a-broken", "sound"):
            create(http, job)
            report(http, job, {"a": 100})
        redis.set(f"{job_key('a-broken')}:lagged:{next(iter(POLICY_LIMITS))}", "x")
        text = http.get("/metrics", params={"substreams": "*"}).text
        assert "tidegate_store_up 1.0" in text and "tidegate_unreadable_jobs 1.0" in text
        assert 'tidegate_substream_max_event_timestamp_seconds{job_name="sound"' in text


READS = (
    "/v1/jobs",
    "/v1/jobs/job",
    "/v1/jobs/job/substreams",
    "/v1/jobs/job/queries",
    "/v1/jobs/job/completeness",
    "/v1/jobs/job/late",
    "/v1/jobs/job/history",
    "/v1/jobs/job/queries/departures/batches/0",
    "/metrics?substreams=*",
    "/",
)
SWEEPS = ("/v1/jobs/job/watermark", "/v1/jobs/job:explain", "/jobs/job", "/jobs/job/act/complete")
"""Reads that evaluate the job first, because its watermark may follow the clock."""


@pytest.mark.parametrize("is_empty", [True, False], ids=["empty", "with data"])
def test_a_read_writes_nothing(own: LocalCoordinator, is_empty: bool) -> None:
    """A read leaves each key as it is. An evaluation moves the clock, and may sample the timeline."""
    of_coordinators = {PROBE.encode(), ATTENDANCE.encode()}

    def stored() -> dict[bytes, bytes]:
        return {key: value for key, (_, value) in own.state().items() if key not in of_coordinators}

    with httpx.Client(base_url=own.url, timeout=30) as http:
        create(http, "job", max_future_skew_ms=None)
        if not is_empty:
            batch(http, "job", 0, {"HNL": 100, "BOS": 200})
            read(http, "/v1/jobs/job/watermark")
        before = stored()
        for path in READS:
            assert http.get(path).status_code == (404 if is_empty and "batches" in path else 200), path
            assert stored() == before, path
        clock = {b"tidegate:{job}", b"tidegate:sweeps"}
        if not is_empty:
            clock |= {f"tidegate:{{job}}:timeline:{interval}".encode() for interval in SAMPLES_KEPT}
        for path in SWEEPS:
            assert http.get(path).status_code == 200, path
            after = stored()
            assert {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)} <= clock, path
        with http.stream("GET", "/v1/jobs/job/watermark:watch") as events:
            assert next(events.iter_lines())
        after = stored()
        assert {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)} <= clock
        kinds = [record["kind"] for record in read(http, "/v1/jobs/job/history")["records"]]
        assert not is_empty or kinds == ["created"]
