"""``tidegate serve``: refused settings, restarts, shutdown and outages of Redis."""

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest
from redis import Redis

from tests.support.ports import listens
from tests.support.redis_servers import RedisServer, running
from tests.support.sentinels import with_replicas
from tests.support.serve import fails, refused
from tests.support.waiting import until
from tidegate.store.embedded import EmbeddedValkey
from tidegate_spark.testing import CoordinatorProcess

CONFIG = {"policy": {"type": "limiting_lag", "lag_ms": 10}}


def test_a_port_in_use_leaves_nothing_behind(tmp_path: Path) -> None:
    """If the port is in use, the coordinator exits before it starts Valkey."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert "TIDEGATE_PORT" in fails(tmp_path, TIDEGATE_PORT=port)
    assert not (tmp_path / "data").exists()


def test_a_redis_that_cannot_be_reached_is_named_without_its_password(tmp_path: Path) -> None:
    """The error shows the URL without its password, because the line is logged."""
    line = fails(tmp_path, TIDEGATE_REDIS_URL="redis://user:secret@127.0.0.1:1/0")
    assert "TIDEGATE_REDIS_URL" in line
    assert "secret" not in line


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIDEGATE_PORT", "http"),
        ("TIDEGATE_HOST", "0.0.0.0"),  # noqa: S104 - it is refused
        ("TIDEGATE_REDIS_URL", "ftp://localhost"),
        ("TIDEGATE_SWEEP_INTERVAL_MS", "0"),
        ("TIDEGATE_TOKEN_SECRET", "short"),
    ],
)
def test_an_invalid_setting_is_named(tmp_path: Path, name: str, value: str) -> None:
    assert name in fails(tmp_path, **{name: value})


@pytest.mark.parametrize("kind", ["binary", "directory"])
def test_an_unreadable_secret_is_refused(tmp_path: Path, kind: str) -> None:
    """Without the address in the file, the coordinator would start with an embedded Valkey, which has no jobs."""
    file = tmp_path / "tidegate_redis_url"
    if kind == "binary":
        file.write_bytes(b"\xff")
    else:
        file.mkdir()
    assert "TIDEGATE_SECRETS_DIR: cannot read a file" in fails(tmp_path, TIDEGATE_SECRETS_DIR=str(tmp_path))


def test_an_empty_key_of_the_tokens_is_refused(tmp_path: Path) -> None:
    """A new key makes all tokens invalid, so the operator must decide."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "token.secret").touch()
    assert "token.secret: expected hexadecimal digits" in fails(tmp_path)


def test_an_unsuitable_redis_is_refused_with_one_line(tmp_path: Path) -> None:
    """``tests/store/test_checks.py`` has the lines for all addresses."""
    with with_replicas(tmp_path, 1) as (primary, [replica]):
        primary.redis.acl_setuser("reader", enabled=True, passwords=["+secret"], keys=["*"], categories=["+@read"])
        foreign = fails(tmp_path, TIDEGATE_REDIS_URL=f"redis://{primary.address}/0?foo=1")
        assert "has the parameter foo" in foreign
        reader = fails(tmp_path, TIDEGATE_REDIS_URL=f"redis://reader:secret@{primary.address}/0")
        assert "no permissions to run the 'info' command. Allow all" in reader
        # Without TIDEGATE_TOKEN_SECRET, the coordinator stores the key of the tokens in Redis.
        *_, read_only = refused(tmp_path, TIDEGATE_REDIS_URL=f"redis://{replica.address}/0")
        assert "It is a replica; set TIDEGATE_REDIS_URL to the primary, or to Sentinels." in read_only


def test_a_full_redis_delays_no_start(tmp_path: Path) -> None:
    """The key of the tokens exists already, so a coordinator that restarts needs no memory."""
    server = RedisServer(tmp_path / "redis", "--appendonly", "yes")
    with running(server):
        url = f"redis://{server.address}/0"
        with CoordinatorProcess(tmp_path / "first", redis_url=url):
            pass
        server.redis.config_set("maxmemory", 1)
        with CoordinatorProcess(tmp_path / "second", redis_url=url) as process:
            assert httpx.get(f"{process.url}/livez").status_code == 200


