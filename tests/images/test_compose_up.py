"""docker-compose.yml on a Docker engine, with the images of the Dockerfile: what a user does, sees and may rely on."""

import json
import logging
import re
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.engine import ROOT, Compose
from tests.support.flights import check_accounts, check_windows, replayed
from tests.support.waiting import until

URL = "http://127.0.0.1:8000"
START_S = 300
RUN_S = 900
"""Limits for machines that do other work. On two free cores, the cluster is healthy within 45 s."""
LASTING = {
    "valkey",
    "coordinator-1",
    "coordinator-2",
    "proxy",
    "spark-master",
    "spark-worker-1",
    "spark-worker-2",
    "kafka",
}
"""Services with a health check that the first start begins, with the profile ``kafka``."""

# A test's timeout includes its fixtures. With an empty cache they take minutes.
pytestmark = pytest.mark.timeout(2400)
log = logging.getLogger("compose")


def test_the_flights_survive_restarts_and_kills(compose: Compose, tmp_path: Path) -> None:
    """Valkey and a coordinator are restarted and killed while the job runs, and the whole cluster after it. Every
    window is exact, also of the job on Kafka that follows, and no job, watermark, count or key is lost.
    """
    printed = tmp_path / "printed"
    began = time.monotonic()
    log.info("docker compose --profile kafka up ...")
    shown = compose.popen("--profile", "kafka", "up", output=printed)
    try:
        _await_health(compose, LASTING)
        healthy = time.monotonic()
        log.info("All services are healthy after %.0f s.", healthy - began)
        _await_line(printed, "flights")
        log.info("The job printed its first line %.0f s later.", time.monotonic() - healthy)
        _check_privileges(compose)

        address = _printed_address(printed, "flights")
        assert httpx.get(address, follow_redirects=True).is_success
        job = address.rpartition("/")[2]
        key = {"Authorization": f"Bearer {compose('run', '--rm', 'key').strip()}"}
        created = compose("run", "--rm", "keys", "create", "reader", "--role", "read").strip()
        reader = {"Authorization": f"Bearer {created}"}
        until(lambda: _get(f"/v1/jobs/{job}", reader).is_success, "both coordinators know the new key")
        _make_job(key)

        out = compose.volume("flights-data") / "demo"

        def batches() -> int:
            assert "flights-1 exited" not in printed.read_text()
            return len(list((out / "state" / "batches").glob("batch-*.json")))

        until(lambda: batches() >= 4, "the job has committed batches", RUN_S)
        log.info("The first batches are committed after %.0f s.", time.monotonic() - healthy)
        before = _state(reader)
        for number, step in enumerate((["restart", "valkey"], ["kill", "valkey"], ["kill", "coordinator-1"]), start=1):
            reached = batches()
            log.info("docker compose %s, after %d batches ...", " ".join(step), reached)
            compose(*step)
            if step == ["kill", "valkey"]:
                compose("start", "valkey")
            before = _check_kept(before, _awaited_state(reader))
            if number < 3:
                until(lambda reached=reached: batches() >= reached + 2, "the job goes on", RUN_S)  # type: ignore[misc]
        assert batches() < 17, "the services must be killed while batches remain"
        compose("restart", "kafka")  # The job on Kafka uses a broker that has found its storage.
        log.info("The job goes on to its end ...")
        until(lambda: "flights-1 exited with code 0" in printed.read_text(), "the flights have ended", RUN_S)
        log.info("The job has ended after %.0f s.", time.monotonic() - began)

        _check_output(out, job, reader)
        before = _check_kept(before, _state(reader))

        _await_line(printed, "flights-kafka")
        started = time.monotonic()
        _check_privileges(compose)
        of_kafka = _printed_address(printed, "flights-kafka").rpartition("/")[2]
        until(lambda: "flights-kafka-1 exited with code 0" in printed.read_text(), "the job on Kafka has ended", RUN_S)
        log.info("The job on Kafka has ended after %.0f s.", time.monotonic() - started)
        _check_output(compose.volume("flights-data") / "demo-kafka", of_kafka, reader)
        before = _check_kept(before, _state(reader))

        log.info("docker compose --profile kafka down ...")
        compose("--profile", "kafka", "down")
        shown.wait(60)
        assert compose.states() == {}
        log.info("docker compose up proxy ...")
        compose("up", "--detach", "--wait", "proxy", timeout_s=START_S)
        assert "The secrets exist already." in compose("logs", "secrets")
        _check_kept(before, _awaited_state(reader))
        assert _get(f"/v1/jobs/{job}", key).json()["health"] == "complete"
    finally:
        shown.send_signal(signal.SIGINT)
        shown.wait(120)
        print(printed.read_text()[-20_000:])


