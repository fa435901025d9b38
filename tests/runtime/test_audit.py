"""The audit log: changes of jobs, refused requests and logins."""

import json
from pathlib import Path
from typing import Any

import httpx

from tests.support.api import CONFIG, login, problem
from tests.support.waiting import until
from tidegate.auth import keyring
from tidegate.auth.roles import Role
from tidegate_spark.testing import CoordinatorProcess

CREATE = {"If-None-Match": "*"}


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_audit_file_contains_changes_and_refusals(tmp_path: Path) -> None:
    """Lines contain the address of the client, the name of the key and the request, and no secret."""
    keys, audit = tmp_path / "keys.json", tmp_path / "audit.log"
    admin, reader = keyring.create(keys, "boss", Role.ADMIN, ""), keyring.create(keys, "reader", Role.READ, "mine")
    with (
        CoordinatorProcess(
            tmp_path / "data", keys_file=str(keys), audit_file=str(audit), trusted_proxies="127.0.0.1"
        ) as process,
        httpx.Client(base_url=process.url, timeout=30) as http,
    ):
        as_admin = {"Authorization": f"Bearer {admin}", "X-Forwarded-For": "10.1.2.3", "X-Request-ID": "r1"}
        http.put("/v1/jobs/mine", json=CONFIG, headers=as_admin | CREATE).raise_for_status()
        report = {"substreams": ["a"], "max_event_times": [1]}
        http.post("/v1/jobs/mine:report", json=report, headers=as_admin).raise_for_status()
        as_reader = {"Authorization": f"Bearer {reader}", "X-Request-ID": "r2"}
        problem(http.post("/v1/jobs/mine:complete", json={}, headers=as_reader), 403, "role_not_allowed")
        problem(http.get("/v1/jobs/other", headers=as_reader), 403, "job_not_allowed")
        problem(http.get("/v1/jobs/mine", headers={"X-Request-ID": "r3"}), 401, "key_required")
        # The coordinator writes a line after its answer.
        until(lambda: audit.read_text().count("\n") == 4, "four lines in the audit file")
        # Move the audit log away, as logrotate does.
        first = audit.rename(tmp_path / "audit.log.1")
        assert login(http, "tdg_wrong").status_code == 401
        assert login(http, admin).status_code == 303
    members = ("event", "client", "key", "request", "call", "status", "code", "job", "path")
    entries = [{name: line[name] for name in members if name in line} for line in lines(first)]
    assert entries == [
        {
            "event": "Call completed.",
            "client": "10.1.2.3",
            "key": "boss",
            "request": "r1",
            "call": "configure",
            "status": 201,
            "job": "mine",
        },
        {
            "event": "Access refused.",
            "client": "127.0.0.1",
            "key": "reader",
            "request": "r2",
            "call": "complete",
            "status": 403,
            "code": "role_not_allowed",
            "job": "mine",
            "path": "/v1/jobs/mine:complete",
        },
        {
            "event": "Access refused.",
            "client": "127.0.0.1",
            "key": "reader",
            "request": "r2",
            "call": "status",
            "status": 403,
            "code": "job_not_allowed",
            "job": "other",
            "path": "/v1/jobs/other",
        },
        {
            "event": "Access refused.",
            "client": "127.0.0.1",
            "request": "r3",
            "call": "none",
            "status": 401,
            "code": "key_required",
            "path": "/v1/jobs/mine",
        },
    ]
    assert [(line["event"], line.get("key"), line["status"]) for line in lines(audit)] == [
        ("Login refused.", None, 401),
        ("Logged in or out.", "boss", 303),
    ]
    for text in (first.read_text(), audit.read_text(), (tmp_path / "data" / "coordinator.log").read_text()):
        assert admin.split("_", 2)[2] not in text
    assert "tidegate.audit" not in (tmp_path / "data" / "coordinator.log").read_text()


def test_logins_are_throttled_by_address(tmp_path: Path) -> None:
    """After ten failures, an address must wait. Other addresses are not affected. Only a trusted proxy can forward an
    address.
    """
    keys = tmp_path / "keys.json"
    admin = keyring.create(keys, "boss", Role.ADMIN, "")
    with (
        CoordinatorProcess(tmp_path / "data", keys_file=str(keys), trusted_proxies="127.0.0.1") as process,
        httpx.Client(base_url=process.url, timeout=30, headers={"X-Forwarded-For": "10.0.0.1"}) as attacker,
        httpx.Client(base_url=process.url, timeout=30, headers={"X-Forwarded-For": "10.0.0.2"}) as other,
    ):
        answers = [login(attacker, f"tdg_{n}").status_code for n in range(20)]
        assert answers[:10] == [401] * 10 and 429 in answers
        refused = login(attacker, admin)
        assert (refused.status_code, refused.headers["Retry-After"]) in ((429, "6"),)
        assert login(other, admin).status_code == 303


def test_refusals_of_one_client_do_not_fill_the_log(tmp_path: Path) -> None:
    """The log contains the first fifty refusals in full, then a few per second with the number of omitted ones.

    Each key has its own limit, so refusals without a key cannot displace those of a key.
    """
    keys, audit = tmp_path / "keys.json", tmp_path / "audit.log"
    reader = keyring.create(keys, "reader", Role.READ, "mine")
    sent = 0
    with (
        CoordinatorProcess(tmp_path / "data", keys_file=str(keys), audit_file=str(audit)) as process,
        httpx.Client(base_url=process.url, timeout=30) as http,
    ):

        def omitted() -> int:
            nonlocal sent
            for _ in range(50):
                assert http.get("/v1/jobs/j").status_code == 401
                assert http.post("/login", data={"x": "y"}).status_code in (403, 429)
            sent += 100
            return sum(int(line.get("not_logged", 0)) for line in lines(audit))

        until(lambda: omitted() > 200, "the log has the number of omitted refusals")
        problem(http.get("/v1/jobs/other", headers={"Authorization": f"Bearer {reader}"}), 403, "job_not_allowed")
    entries = lines(audit)
    assert entries[-1]["key"] == "reader"
    assert len(entries) + sum(int(line.get("not_logged", 0)) for line in entries) >= sent / 2
    assert len(entries) < sent