def test_settings_may_come_from_files(tmp_path: Path) -> None:
    """Containers pass secrets as files, which are not visible in their environment."""
    (tmp_path / "TIDEGATE_REDIS_URL").write_text("redis://user:secret@127.0.0.1:1/7\n")
    assert "redis://127.0.0.1:1/7" in fails(tmp_path, TIDEGATE_SECRETS_DIR=str(tmp_path))
    # Environment variables take precedence over files.
    line = fails(tmp_path, TIDEGATE_SECRETS_DIR=str(tmp_path), TIDEGATE_REDIS_URL="redis://127.0.0.1:2/0")
    assert "redis://127.0.0.1:2/0" in line
    assert "is not a directory" in fails(tmp_path, TIDEGATE_SECRETS_DIR=str(tmp_path / "none"))


def test_a_restart_finds_the_state_and_accepts_the_tokens(tmp_path: Path) -> None:
    """A coordinator killed with SIGKILL loses no report that it has answered."""
    process = CoordinatorProcess(tmp_path)
    process.start()
    http = httpx.Client(base_url=process.url, timeout=30)
    http.put("/v1/jobs/j", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
    reported = http.post("/v1/jobs/j:report", json={"substreams": ["a"], "max_event_times": [100]}).json()
    process.stop(kill=True)
    with process:
        again = http.post(
            "/v1/jobs/j:report",
            json={"substreams": ["a"], "max_event_times": [1], "watermark_token": reported["watermark_token"]},
        ).json()
        assert (again["watermark"], again["state_epoch"]) == (90, reported["state_epoch"])
        assert http.get("/v1/jobs/j").json()["tokens_ignored"] == 0
    http.close()


def test_the_coordinator_ends_with_its_parent(tmp_path: Path) -> None:
    """With `--stop-with-stdin` the coordinator and its Valkey end with the program that started them."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate", "serve", "--stop-with-stdin"],
        env=os.environ | {"TIDEGATE_DATA_DIR": str(tmp_path), "TIDEGATE_PORT": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        assert b"serving on" in process.stdout.readline()
        started = psutil.Process(process.pid)
        family = [started, *started.children(recursive=True)]
        assert len(family) == 2, "there must be two processes: the coordinator and its Valkey"
        process.stdin.close()
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_also_stops_valkey(tmp_path: Path, ending: signal.Signals) -> None:
    """A coordinator that is stopped by a signal stops its Valkey."""
    process = CoordinatorProcess(tmp_path).start()
    started = psutil.Process(process.pid)
    family = [started, *started.children(recursive=True)]
    assert len(family) == 2, "there must be two processes: the coordinator and its Valkey"
    started.send_signal(ending)
    _, alive = psutil.wait_procs(family, timeout=60)
    process.stop(kill=True)
    assert not alive


def test_the_coordinator_exits_if_its_valkey_ends(tmp_path: Path) -> None:
    """If its Valkey ends, the coordinator exits, so that a supervisor restarts both. The state survives the restart."""
    process = CoordinatorProcess(tmp_path).start()
    started = psutil.Process(process.pid)
    [valkey] = started.children()
    valkey.kill()
    started.wait(60)
    process.stop()
    assert "The embedded Valkey ended unexpectedly" in (tmp_path / "coordinator.log").read_text().splitlines()[-1]
    with process:
        assert httpx.get(f"{process.url}/readyz").status_code == 200


def test_long_polls_are_answered_at_shutdown(tmp_path: Path) -> None:
    """A coordinator that stops answers its long polls, so a rolling restart causes no errors."""
    process = CoordinatorProcess(tmp_path).start()
    with httpx.Client(base_url=process.url, timeout=60) as http, ThreadPoolExecutor(1) as pool:
        http.put("/v1/jobs/j", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        waiting = pool.submit(http.get, "/v1/jobs/j/watermark", params={"at_least": 5, "timeout_s": 50})
        time.sleep(0.5)
        process.stop()
        answer = waiting.result()
    assert (answer.status_code, answer.json()["reached"]) == (200, False)


def test_open_reports_are_answered_at_shutdown(tmp_path: Path, job_name: str) -> None:
    """A coordinator that stops answers the reports that it has received."""
    with (
        EmbeddedValkey(tmp_path / "redis") as server,
        Redis(unix_socket_path=server.socket) as redis,
        CoordinatorProcess(tmp_path / "coordinator", redis_url=server.url) as process,
        httpx.Client(base_url=process.url, timeout=60) as http,
        ThreadPoolExecutor(2) as pool,
    ):
        http.put(f"/v1/jobs/{job_name}", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        redis.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        report = {"substreams": ["a"], "max_event_times": [100]}
        answer = pool.submit(http.post, f"/v1/jobs/{job_name}:report", json=report)
        until(lambda: any("b" in client["flags"] for client in redis.client_list()), "Redis has blocked the report")
        ended = pool.submit(process.stop)
        until(lambda: not listens(process.port), "the coordinator has closed its port")
        redis.execute_command("CLIENT", "UNPAUSE")
        assert answer.result().json()["watermark"] == 90
        ended.result()


def test_a_stop_with_unfinished_requests_prints_no_traceback(tmp_path: Path) -> None:
    """A coordinator stops in time and with status 0, whatever its clients have left unfinished."""
    head = b"%b HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    body = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    report = head % b"POST /v1/jobs/j:report" + body
    large = head % b"GET /v1/openapi.json" + b"\r\n"
    columns = b'{"substreams": ["a"], "max_event_times": [1]}'
    sent = {
        "nothing": b"",
        "a part of a head": head % b"GET /livez",
        "a part of a body": report % 900 + b"{",
        "no body": (report % 900).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"),
        "a long poll": head % b"GET /v1/jobs/j/watermark?at_least=5&timeout_s=200" + b"\r\n",
        "a long poll and more": head % b"GET /v1/jobs/j/watermark?at_least=5&timeout_s=200"
        + b"\r\n"
        + large
        + b"GET /",
        "an event stream": head % b"GET /v1/jobs/j/watermark:watch" + b"\r\n",
        "a live page": head % b"GET /jobs/j/live" + b"\r\n",
        "unread answers": large * 90,
        "a report that Redis blocks": report % len(columns) + columns,
    }
    with (
        EmbeddedValkey(tmp_path / "redis") as server,
        Redis(unix_socket_path=server.socket) as redis,
        CoordinatorProcess(tmp_path / "coordinator", redis_url=server.url) as process,
        httpx.Client(base_url=process.url, timeout=60) as http,
        ExitStack() as stack,
    ):
        http.put("/v1/jobs/j", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        connections = {}
        for name, each in sent.items():
            if name == "a report that Redis blocks":
                until(lambda: "tidegate_waiting_clients 4.0" in http.get("/metrics").text, "the waiting clients wait")
                redis.execute_command("CLIENT", "PAUSE", 600_000, "WRITE")
            connections[name] = stack.enter_context(socket.create_connection(("127.0.0.1", process.port)))
            connections[name].sendall(each)
        until(lambda: any("b" in client["flags"] for client in redis.client_list()), "Redis has blocked the report")
        running = psutil.Process(process.pid)
        running.terminate()
        assert running.wait(60) == 0
        redis.execute_command("CLIENT", "UNPAUSE")
        assert b" 408 Request Timeout" in connections["a part of a body"].recv(4096)
        assert b" 503 Service Unavailable" in connections["a report that Redis blocks"].recv(4096)
    log = (tmp_path / "coordinator" / "coordinator.log").read_text()
    assert "Traceback" not in log, log


def test_an_external_redis_holds_all_the_state(tmp_path: Path, valkey: EmbeddedValkey, job_name: str) -> None:
    """Replicas are stateless: each one has the job's state and returns the same token."""
    one = CoordinatorProcess(tmp_path / "one", redis_url=valkey.url)
    two = CoordinatorProcess(tmp_path / "two", redis_url=valkey.url)
    with one, two, httpx.Client(timeout=30) as http:
        http.put(f"{one.url}/v1/jobs/{job_name}", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        report = {"substreams": ["a"], "max_event_times": [100]}
        reported = http.post(f"{one.url}/v1/jobs/{job_name}:report", json=report).json()
        seen = http.get(f"{two.url}/v1/jobs/{job_name}/watermark").json()
        assert (seen["watermark"], seen["watermark_token"]) == (90, reported["watermark_token"])


def test_an_outage_of_redis_is_answered_with_503(tmp_path: Path) -> None:
    """The coordinator is alive but not ready during an outage of Redis, and ready afterwards."""
    data = tmp_path / "redis"
    server = EmbeddedValkey(data)
    server.start()
    with (
        CoordinatorProcess(tmp_path / "coordinator", redis_url=server.url) as process,
        httpx.Client(base_url=process.url, timeout=60) as http,
    ):
        http.put("/v1/jobs/j", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
        server.stop()
        away = http.post("/v1/jobs/j:report", json={"substreams": ["a"], "max_event_times": [100]})
        assert (away.status_code, away.json()["code"]) == (503, "store_unavailable")
        assert away.headers["Retry-After"]
        assert http.get("/readyz").status_code == 503
        assert http.get("/livez").status_code == 200
        server.start()
        back = http.post("/v1/jobs/j:report", json={"substreams": ["a"], "max_event_times": [100]})
        assert back.json()["watermark"] == 90
    server.stop()
