"""Load far over capacity: calls are refused quickly, memory stays bounded, and the coordinator recovers."""

import json
import select
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from redis import Redis

from tests.support.api import create, problem, report
from tests.support.waiting import until
from tidegate.http.guard import FREE_BYTES, BodyMemory
from tidegate.store.embedded import EmbeddedValkey
from tidegate_spark.testing import CoordinatorProcess

MEMORY = 2 * 1024 * 1024
BODY = 512 * 1024
CONNECTIONS, ACTIVE, QUEUED = 300, 4, 50
FLOOD, QUIET = ("key", "flood"), ("key", "quiet")


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey(tmp_path / "valkey") as server:
        yield server


@pytest.fixture
def small(own_valkey: EmbeddedValkey, tmp_path: Path) -> Iterator[CoordinatorProcess]:
    """Start a coordinator with little memory for bodies, and short queues.

    Each test has its own, because the bounds on calls apply for some seconds after the calls of a test. It waits long
    for Redis. Otherwise, calls that are in progress while Redis is stopped would fail on a slow machine.
    """
    with CoordinatorProcess(
        tmp_path / "small",
        redis_url=f"{own_valkey.url}?socket_timeout=120&timeout=120",
        max_body_bytes=str(BODY),
        max_body_memory_bytes=str(MEMORY),
        max_active_calls=str(ACTIVE),
        max_queued_calls=str(QUEUED),
        sweep_interval_ms="60000",
    ) as process:
        yield process


@pytest.fixture
def http(small: CoordinatorProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=small.url, timeout=60) as client:
        yield client


def large_report() -> bytes:
    """Return a valid report of nearly ``BODY`` bytes."""
    body = json.dumps({"substreams": ["a"], "max_event_times": [10]}).encode()
    return body + b" " * (BODY - len(body) - 1)


def head(job: str, size: int) -> bytes:
    lines = (f"POST /v1/jobs/{job}:report HTTP/1.1", "host: localhost", "content-type: application/json")
    return "\r\n".join([*lines, f"content-length: {size}", "", ""]).encode()


@contextmanager
def connections(process: CoordinatorProcess, number: int) -> Iterator[list[socket.socket]]:
    """Open connections, and wait until the coordinator has accepted them."""
    coordinator = psutil.Process(process.pid)
    with ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection(("127.0.0.1", process.port), timeout=60))
            for _ in range(number)
        ]
        ports = {each.getsockname()[1] for each in opened}
        until(
            lambda: ports <= {each.raddr.port for each in coordinator.net_connections("tcp4") if each.raddr},
            "all connections are accepted",
        )
        yield opened


def answered(sockets: list[socket.socket]) -> list[socket.socket]:
    """Return the connections with an answer."""
    return select.select(sockets, [], [], 0)[0]


def test_memory_for_bodies_is_shared() -> None:
    """One tenant can use half, small bodies use none, and memory is freed."""
    memory = BodyMemory(100_000)
    first, second, other = memory.body(FLOOD), memory.body(FLOOD), memory.body(QUIET)
    assert first.grow(FREE_BYTES + 40_000)
    assert not second.grow(FREE_BYTES + 10_001)
    assert second.grow(FREE_BYTES + 5_000)
    assert second.grow(FREE_BYTES + 10_000)
    assert second.grow(5)  # smaller sizes change nothing
    assert memory.body(FLOOD).grow(FREE_BYTES)
    assert other.grow(FREE_BYTES + 50_000)
    assert not memory.body(("key", "third")).grow(FREE_BYTES + 1)
    assert memory.held == memory.max_bytes
    for body in (first, first, second, other):
        body.release()
    assert memory.held == 0
    assert other.grow(FREE_BYTES + 50_000)


def test_large_bodies_over_the_memory_are_refused(small: CoordinatorProcess, http: httpx.Client) -> None:
    """Bodies that arrive slowly cannot use more memory. Small reports and other tenants are still served."""
    for job in ("flood", "quiet"):
        create(http, job)
    whole = large_report()
    coordinator = psutil.Process(small.pid)
    before = coordinator.memory_info().rss
    with connections(small, 60) as sockets:
        for each in sockets:
            each.sendall(head("flood", len(whole)) + whole[:-1])  # the last byte is missing
        until(lambda: len(answered(sockets)) == 58, "all but two bodies are refused")
        refused = answered(sockets)[0].recv(65_536)
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"overloaded" in refused
        assert b"retry-after: 1\r\n" in refused.lower()
        report(http, "flood", {"a": 10})
        answer = http.post("/v1/jobs/quiet:report", content=whole, headers={"content-type": "application/json"})
        assert answer.status_code == 200
        assert 'tidegate_refused_calls_total{code="overloaded"} 58.0' in http.get("/metrics").text
        assert coordinator.memory_info().rss - before < 15 * MEMORY
    until(lambda: "tidegate_body_bytes 0.0" in http.get("/metrics").text, "the memory is free")
    for _ in range(3):
        answer = http.post("/v1/jobs/flood:report", content=whole, headers={"content-type": "application/json"})
        assert answer.status_code == 200


def test_a_flood_is_shed_while_redis_is_stopped(
    small: CoordinatorProcess, own_valkey: EmbeddedValkey, http: httpx.Client
) -> None:
    """Calls over the queue get 429 while no call can succeed. The queued calls succeed when Redis continues."""
    for job in ("crowd", "other"):
        create(http, job)
    body = json.dumps({"substreams": ["a"], "max_event_times": [10]}).encode()
    coordinator = psutil.Process(small.pid)
    before = coordinator.memory_info().rss
    with connections(small, CONNECTIONS) as sockets, connections(small, 1) as [quiet]:
        with Redis.from_url(own_valkey.url) as redis:
            redis.client_pause(120_000, all=False)
            try:
                for each in sockets[:ACTIVE]:
                    each.sendall(head("crowd", len(body)) + body)
                for _ in range(5):  # the coordinator reads all sockets with data between two answers
                    assert http.get("/livez").status_code == 200
                quiet.sendall(head("other", len(body)) + body)  # from now on, the limit applies
                assert http.get("/livez").status_code == 200
                assert http.get("/livez").status_code == 200
                for each in sockets[ACTIVE:]:
                    each.sendall(head("crowd", len(body)) + body)
                over = CONNECTIONS - ACTIVE - QUEUED
                began = time.monotonic()
                until(lambda: len(answered(sockets)) == over, f"{over} calls are refused")
                print(f"refused {over} calls within {time.monotonic() - began:.2f} s")
                shed = answered(sockets)
            finally:
                redis.client_unpause()
        statuses = Counter(each.recv(65_536).split(b" ", 2)[1] for each in [*sockets, quiet])
        assert statuses == {b"429": over, b"200": ACTIVE + QUEUED + 1}
        assert len(shed) == over
    assert coordinator.memory_info().rss - before < 50_000_000
    report(http, "crowd", {"a": 20})
    assert http.get("/v1/jobs/crowd/watermark").json()["watermark"] == 10


def test_refusals_under_load_are_quick_and_the_load_ends(small: CoordinatorProcess, http: httpx.Client) -> None:
    """A body over the limit is refused before it is read, however many arrive."""
    create(http, "eager")
    with connections(small, 50) as sockets:
        for each in sockets:
            each.sendall(head("eager", BODY + 1))
        until(lambda: len(answered(sockets)) == 50, "all are refused")
        assert {each.recv(65_536)[:12] for each in sockets} == {b"HTTP/1.1 413"}
    problem(http.get("/v1/jobs/nothing"), 404, "job_not_found")
    report(http, "eager", {"a": 10})
