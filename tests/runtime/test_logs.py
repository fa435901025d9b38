"""The log of a replica: lines that identify their call, optionally in JSON, without secrets."""

import json
from pathlib import Path
from typing import Any

import httpx
from redis import Redis

from tests.support.api import CONFIG, RUN
from tidegate.store.embedded import EmbeddedValkey
from tidegate.store.keyspace import job_key, key_of
from tidegate_spark.testing import CoordinatorProcess


def written(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "coordinator.log").read_text().splitlines()]


def test_a_line_names_its_call(tmp_path: Path) -> None:
    """A line contains the request id, the job, the query and the batch, from the path or the body."""
    with (
        CoordinatorProcess(tmp_path, log_format="json") as process,
        httpx.Client(base_url=process.url, timeout=30) as http,
    ):
        http.put("/v1/jobs/j", json=CONFIG, headers={"If-None-Match": "*", "X-Request-ID": "mine-1"}).raise_for_status()
        fenced = http.post("/v1/jobs/j/queries/q/batches/7:commit", json=RUN)
        reference = {"query": "q", **RUN, "batch_id": 9, "partition": 0}
        body = {"substreams": ["a"], "max_event_times": [1], "batch": reference}
        staged = http.post("/v1/jobs/j:report", json=body, headers={"X-Request-ID": 'no "id"'})
        http.get("/v1/jobs/none")
        http.post("/v1/jobs/j:report", json={"substreams": ["a"], "max_event_times": [1]}).raise_for_status()
        act = {"substreams": ["a"], "reason": "a line"}
        http.post("/v1/jobs/j/substreams:idle", json=act).raise_for_status()
        http.post("/v1/jobs/j/act", json={})
    lines = [line for line in written(tmp_path) if line["logger"] in ("tidegate.http.observed", "tidegate.audit")]
    assert {line["client"] for line in lines if line["logger"] == "tidegate.audit"} == {"127.0.0.1"}
    always = ("timestamp", "level", "logger", "client")
    entries = [{name: value for name, value in line.items() if name not in always} for line in lines]
    ids = [answer.headers["x-request-id"] for answer in (fenced, staged)]
    assert all(len(one) == 16 for one in ids)
    assert entries[:4] == [
        {"event": "Call completed.", "request": "mine-1", "job": "j", "call": "configure", "status": 201},
        {
            "event": "Call refused.",
            "request": ids[0],
            "job": "j",
            "query": "q",
            "batch": "7",
            "call": "commit",
            "status": 409,
            "code": "batch_not_begun",
        },
        {
            "event": "Call refused.",
            "request": ids[1],
            "job": "j",
            "query": "q",
            "batch": 9,
            "call": "report",
            "status": 409,
            "code": "batch_not_begun",
        },
        {"event": "Call completed.", "request": entries[3]["request"], "job": "j", "call": "idle", "status": 200},
    ]
    assert [line["call"] for line in entries[4:]] == ["none"]


def test_a_failure_is_one_line_with_its_traceback(valkey: EmbeddedValkey, job_name: str, tmp_path: Path) -> None:
    """A failure is one line with its traceback, and it is counted."""
    with (
        CoordinatorProcess(tmp_path, log_format="json", redis_url=valkey.url) as process,
        httpx.Client(base_url=process.url, timeout=30) as http,
        Redis(unix_socket_path=str(valkey.socket)) as redis,
    ):
        http.put(f"/v1/jobs/{job_name}", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        redis.set(key_of(job_name, "active"), "no sorted set")
        failed = http.get(f"/v1/jobs/{job_name}")
        assert (failed.status_code, failed.json()["code"]) == (500, "state_damaged")
        assert (
            'tidegate_http_request_duration_seconds_count{call="status",status="500"} 1.0'
            in httpx.get(f"{process.url}/metrics").text
        )
        redis.delete(job_key(job_name))
    lines = [line for line in written(tmp_path) if "exception" in line]
    assert all("WRONGTYPE" in line["exception"] and line["level"] == "error" for line in lines)
    assert job_name in [line.get("job") for line in lines]


def test_the_default_format_is_text(tmp_path: Path) -> None:
    """Text is the default format. A file contains no colours, and the same members as JSON."""
    with CoordinatorProcess(tmp_path) as process, httpx.Client(base_url=process.url, timeout=30) as http:
        http.put("/v1/jobs/j", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
    [line] = [line for line in (tmp_path / "coordinator.log").read_text().splitlines() if "Call completed." in line]
    assert "\x1b" not in line and "[info     ] Call completed." in line and "job=j" in line
