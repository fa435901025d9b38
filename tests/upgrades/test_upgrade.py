"""Upgrades and downgrades: coordinators of several versions on one store."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.api import create, problem, read, report
from tests.support.load import advance, check_exact, check_monotone, load
from tests.support.redis_servers import RedisServer, running
from tests.support.waiting import until
from tidegate.store.keyspace import SCHEMA, job_key
from tidegate_spark.testing import CoordinatorProcess
from tidegate_spark.testing.server import CoordinatorFailed

PREVIOUS, NEXT = "tests.support.versions.previous", "tests.support.versions.next"

Start = Callable[..., tuple[CoordinatorProcess, httpx.Client]]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("store"))
    with running(server):
        yield server


@pytest.fixture
def start(redis: RedisServer, tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts a coordinator on an empty store, by default of this version."""
    redis.redis.flushall()
    started: list[tuple[CoordinatorProcess, httpx.Client]] = []

    def start(program: str = "tidegate") -> tuple[CoordinatorProcess, httpx.Client]:
        process = CoordinatorProcess(
            tmp_path / str(len(started)), redis_url=f"redis://{redis.address}/0", token_secret="s" * 32
        )
        process.program = program
        process.start()
        started.append((process, httpx.Client(base_url=process.url, timeout=60)))
        return started[-1]

    yield start
    for process, http in started:
        http.close()
        process.stop()


def test_a_rolling_upgrade_under_load(start: Start) -> None:
    """Coordinators of both versions serve the same jobs, one call after the other. No batch is lost or repeated."""
    replicas = [start(PREVIOUS), start(PREVIOUS)]
    jobs = ["one", "two"]
    with load(replicas[0][0].url, jobs) as clients:
        advance(clients, 3)
        for upgraded in (1, 0):
            process, http = replicas[upgraded]
            process.stop()
            process.program = "tidegate"
            process.start()
            for client in clients:
                assert read(http, f"/v1/jobs/{client.job}/watermark")["watermark"] is not None
            advance(clients, 3)
    assert any(client.problems for client in clients), "no client noticed the restart of its coordinator"
    check_monotone(clients)
    check_exact(clients, lambda path: read(replicas[1][1], path))


def test_the_schema_is_stored_with_each_job(start: Start, redis: RedisServer) -> None:
    """A job of a version without a schema gets one with its first call, and a deleted job keeps it."""
    _, previous = start(PREVIOUS)
    job = create(previous, "job")
    report(previous, job, {"HNL": 100})
    redis.redis.hdel(job_key(job), "schema")
    _, http = start()
    report(http, job, {"HNL": 200})
    assert redis.redis.hget(job_key(job), "schema") == str(SCHEMA)
    report(previous, job, {"HNL": 300})
    assert read(http, f"/v1/jobs/{job}/watermark")["watermark"] == 290
    http.delete(f"/v1/jobs/{job}", headers={"If-Match": "*"}).raise_for_status()
    assert redis.redis.hget(job_key(job), "schema") == str(SCHEMA)


def test_a_job_with_a_newer_schema_is_refused_and_not_changed(start: Start, redis: RedisServer) -> None:
    """During an upgrade to a newer schema, this version serves the jobs that the newer version has not changed."""
    process, http = start()
    for job, limits in (("old", {}), ("new", {"idle_timeout_ms": 1000})):  # a sweep would change the old job, too
        create(http, job, **limits)
        report(http, job, {"HNL": 100})
    _, newer = start(NEXT)
    report(newer, "new", {"HNL": 200})
    stored = redis.redis.dump(job_key("new"))
    body = {"substreams": ["HNL"], "max_event_times": [300]}
    refused = http.post("/v1/jobs/new:report", json=body)
    assert f"has schema {SCHEMA + 1}" in problem(refused, 503, "state_too_new")["detail"]
    assert int(refused.headers["Retry-After"]) >= 1
    for path in ("/v1/jobs/new", "/v1/jobs/new/watermark", "/v1/jobs/new/history", "/v1/jobs/new/watermark:watch"):
        problem(http.get(path), 503, "state_too_new")
    problem(http.delete("/v1/jobs/new", headers={"If-Match": "*"}), 503, "state_too_new")
    assert redis.redis.dump(job_key("new")) == stored
    report(http, "old", {"HNL": 200})
    assert read(http, "/v1/jobs/old/watermark")["watermark"] == 190
    assert http.get("/metrics").status_code == http.get("/").status_code == 200
    assert http.get("/readyz").status_code == 200
    until(lambda: redis.redis.zscore("tidegate:sweeps", "new") is not None, "the newer version schedules the job")
    log = (process.data_dir / "coordinator.log").read_text()
    assert "Traceback" not in log
    assert log.count("Cannot sweep job new.") <= 1


def test_a_downgrade_below_the_schema_is_refused(start: Start, redis: RedisServer, tmp_path: Path) -> None:
    start(NEXT)
    with pytest.raises(CoordinatorFailed, match=f"has schema {SCHEMA + 1}, and this version reads schemas up to"):
        start()
    redis.redis.delete("tidegate:schemas")
    start()


def test_an_embedded_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    process = CoordinatorProcess(tmp_path)
    process.program = NEXT
    with process:
        pass
    with pytest.raises(CoordinatorFailed, match="restore a back-up from before the upgrade"):
        CoordinatorProcess(tmp_path).start()
