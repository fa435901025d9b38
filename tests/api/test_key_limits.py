"""Quotas, expiry, rotation and last use of keys."""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from redis import Redis

from tests.support.api import CONFIG, login, problem
from tests.support.events import watching
from tests.support.waiting import until
from tidegate.auth import keyring
from tidegate.auth.callers import RateLimited
from tidegate.auth.keys import Key, Quotas, new_key, split_key
from tidegate.auth.roles import Role
from tidegate.auth.usage import KeyUsage
from tidegate.store.embedded import EmbeddedValkey
from tidegate_spark.testing import CoordinatorProcess

CREATE = {"If-None-Match": "*"}
REPORT = {"substreams": ["a"], "max_event_times": [1]}
Client = Callable[[str], httpx.Client]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    keyring.create(path, "first", Role.ADMIN, "")
    return path


@pytest.fixture(scope="module")
def process(file: Path) -> Iterator[CoordinatorProcess]:
    with CoordinatorProcess(file.parent / "data", keys_file=str(file)) as running:
        yield running


@pytest.fixture
def as_key(process: CoordinatorProcess) -> Iterator[Client]:
    """Return a function that opens a client for a key, once the coordinator has loaded the key."""
    with ExitStack() as stack:

        def client(key: str) -> httpx.Client:
            headers = {"Authorization": f"Bearer {key}"}
            made = stack.enter_context(httpx.Client(base_url=process.url, headers=headers, timeout=30))
            until(lambda: made.get("/v1/jobs").status_code != 401, "the coordinator has loaded the key")
            return made

        yield client


def quota_exceeded(answer: httpx.Response, quota: str, limit: int, key: str) -> None:
    document = problem(answer, 429, "quota_exceeded")
    assert (document["quota"], document["limit"], document["key"]) == (quota, limit, key)
    assert int(answer.headers["Retry-After"]) > 0


def test_jobs_and_substreams_of_a_key_are_limited(file: Path, as_key: Client) -> None:
    """The quotas of a key limit its jobs and the substreams of each job. Other keys are not limited."""
    limited = as_key(keyring.create(file, "limited", Role.ADMIN, "mine.", quotas=Quotas(jobs=2, substreams=3)))
    other = as_key(keyring.create(file, "other", Role.ADMIN, ""))
    for job in ("mine.1", "mine.2"):
        limited.put(f"/v1/jobs/{job}", json=CONFIG, headers=CREATE).raise_for_status()
    quota_exceeded(limited.put("/v1/jobs/mine.3", json=CONFIG, headers=CREATE), "jobs", 2, "limited")
    other.put("/v1/jobs/theirs", json=CONFIG, headers=CREATE).raise_for_status()
    assert limited.put("/v1/jobs/mine.2", json=CONFIG, headers={"If-Match": "*"}).status_code == 200
    limited.delete("/v1/jobs/mine.2").raise_for_status()
    limited.put("/v1/jobs/mine.3", json=CONFIG, headers=CREATE).raise_for_status()

    beyond = {"substreams": list("abcd"), "max_event_times": [1, 2, 3, 4]}
    quota_exceeded(limited.post("/v1/jobs/mine.1:report", json=beyond), "substreams", 3, "limited")
    assert limited.get("/v1/jobs/mine.1").json()["substreams"]["active"] == 0
    quota_exceeded(
        limited.post("/v1/jobs/mine.1:declare", json={"substreams": list("abcd")}), "substreams", 3, "limited"
    )
    other.post("/v1/jobs/theirs:report", json=beyond).raise_for_status()
    limited.post(
        "/v1/jobs/mine.1:report", json={"substreams": list("abc"), "max_event_times": [1, 2, 3]}
    ).raise_for_status()


