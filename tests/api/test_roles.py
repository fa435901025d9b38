"""Authorization of every operation: with every role, within the key's prefix and outside it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.api import CONFIG, DOCUMENT, RUN, problem
from tests.support.events import watching
from tests.support.roles import MAY
from tidegate.auth import keyring
from tidegate.auth.roles import Role
from tidegate.page.actions import ACTIONS
from tidegate_spark.testing import CoordinatorProcess

CREATE = {"If-None-Match": "*"}

BODIES: dict[str, dict[str, Any]] = {
    "configure": CONFIG,
    "report": {"substreams": ["a"], "max_event_times": [1]},
    "begin": RUN,
    "commit": RUN,
    "heartbeat": RUN | {"observed_ms": 0},
    "declare": {"substreams": []},
    "idle": {"substreams": []},
    "done": {"substreams": []},
    "evict": {"substreams": []},
    "restore": {"substreams": [], "watermarks": []},
    "hand_over": {"successor": "r"},
    "retire": {},
    "complete": {},
    "reopen": {},
    "reset": {},
    "hold": {"at_most": 5, "reason": "a test"},
    "consume": {"owner": "o", "lease_ms": 1000},
}
PUBLIC = {"livez", "readyz"}
CALLS = {
    call["operationId"]: (method, path)
    for path, methods in json.loads(DOCUMENT.read_text())["paths"].items()
    for method, call in methods.items()
}


@dataclass
class Guarded:
    """A coordinator with one key per role for the jobs ``mine*``, and its log."""

    process: CoordinatorProcess
    keys: dict[str, str]
    log: Path
    http: httpx.Client

    def send(self, operation: str, job: str, key: str | None, headers: dict[str, str] | None = None) -> httpx.Response:
        method, path = CALLS[operation]
        url = self.process.url + path.format(job=job, query="q", batch=0, hold="h", start=0, consumer="c")
        sent = dict(headers or {})
        if key is not None:
            sent["Authorization"] = f"Bearer {key}"
        if operation == "configure":
            sent |= CREATE
        request = self.http.build_request(method, url, headers=sent, json=BODIES.get(operation))
        answer = self.http.send(request, stream=operation == "watch")
        if answer.status_code != 200 or operation != "watch":
            answer.read()
        answer.close()
        return answer


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    file = directory / "keys.json"
    keys = {role.value: keyring.create(file, f"key-{role}", role, "mine") for role in Role}
    keys["root"] = keyring.create(file, "root", Role.ADMIN, "")
    with (
        CoordinatorProcess(directory / "data", keys_file=str(file), max_body_bytes="65536") as process,
        httpx.Client(timeout=30) as http,
    ):
        found = Guarded(process, keys, directory / "data" / "coordinator.log", http)
        for job in ("mine", "mine-too", "yours"):
            assert found.send("configure", job, keys["root"]).status_code == 201
        yield found
        logged = found.log.read_text()
        for key in keys.values():
            assert key.split("_", 2)[2] not in logged


def test_the_matrix_has_every_operation() -> None:
    """A new operation must declare its roles, in the test's matrix and in the OpenAPI document."""
    assert MAY.keys() == CALLS.keys()
    document = json.loads(DOCUMENT.read_text())
    for operation, (method, path) in CALLS.items():
        declared = document["paths"][path][method]["security"]
        assert declared == ([] if operation in PUBLIC else [{"key": [role for role in Role if role in MAY[operation]]}])


@pytest.mark.parametrize("role", [role.value for role in Role])
@pytest.mark.parametrize("operation", CALLS)
def test_the_matrix(guarded: Guarded, operation: str, role: str) -> None:
    """A key may call the operations of its role, for jobs with its prefix. The name of any other job is refused."""
    key = guarded.keys[role]
    answer = guarded.send(operation, "mine", key)
    if role in MAY[operation]:
        assert answer.status_code not in (401, 403), answer.text
    else:
        assert problem(answer, 403, "role_not_allowed")["role"] == role
    if "{job}" in CALLS[operation][1]:
        for job in ("yours", "there-is-none", "min"):
            assert problem(guarded.send(operation, job, key), 403, "job_not_allowed")["prefix"] == "mine"
    guarded.send("configure", "mine", guarded.keys["root"])  # if the operation deleted or completed it
    guarded.send("reopen", "mine", guarded.keys["root"])


@pytest.mark.parametrize("operation", CALLS)
def test_requests_without_a_known_key_are_refused(guarded: Guarded, operation: str) -> None:
    known = guarded.keys["admin"]
    headers: dict[str, str]
    for headers, code in (
        ({}, "key_required"),
        ({"Authorization": f"Basic {known}"}, "key_required"),
        ({"Authorization": known}, "key_required"),
        ({"Authorization": "Bearer"}, "key_required"),
        ({"Authorization": f"Bearer {known}x"}, "key_unknown"),
        ({"Authorization": f"Bearer {known[:-1]}"}, "key_unknown"),
        ({"Authorization": "Bearer tdg_000000000000_"}, "key_unknown"),
    ):
        answer = guarded.send(operation, "mine", None, headers)
        if operation in PUBLIC:
            assert answer.status_code == 200
            continue
        assert known not in answer.text
        problem(answer, 401, code)
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_the_page_requires_the_roles_of_the_api() -> None:
    """The page and the API allow each action to the same roles."""
    for verb, action in ACTIONS.items():
        assert set(action.roles) == MAY[verb], verb