def test_a_start_is_completed_and_everything_is_removed(compose: Compose) -> None:
    """After an interrupted first start, the next start creates the secrets again. The user of the coordinators has the
    permissions that they need, and no others. Prometheus has both coordinators and all rules, with a read-only file
    system. ``down --volumes`` leaves nothing behind.
    """
    compose("up", "secrets", timeout_s=START_S)
    keys = compose.volume("coordinator-secrets") / "keys.json"
    keys.rename(keys.parent / ".keys.json")
    log.info("docker compose --profile observe up proxy prometheus ...")
    compose("--profile", "observe", "up", "--detach", "--wait", "proxy", "prometheus", timeout_s=START_S)
    assert compose("logs", "secrets").count("Created the secrets.") == 2
    _check_privileges(compose)
    _check_permissions(compose)

    def query(path: str, **params: str) -> Any:
        return httpx.get(f"http://127.0.0.1:9090/api/v1/{path}", params=params).raise_for_status().json()["data"]

    until(lambda: [series["value"][1] for series in query("query", query="up")["result"]] == ["1", "1"], "both are up")
    rules = (ROOT / "deploy" / "observe" / "prometheus" / "tidegate.rules.yml").read_text()
    assert sum(len(group["rules"]) for group in query("rules")["groups"]) == rules.count("alert:") > 0
    log.info("docker compose --profile '*' down --volumes ...")
    compose("--profile", "*", "down", "--volumes")
    assert compose.engine.docker("ps", "--all", "--quiet") == ""
    assert compose.engine.docker("volume", "ls", "--quiet") == ""
    networks = compose.engine.docker("network", "ls", "--format", "{{.Name}}").split()
    assert {name for name in networks if name.startswith("tidegate")} == set()


def _check_permissions(compose: Compose) -> None:
    """Make all calls that read, and check that Valkey denied no command that the coordinators sent for them."""
    key = {"Authorization": f"Bearer {compose('run', '--rm', 'key').strip()}"}
    _make_job(key)
    paths: dict[str, Any] = json.loads((ROOT / "openapi" / "tidegate.v1.json").read_text())["paths"]
    for path in (*paths, "/", "/jobs/kept"):
        if "get" in paths.get(path, {"get": ...}) and not path.endswith((":watch", "/live")):
            names = {"job": "kept", "query": "q", "batch": 0, "start": 1357552800000, "consumer": "none"}
            answer = _get(path.format(**names), key)
            assert answer.status_code in (200, 303, 404), answer.text
    assert _get("/v1/jobs", {}).status_code == 401
    metrics = _get("/metrics?substreams=*", key).raise_for_status().text
    assert "tidegate_store_up 1.0" in metrics
    assert 'tidegate_substream_watermark_timestamp_seconds{job_name="kept"' in metrics
    user = (compose.volume("coordinator-secrets") / "tidegate_redis_url").read_text().replace("@valkey:", "@127.0.0.1:")

    def send(*words: str) -> str:
        return compose("exec", "valkey", "valkey-cli", "--no-auth-warning", "-u", user, *words)

    denied = dict(re.findall(r"acl_access_denied_(\w+):(\d+)", send("INFO", "stats")))
    assert denied.keys() >= {"auth", "cmd", "key", "channel"}  # later versions count more
    assert set(denied.values()) == {"0"}
    for forbidden in (["FLUSHALL"], ["KEYS", "*"], ["CONFIG", "GET", "*"], ["ACL", "LIST"], ["SET", "other", "1"]):
        assert "NOPERM" in send(*forbidden)


def _get(path: str, key: dict[str, str]) -> httpx.Response:
    return httpx.get(f"{URL}{path}", headers=key, timeout=60)


