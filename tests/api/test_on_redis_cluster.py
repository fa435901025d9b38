"""The API on a Redis Cluster: main calls, slots that move under load, and a primary that dies and returns."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from redis.crc import key_slot

from tests.support.api import batch, create, problem, read, report
from tests.support.load import advance, check_exact, check_monotone, load
from tests.support.redis_servers import RedisCluster, binaries, id_of, redis_cluster
from tests.support.waiting import until
from tidegate.store.keyspace import Keyspace
from tidegate_spark.testing import CoordinatorProcess

BUCKETS = 64
LONGEST_GAP_S = 60.0
"""Longest time without a confirmed batch of a client. On an idle machine, it is below half a second."""
KEYS = Keyspace(BUCKETS)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=binaries())
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    partial_service = ("--cluster-require-full-coverage", "no")
    with redis_cluster(tmp_path_factory.mktemp("cluster"), request.param, *partial_service) as running:
        yield running


@pytest.fixture
def replicas(cluster: RedisCluster, tmp_path: Path) -> Iterator[list[str]]:
    """Yield the addresses of two coordinators."""
    for node in cluster.nodes:
        node.redis.flushall()
    with (
        CoordinatorProcess(tmp_path / "one", redis_url=cluster.url) as one,
        CoordinatorProcess(tmp_path / "two", redis_url=cluster.url) as two,
    ):
        yield [one.url, two.url]


@pytest.fixture
def http(replicas: list[str]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=replicas[0], timeout=60) as client:
        yield client


def slot_of(job: str) -> int:
    return key_slot(KEYS.job_key(job).encode())


def metric(http: httpx.Client, name: str) -> dict[str, float]:
    """Return the samples of a metric by the value of its label."""
    text = http.get("/metrics").raise_for_status().text
    found = re.findall(rf'^{name}(?:\{{\w+="(.*)"\}})? (\S+)$', text, re.MULTILINE)
    return {label: float(value) for label, value in found}


def test_the_main_calls(cluster: RedisCluster, replicas: list[str], http: httpx.Client) -> None:
    jobs = [create(http, f"job-{number}") for number in range(30)]
    assert {cluster.owner(slot_of(job)).port for job in jobs} == {node.port for node in cluster.nodes}
    for job in jobs:
        batch(http, job, 0, {"HNL": 100, "ORD": 300})
    with httpx.Client(base_url=replicas[1], timeout=60) as other:
        assert [job["job"] for job in read(other, "/v1/jobs", limit=1000)["jobs"]] == sorted(jobs)
        for path in ("", "/substreams", "/queries", "/completeness", "/late", "/history", "/watermark", ":explain"):
            read(other, f"/v1/jobs/job-7{path}")
        assert other.get("/readyz").status_code == 200
        assert metric(other, "tidegate_store_up") == {"": 1}
        assert set(metric(other, "tidegate_job_watermark_timestamp_seconds")) == set(jobs)
        assert other.get("/").status_code == 200
        assert other.get("/jobs/job-7").status_code == 200
        assert read(other, "/v1/jobs/job-7/watermark")["watermark"] == 90
    servers = {node.address for node in cluster.nodes}
    assert metric(http, "tidegate_store_server_up") == dict.fromkeys(servers, 1)
    buckets = metric(http, "tidegate_store_buckets")
    assert set(buckets) == servers and sum(buckets.values()) == BUCKETS
    put = http.put("/v1/jobs/job-7", json={"policy": {"type": "limiting_lag", "lag_ms": 10}})
    problem(put, 428, "precondition_required")
    report(http, "job-8", {"HNL": 500, "ORD": 500})
    http.delete("/v1/jobs/job-7", headers={"If-Match": "*"}).raise_for_status()
    problem(http.get("/v1/jobs/job-7"), 410, "job_deleted")


def test_slots_that_move_under_load(cluster: RedisCluster, replicas: list[str], http: httpx.Client) -> None:
    """No batch is lost or counted twice while its slot moves through all nodes, key by key."""
    jobs = [f"job-{number}" for number in range(4)]
    slots = {slot_of(job) for job in jobs}
    with load(replicas[0], jobs[:2]) as ones, load(replicas[1], jobs[2:]) as others:
        clients = [*ones, *others]
        advance(clients, 3)
        for _ in range(3):
            for slot in slots:
                owner = cluster.owner(slot)
                to = cluster.nodes[(cluster.nodes.index(owner) + 1) % 3]
                cluster.move(slot, to, at_once=1)
            advance(clients, 2)
        first, second, _ = cluster.nodes
        cluster.manage(
            "reshard", first.address, "--cluster-from", id_of(first), "--cluster-to", id_of(second),
            "--cluster-slots", "1500", "--cluster-yes",
        )  # fmt: skip
        advance(clients, 3)
    check_monotone(clients)
    check_exact(clients, partial(read, http))
    assert max(client.longest_gap_s() for client in clients) < LONGEST_GAP_S


def test_a_primary_that_dies_and_returns(cluster: RedisCluster, replicas: list[str], http: httpx.Client) -> None:
    """Jobs on other primaries go on. With an append-only file, no confirmed batch is lost."""
    names = [f"job-{number}" for number in range(40)]
    lost = cluster.owner(slot_of(names[0]))
    hit = [name for name in names if cluster.owner(slot_of(name)) is lost][:2]
    spared = [name for name in names if cluster.owner(slot_of(name)) is not lost][:2]
    with load(replicas[0], hit) as affected, load(replicas[1], spared) as others:
        advance([*affected, *others], 3)
        lost.kill()
        advance(others, 5)
        assert http.get("/readyz").status_code == 200
        assert metric(http, "tidegate_store_up") == {"": 0}
        up = metric(http, "tidegate_store_server_up")
        assert up == {node.address: float(node is not lost) for node in cluster.nodes}
        problem(http.get(f"/v1/jobs/{hit[0]}"), 503, "store_unavailable")
        lost.start()
        advance([*affected, *others], 3)
        until(lambda: metric(http, "tidegate_store_up") == {"": 1}, "all primaries are up")
    check_monotone([*affected, *others])
    check_exact([*affected, *others], partial(read, http))