def test_a_list_has_the_jobs_that_a_key_is_for(guarded: Guarded) -> None:
    """A key must not see the names of jobs outside its prefix."""
    for key, seen, hidden in (
        ("read", {"mine", "mine-too"}, {"yours"}),
        ("root", {"mine", "mine-too", "yours"}, set()),
    ):
        listed = {record["job"] for record in guarded.send("list_jobs", "", guarded.keys[key]).json()["jobs"]}
        assert (seen - listed, hidden & listed) == (set(), set())


def test_a_reporter_creates_jobs_and_cannot_change_them(guarded: Guarded) -> None:
    """A key with the role `report` can create a job but cannot change its configuration."""
    url = f"{guarded.process.url}/v1/jobs/mine-created"
    with httpx.Client(headers={"Authorization": f"Bearer {guarded.keys['report']}"}) as http:
        created = http.put(url, json=CONFIG, headers=CREATE)
        assert created.status_code == 201
        match = {"If-Match": created.headers["ETag"]}
        for headers in ({"If-Match": "*"}, match, {}):
            problem(http.put(url, json=CONFIG, headers=headers), 403, "role_not_allowed")
        problem(http.put(url, json=CONFIG, headers=CREATE), 412, "job_exists")
        problem(http.delete(url), 403, "role_not_allowed")
    with httpx.Client(headers={"Authorization": f"Bearer {guarded.keys['operate']}"}) as http:
        assert http.put(url, json=CONFIG, headers=match).status_code == 200
        history = http.get(f"{url}/history").json()["records"]
    actors = [(record["kind"], record["actor"]) for record in history if record["kind"] in ("created", "config")]
    assert actors == [("config", "key-operate"), ("created", "key-report")]


def test_each_action_names_its_actor(guarded: Guarded) -> None:
    """The actor comes from the key, and a request cannot name another one."""
    guarded.send("declare", "mine-too", guarded.keys["report"])
    with httpx.Client(headers={"Authorization": f"Bearer {guarded.keys['operate']}"}) as http:
        url = f"{guarded.process.url}/v1/jobs/mine-too"
        body = {"at_most": 5, "reason": "looking into it", "actor": "root"}
        problem(http.post(f"{url}/holds", json=body), 422, "invalid_request")
        del body["actor"]
        assert http.post(f"{url}/holds", json=body).status_code == 200
        [record] = http.get(f"{url}/history", params={"kind": "action", "limit": 1}).json()["records"]
    assert (record["action"], record["actor"], record["reason"]) == ("hold", "key-operate", "looking into it")


def test_a_stream_ends_with_its_key(tmp_path: Path) -> None:
    """A revoked key's stream sends no further events."""
    file = tmp_path / "keys.json"
    root = keyring.create(file, "root", Role.ADMIN, "")
    lost = keyring.create(file, "lost", Role.READ, "")
    with CoordinatorProcess(tmp_path / "data", keys_file=str(file)) as process:
        http = httpx.Client(base_url=process.url, headers={"Authorization": f"Bearer {root}"})
        http.put("/v1/jobs/j", json=CONFIG, headers=CREATE).raise_for_status()
        with watching(f"{process.url}/v1/jobs/j", key=lost) as events:
            events.take(1)
            keyring.revoke(file, "lost")
            for time in range(1000):
                http.post("/v1/jobs/j:report", json={"substreams": ["a"], "max_event_times": [time]}).raise_for_status()
                if httpx.get(f"{process.url}/v1/jobs", headers={"Authorization": f"Bearer {lost}"}).status_code == 401:
                    break
            http.post("/v1/jobs/j:report", json={"substreams": ["a"], "max_event_times": [5000]}).raise_for_status()
            assert 4990 not in [event.data.get("watermark") for event in events]
        http.close()


def test_the_key_is_checked_before_the_request(guarded: Guarded) -> None:
    """Requests without a key get no information about paths or about errors in the body."""
    for method, path, content in (
        ("POST", "/v1/jobs/mine:report", b"no json"),
        ("POST", "/v1/jobs/mine:report", b"x" * 100_000),
        ("GET", "/v1/jobs/mine/watermark?misspelt=1", b""),
        ("GET", "/nowhere", b""),
        ("PATCH", "/v1/jobs/mine", b""),
    ):
        problem(httpx.request(method, guarded.process.url + path, content=content), 401, "key_required")


def test_any_host_is_valid_with_a_key(guarded: Guarded) -> None:
    """A request with a key may name any host, such as the host of a proxy. Foreign pages cannot send the key."""
    headers = {"Authorization": f"Bearer {guarded.keys['read']}", "Host": "tidegate.example"}
    assert httpx.get(f"{guarded.process.url}/v1/jobs/mine", headers=headers).status_code == 200