def _await_health(compose: Compose, names: set[str]) -> None:
    def healthy() -> bool:
        states = compose.states()
        failed = {name: state for name, state in states.items() if re.fullmatch(r"unhealthy|exited [1-9]\d*", state)}
        assert not failed, f"{failed}\n{compose('logs', '--tail', '50')}"
        return all(states.get(name) == "healthy" for name in names)

    until(healthy, f"{sorted(names)} are healthy", START_S, every_s=2)


def _await_line(printed: Path, service: str) -> None:
    line = re.compile(rf"^{service}-1 +\|", re.MULTILINE)
    until(lambda: line.search(printed.read_text()) is not None, f"{service} prints a line", START_S)


def _printed_address(printed: Path, service: str) -> str:
    found: list[str] = []

    def has_address() -> bool:
        found[:] = re.findall(rf"^{service}-1 +\| Watch the job at (http://\S+)", printed.read_text(), re.MULTILINE)
        return bool(found)

    until(has_address, "the job prints the address of its page", START_S)
    assert found[0].startswith(f"{URL}/jobs/flights-")
    return found[0]


def _check_output(out: Path, job: str, key: dict[str, str]) -> None:
    """Check the windows and the counts of a job of the demo, in its output and in the coordinator."""
    expected = replayed(out, 1)
    summary = check_accounts(out, expected)
    assert summary["null_event_time"] == 0
    check_windows(out, expected)
    shown = _get(f"/v1/jobs/{job}", key).json()
    assert (shown["health"], shown["rows"]["on_time"]) == ("complete", summary["on_time"])


def _make_job(key: dict[str, str]) -> None:
    """Create a job that has no client, which could restore its state."""
    rules = {"policy": {"type": "limiting_lag", "lag_ms": 10}, "frames": {"every": "hour"}}
    report = {"substreams": ["a"], "max_event_times": [100]}
    with httpx.Client(base_url=URL, headers=key, timeout=60) as http:
        http.put("/v1/jobs/kept", json=rules, headers={"If-None-Match": "*"}).raise_for_status()
        assert http.post("/v1/jobs/kept:report", json=report).json()["watermark"] == 90


def _state(key: dict[str, str]) -> dict[str, Any]:
    """Return the state of each job by its name."""
    listed = _get("/v1/jobs", key).raise_for_status().json()["jobs"]
    return {job["job"]: _get(f"/v1/jobs/{job['job']}", key).raise_for_status().json() for job in listed}


def _awaited_state(key: dict[str, str]) -> dict[str, Any]:
    def ready() -> bool:
        try:
            return _get("/readyz", key).is_success and _get("/v1/jobs", key).is_success
        except httpx.TransportError:
            return False

    until(ready, "a coordinator is ready")
    return _state(key)


def _check_kept(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Check that no job has lost anything, and return the later state."""
    assert before.keys() <= after.keys()
    for name, was in before.items():
        now = after[name]
        for same in ("state_epoch", "incarnation", "created_ms", "config"):
            assert now[same] == was[same], (name, same)
        for rising in ("watermark", "max_event_time", "emissions"):
            assert (now[rising] or 0) >= (was[rising] or 0), (name, rising)
        assert now["rows"]["on_time"] >= was["rows"]["on_time"], name
    assert after["kept"]["watermark_token"] == before["kept"]["watermark_token"]
    return after


def _check_privileges(compose: Compose) -> None:
    """Check on the processes that no container has root, capabilities, or a file system to write to."""
    running = [name for name, state in compose.states().items() if not state.startswith(("created", "exited"))]
    assert len(running) >= 4
    for name in running:
        inspected = compose.inspect(name)
        assert inspected["HostConfig"]["Memory"] > 0, name
        process = psutil.Process(inspected["State"]["Pid"])
        assert 0 not in (*process.uids(), *process.gids()), name
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE), name
        assert set(re.findall(r"^Cap(?:Inh|Prm|Eff|Bnd|Amb):\s+(\d+)$", status, re.MULTILINE)) == {"0" * 16}, name
        mounts = [line.split() for line in Path(f"/proc/{process.pid}/mountinfo").read_text().splitlines()]
        (root,) = (options for _, _, _, _, point, options, *_ in mounts if point == "/")
        assert "ro" in root.split(","), name
    used = compose.engine.docker("stats", "--no-stream", "--format", "{{.Name}} {{.MemUsage}}")
    log.info("Memory of each container and its limit:\n%s", used)