def test_calls_of_a_key_are_limited(file: Path, as_key: Client) -> None:
    """Calls over the rate of a key are refused, and calls of other keys are served."""
    flooding = as_key(keyring.create(file, "flooding", Role.READ, "", quotas=Quotas(requests_per_s=5)))
    other = as_key(keyring.create(file, "patient", Role.READ, ""))
    answers = [flooding.get("/v1/jobs") for _ in range(60)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused, "60 calls within ten seconds must exceed the quota"
    document = problem(refused[0], 429, "rate_limited")
    assert (document["key"], document["limit"], document["burst"]) == ("flooding", 5, 5)
    assert int(refused[0].headers["Retry-After"]) == 1
    counted = re.search(r'^tidegate_refused_calls_total{code="rate_limited"} (.*)$', other.get("/metrics").text, re.M)
    assert counted is not None
    assert float(counted[1]) >= len(refused)
    assert other.get("/v1/jobs").status_code == 200
    until(lambda: flooding.get("/v1/jobs").status_code == 200, "calls of the key are accepted again", 30)


def key_with(quotas: Quotas, name: str = "team") -> Key:
    return new_key(name=name, role=Role.READ, prefix="", created=datetime.now(UTC), quotas=quotas)[1]


def accepted(usage: KeyUsage, key: Key, calls: int) -> int:
    """Return the number of accepted calls."""
    refusals = 0
    for _ in range(calls):
        try:
            usage.request(key)
        except RateLimited:
            refusals += 1
    return calls - refusals


@pytest.mark.parametrize(
    ("usage", "quotas", "at_once", "per_s"),
    [
        (KeyUsage(), Quotas(), 1000, 1000),
        (KeyUsage(), Quotas(requests_per_s=5), 5, 5),
        (KeyUsage(), Quotas(requests_per_s=5, burst=50), 50, 5),
        (KeyUsage(), Quotas(burst=50), 1000, 1000),
        (KeyUsage(10), Quotas(), 10, 10),
        (KeyUsage(10, 40), Quotas(), 40, 10),
        (KeyUsage(10, 40), Quotas(burst=20), 20, 10),
        (KeyUsage(10, 40), Quotas(requests_per_s=5), 5, 5),
        (KeyUsage(10, 40), Quotas(requests_per_s=100, burst=7), 7, 7),
    ],
)
def test_the_rate_and_the_burst_of_a_key(
    monkeypatch: pytest.MonkeyPatch, usage: KeyUsage, quotas: Quotas, at_once: int, per_s: int
) -> None:
    """The quotas of a key replace the settings. Keys with the same name share the limit."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert accepted(usage, key_with(quotas), 999) + accepted(usage, key_with(quotas), 1) == at_once
    assert accepted(usage, key_with(quotas, "other"), 1) == 1
    monkeypatch.setattr(time, "monotonic", lambda: now + 1)
    assert accepted(usage, key_with(quotas), 1000) == per_s


def test_a_setting_limits_every_key(tmp_path: Path) -> None:
    """The limit of the settings applies to keys without a quota. A key with a quota has its own limit."""
    path = tmp_path / "keys.json"
    admin = keyring.create(path, "admin", Role.ADMIN, "")
    exempt = keyring.create(path, "exempt", Role.ADMIN, "", quotas=Quotas(requests_per_s=100_000))
    settings = {"keys_file": str(path), "max_calls_per_s": "1", "max_calls_burst": "3"}
    with CoordinatorProcess(tmp_path / "data", 0, **settings) as process, httpx.Client(base_url=process.url) as http:
        statuses = {}
        for key in (admin, exempt):
            headers = {"Authorization": f"Bearer {key}"}
            statuses[key] = [http.get("/v1/jobs", headers=headers, timeout=60).status_code for _ in range(60)]
        assert statuses[exempt] == [200] * 60
        assert statuses[admin][:3] == [200] * 3
        assert 429 in statuses[admin]


def test_a_session_of_the_page_counts_for_its_key(process: CoordinatorProcess, file: Path, as_key: Client) -> None:
    """Requests of a page session count towards the quota of its key."""
    looking = keyring.create(file, "looking", Role.READ, "", quotas=Quotas(requests_per_s=5))
    as_key(looking)
    with httpx.Client(base_url=process.url, timeout=30) as browser:
        assert login(browser, looking).status_code == 303
        statuses = [browser.get("/").status_code for _ in range(60)]
        assert set(statuses) == {200, 429}
        until(lambda: browser.get("/").status_code == 200, "calls of the key are accepted again", 30)


def test_waiting_clients_of_a_key_are_limited(process: CoordinatorProcess, file: Path, as_key: Client) -> None:
    """Long polls and event streams count as waiting clients until they end."""
    presented = keyring.create(file, "waiting", Role.ADMIN, "", quotas=Quotas(waiting=2))
    http, other = as_key(presented), as_key(keyring.create(file, "another", Role.READ, ""))
    http.put("/v1/jobs/awaited", json=CONFIG, headers=CREATE).raise_for_status()
    path, poll = f"{process.url}/v1/jobs/awaited", {"at_least": 5, "timeout_s": 1}
    with watching(path, key=presented) as events, ThreadPoolExecutor(1) as pool:
        events.take(1)
        with watching(path, key=presented) as more:
            more.take(1)
            quota_exceeded(http.get("/v1/jobs/awaited/watermark", params=poll), "waiting", 2, "waiting")
            quota_exceeded(http.get("/v1/jobs/awaited/watermark:watch"), "waiting", 2, "waiting")
            assert other.get("/v1/jobs/awaited/watermark", params=poll).status_code == 200
        free = pool.submit(
            until,
            lambda: http.get("/v1/jobs/awaited/watermark", params=poll).status_code == 200,
            "the long poll is accepted",
        )
        free.result()


@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_a_stream_ends_with_its_key(process: CoordinatorProcess, file: Path, as_key: Client, end: str) -> None:
    """A stream without events ends within 10 s, before its next keep-alive comment at 15 s."""
    lasts = timedelta(seconds=6) if end == "expired" else None
    presented = keyring.create(file, f"key-{end}", Role.ADMIN, "", lasts)
    http = as_key(presented)
    http.put(f"/v1/jobs/{end}", json=CONFIG, headers=CREATE).raise_for_status()
    with watching(f"{process.url}/v1/jobs/{end}", key=presented) as events:
        events.take(1)
        if end == "revoked":
            keyring.revoke(file, f"key-{end}")
        else:
            until(lambda: http.get("/v1/jobs").status_code == 401, "the key has expired")
            assert problem(http.get("/v1/jobs"), 401, "key_expired")["detail"].startswith("The key key-expired expired")
        began = time.monotonic()
        assert list(events) == []
    print(f"the stream ended after {time.monotonic() - began:.1f} s")
    assert time.monotonic() - began < 10, "the stream did not end before the keep-alive comment at 15 s"


def test_a_key_is_replaced_under_its_name(file: Path, as_key: Client) -> None:
    """The old and the new key are valid during the overlap, with the same role, prefix and quotas."""
    quotas = Quotas(jobs=7)
    old = as_key(keyring.create(file, "rotated", Role.READ, "flights", quotas=quotas))
    new = as_key(keyring.rotate(file, "rotated", timedelta(days=1)))
    assert old.get("/v1/jobs").status_code == new.get("/v1/jobs").status_code == 200
    kept = [key for key in keyring.read(file) if key.name == "rotated"]
    assert [(key.role, key.prefix, key.quotas) for key in kept] == [(Role.READ, "flights", quotas)] * 2
    assert [key.expires is None for key in kept] == [False, True]
    newest = as_key(keyring.rotate(file, "rotated", timedelta(0)))
    until(lambda: new.get("/v1/jobs").status_code == 401, "the earlier keys have expired")
    assert (old.get("/v1/jobs").status_code, newest.get("/v1/jobs").status_code) == (401, 200)


def test_a_stream_of_a_replaced_key_continues(process: CoordinatorProcess, file: Path, as_key: Client) -> None:
    """A stream continues while its replaced key is still valid."""
    presented = keyring.create(file, "lasting", Role.ADMIN, "")
    http = as_key(presented)
    http.put("/v1/jobs/lasting", json=CONFIG, headers=CREATE).raise_for_status()
    with watching(f"{process.url}/v1/jobs/lasting", key=presented) as events:
        events.take(1)
        as_key(keyring.rotate(file, "lasting", timedelta(days=1)))
        time.sleep(2)
        http.post("/v1/jobs/lasting:report", json=REPORT).raise_for_status()
        assert events.take(1)


def test_the_last_use_of_a_key_is_known(tmp_path: Path) -> None:
    """The store keeps the last use of a key across restarts."""
    path = tmp_path / "keys.json"
    admin, unused = keyring.create(path, "admin", Role.ADMIN, ""), keyring.create(path, "unused", Role.READ, "x")
    before = int(time.time())
    for _ in range(2):
        with CoordinatorProcess(tmp_path / "data", keys_file=str(path)) as process:
            headers = {"Authorization": f"Bearer {admin}"}
            listed = httpx.get(f"{process.url}/v1/keys", headers=headers, timeout=30).raise_for_status()
    keys = {key["name"]: key for key in listed.json()["keys"]}
    assert before <= keys["admin"]["last_used_s"] <= time.time()
    assert keys["unused"]["last_used_s"] is None
    assert all(split_key(key)[2] not in listed.text for key in (admin, unused))
    assert "sha256" not in listed.text


def test_the_last_use_of_a_revoked_key_is_forgotten(valkey: EmbeddedValkey, file: Path, tmp_path: Path) -> None:
    """The keys of years must not collect in Redis. Another replica may not have read a new key yet."""
    keyring.create(file, "still-used", Role.READ, "")
    [known] = [key.id for key in keyring.read(file) if key.name == "still-used"]
    revoked, recent = "0" * 12, "1" * 12
    with Redis(unix_socket_path=str(valkey.socket), decode_responses=True) as redis:
        redis.hset("tidegate:keys", mapping={revoked: 1, known: 1, recent: round(time.time())})
        with CoordinatorProcess(tmp_path / "data", redis_url=valkey.url, keys_file=str(file)):
            until(lambda: not redis.hexists("tidegate:keys", revoked), "the last use of the revoked key is forgotten")
        assert {known, recent} <= redis.hgetall("tidegate:keys").keys()
        redis.delete("tidegate:keys")
