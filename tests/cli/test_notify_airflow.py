"""`tidegate notify airflow` against a coordinator, and a server with the requests of Airflow that it uses.

The server refuses what Airflow 3.3 refuses: unknown members, a missing logical date, wrong ids, and a partition key for
a Dag that is not partitioned.
"""

import json
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.cli.conftest import Run
from tests.support.api import BASE, CONFIG, HOUR, HOURS, commit_frames, read
from tests.support.waiting import until
from tidegate.cli import airflow
from tidegate_spark.testing import CoordinatorProcess

Answer = tuple[int, Any]
PROVIDER = Path(__file__).parents[2] / "integrations" / "airflow" / "src" / "tidegate_airflow"
MEMBERS = {"dag_run_id", "logical_date", "partition_key", "conf", "data_interval_start", "data_interval_end", "note"}


@dataclass
class StandIn:
    """A server with Airflow's requests.

    Attributes:
        version: Version of Airflow.
        dags: Tags by Dag.
        partitioned: Dags that are partitioned.
        assets: Ids by name, and ``relays`` their Dags.
        users: Passwords by user. If empty, every call passes.
        failures: Answers of the next calls that start runs.
        runs: Bodies of the runs by Dag and run id.
    """

    version: str = "3.3.2"
    dags: dict[str, list[str]] = field(default_factory=dict)
    partitioned: set[str] = field(default_factory=set)
    assets: dict[str, int] = field(default_factory=dict)
    relays: dict[int, str] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=dict)
    failures: list[Answer] = field(default_factory=list)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, method: str, target: str, body: Any, authorization: str | None) -> Answer:
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        self.calls.append(f"{method} {path}")
        api = "/api/v2" if self.version[0] == "3" else "/api/v1"
        if path == f"{api}/version":
            return 200, {"version": self.version, "git_version": None}
        if path == "/auth/token" and api == "/api/v2":
            if self.users.get(body["username"]) != body["password"]:
                return 401, {"detail": "Invalid credentials"}
            self.tokens.append(f"token-{len(self.tokens)}")
            return 201, {"access_token": self.tokens[-1]}
        if not path.startswith(api):
            return 404, {"detail": "Not Found"}
        if self.users and authorization not in ([f"Bearer {self.tokens[-1]}"] if self.tokens else []):
            return 401, {"detail": "Not authenticated"}
        match path.removeprefix(api).split("/")[1:]:
            case ["dags"]:
                return self.page(
                    "dags", [{"dag_id": dag} for dag, tags in self.dags.items() if query["tags"][0] in tags], query
                )
            case ["assets"] if "name_pattern" in query:
                named = [name for name in self.assets if query["name_pattern"][0] in name]
                return self.page("assets", [{"id": self.assets[name], "name": name} for name in named], query)
            case ["dags", dag, "dagRuns"]:
                return self.started(dag, body)
            case ["assets", asset, "materialize"]:
                dag = self.relays.get(int(asset), "")
                return self.started(dag, body)
        return 404, {"detail": "Not Found"}

    def page(self, name: str, rows: list[Any], query: dict[str, list[str]]) -> Answer:
        first = int(query["offset"][0])
        return 200, {name: rows[first : first + int(query["limit"][0])], "total_entries": len(rows)}

    def started(self, dag: str, body: dict[str, Any]) -> Answer:
        if self.failures:
            return self.failures.pop(0)
        if dag not in self.dags:
            return 404, {"detail": f"The Dag with ID: `{dag}` was not found"}
        known = MEMBERS if self.version >= "3.2" else MEMBERS - {"partition_key"}
        missing = self.version[0] == "3" and "logical_date" not in body
        if missing or body.get("logical_date") is not None or not body.keys() <= known:
            return 422, {"detail": [{"type": "extra_forbidden"}]}
        if not re.fullmatch(r"[A-Za-z0-9_.~:+-]+", body["dag_run_id"]):
            return 400, {"detail": "wrong run id"}
        if "partition_key" in body and dag not in self.partitioned:
            return 400, {"detail": f"Dag {dag} is not partitioned"}
        runs = self.runs.setdefault(dag, {})
        if body["dag_run_id"] in runs:
            return 409, {"detail": "Conflict"}
        runs[body["dag_run_id"]] = body
        return 200, {"dag_run_id": body["dag_run_id"]}


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    served = StandIn()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, content = served.answer(
                self.command, self.path, json.loads(sent) if sent else None, self.headers.get("Authorization")
            )
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer  # noqa: N815 - names that the server requires

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        served.url = f"http://127.0.0.1:{server.server_port}"
        yield served
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow, "FIRST_PAUSE_S", 0.01)
    for name in ("AIRFLOW_TOKEN", "AIRFLOW_USERNAME", "AIRFLOW_PASSWORD", "AIRFLOW_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def path(http: httpx.Client, job_name: str) -> str:
    """Create a job with a complete hour; return its path."""
    path = f"/v1/jobs/{job_name}"
    http.put(path, json=CONFIG | HOURS, headers={"If-None-Match": "*"}).raise_for_status()
    commit_frames(http, path, 0, {"a": BASE, "b": BASE})
    http.post(f"{path}/substreams:idle", json={"query": "q", "substreams": ["b"], "reason": "t"}).raise_for_status()
    commit_frames(http, path, 1, {"a": BASE + HOUR + 11})
    return path


def run_id(path: str, generation: int = 1) -> str:
    return f"{path.rpartition('/')[2]}__2013-01-07T10:00:00Z__g{generation}"


def notified(run: Run, stand_in: StandIn, path: str, *target: str, status: int = 0) -> Any:
    """Start the runs that are due."""
    job = path.rpartition("/")[2]
    return run("notify", "airflow", job, "--airflow", stand_in.url, "--once", *target, status=status)


def test_a_run_for_each_generation(run: Run, http: httpx.Client, stand_in: StandIn, path: str) -> None:
    stand_in.dags, stand_in.partitioned = {"load": []}, {"load"}
    assert f"{run_id(path)}: started a run of the Dag 'load'" in notified(run, stand_in, path, "--dag", "load").stdout
    frame = read(http, f"{path}/frames/{BASE}")["frame"]
    assert frame["exclusions"][0]["reason"] == "idle"
    assert stand_in.runs["load"][run_id(path)] == {
        "dag_run_id": run_id(path),
        "logical_date": None,
        "partition_key": "2013-01-07T10:00:00+0000",
        "conf": {
            "job": path.rpartition("/")[2],
            "key": run_id(path),
            "frame_start": "2013-01-07T10:00:00Z",
            "frame_end": "2013-01-07T11:00:00Z",
            "frame_start_ms": BASE,
            "frame_end_ms": BASE + HOUR,
            "state": "complete_with_exclusions",
            "generation": 1,
            "reason": "",
            "rows": {"on_time": 2, "updated": 0, "dropped": 0, "diverted": 0},
            "watermark": frame["watermark"],
            "exclusions": frame["exclusions"],
            "outputs": [],
        },
    }
    commit_frames(http, path, 2, {"a": BASE + HOUR + 12}, late=3)
    notified(run, stand_in, path, "--dag", "load")
    second = stand_in.runs["load"][run_id(path, 2)]
    assert (second["partition_key"], second["conf"]["generation"]) == ("2013-01-07T10:00:00+0000", 2)
    assert (second["conf"]["reason"], second["conf"]["rows"]["dropped"]) == ("rows", 3)
    assert notified(run, stand_in, path, "--dag", "load").stdout == ""


def test_the_provider_makes_the_same_runs(run: Run, http: httpx.Client, stand_in: StandIn, path: str) -> None:
    """A Dag of the provider may take the place of the command: the runs that it starts are then not started twice."""
    stand_in.dags = {"load": []}
    commit_frames(http, path, 2, {"a": BASE + HOUR + 12}, late=3)
    notified(run, stand_in, path, "--dag", "load")
    frame = read(http, f"{path}/frames/{BASE}")["frame"]
    made = runpy.run_path(str(PROVIDER / "runs.py"))["runs_of"](path.rpartition("/")[2], frame)
    assert len(made) == 2
    posted = stand_in.runs["load"]
    assert {each["trigger_run_id"]: json.loads(each["conf"]) for each in made} == {
        run_id: body["conf"] for run_id, body in posted.items()
    }


def test_a_run_that_exists_is_done(run: Run, stand_in: StandIn, path: str) -> None:
    """The program was killed after it had started the run, or its position was forgotten."""
    stand_in.dags = {"load": []}
    notified(run, stand_in, path, "--dag", "load")
    again = notified(run, stand_in, path, "--dag", "load", "--as", "another")
    assert f"{run_id(path)}: found the run of the Dag 'load'" in again.stdout
    assert len(stand_in.runs["load"]) == 1


def test_a_dag_that_is_not_partitioned_gets_no_key(run: Run, stand_in: StandIn, path: str) -> None:
    stand_in.dags = {"load": []}
    notified(run, stand_in, path, "--dag", "load")
    assert "partition_key" not in stand_in.runs["load"][run_id(path)]


@pytest.mark.parametrize(("version", "dated"), [("3.1.0", True), ("2.11.2", False)])
def test_older_versions_get_no_key(run: Run, stand_in: StandIn, path: str, version: str, dated: bool) -> None:
    stand_in.version, stand_in.dags = version, {"load": []}
    notified(run, stand_in, path, "--dag", "load")
    body = stand_in.runs["load"][run_id(path)]
    assert ("partition_key" in body, "logical_date" in body) == (False, dated)
    refused = notified(run, stand_in, path, "--asset", "hours", "--as", "b", status=1)
    assert "needs Airflow 3.2" in refused.stderr


def test_all_dags_with_a_tag_get_a_run(run: Run, http: httpx.Client, stand_in: StandIn, path: str) -> None:
    """Each delivery looks for them again. A list of Dags has several pages."""
    stand_in.dags = {f"dag-{number}": ["tidegate:flights"] for number in range(101)} | {"other": ["x"]}
    notified(run, stand_in, path, "--tag", "tidegate:flights")
    assert set(stand_in.runs) == stand_in.dags.keys() - {"other"}
    stand_in.dags = {"new": ["tidegate:flights"]}
    commit_frames(http, path, 2, {"a": BASE + HOUR + 12}, late=3)
    notified(run, stand_in, path, "--tag", "tidegate:flights")
    assert set(stand_in.runs["new"]) == {run_id(path, 2)}


def test_the_dag_of_an_asset_gets_a_run(run: Run, stand_in: StandIn, path: str) -> None:
    """The list of assets has all whose names contain the name."""
    stand_in.assets, stand_in.relays, stand_in.dags = (
        {"hours_old": 1, "hours": 2},
        {1: "old", 2: "relay"},
        {"relay": []},
    )
    stand_in.partitioned = {"relay"}
    notified(run, stand_in, path, "--asset", "hours")
    assert stand_in.runs["relay"][run_id(path)]["partition_key"] == "2013-01-07T10:00:00+0000"


def test_failures_that_pass_are_told_once(run: Run, stand_in: StandIn, path: str) -> None:
    stand_in.dags = {"load": []}
    busy, locked = (429, {"detail": "slow down"}), (500, b"database is locked")
    stand_in.failures = [busy, busy, locked, locked, locked, (404, {"detail": "The Dag was not found"})]
    ended = notified(run, stand_in, path, "--dag", "load")
    lines = ended.stderr.splitlines()
    assert [line for line in lines if "Trying again" in line] == lines[:3]
    assert "429: slow down" in lines[0]
    assert "500" in lines[1]
    assert "does not know the Dag 'load'" in lines[2]
    assert "has the runs" in lines[3] and len(lines) == 4
    assert set(stand_in.runs["load"]) == {run_id(path)}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((403, {"detail": "Forbidden"}), "may not POST /api/v2/dags/load/dagRuns (403: Forbidden): give it a role"),
        ((422, {"detail": "conf is wrong"}), "refuses a run of the Dag 'load' (422: conf is wrong)"),
        ((401, {"detail": "Not authenticated"}), "set AIRFLOW_TOKEN"),
    ],
)
def test_failures_that_last_end_the_command(
    run: Run, http: httpx.Client, stand_in: StandIn, path: str, answer: Answer, expected: str
) -> None:
    stand_in.dags, stand_in.failures = {"load": []}, [answer]
    ended = notified(run, stand_in, path, "--dag", "load", status=1)
    [line] = ended.stderr.splitlines()
    assert expected in line
    consumer = read(http, f"{path}/consumers/airflow")["consumer"]
    assert (consumer["position"], consumer["lease_until_ms"]) == (None, None)


def test_a_login_is_repeated_when_its_token_expires(
    run: Run, http: httpx.Client, stand_in: StandIn, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in.dags, stand_in.users = {"load": []}, {"joe": "s"}
    assert "set AIRFLOW_TOKEN" in notified(run, stand_in, path, "--dag", "load", status=1).stderr
    monkeypatch.setenv("AIRFLOW_USERNAME", "joe")
    monkeypatch.setenv("AIRFLOW_PASSWORD", "wrong")
    assert "refuses the login of 'joe'" in notified(run, stand_in, path, "--dag", "load", status=1).stderr
    monkeypatch.setenv("AIRFLOW_PASSWORD", "s")
    stand_in.failures = [(401, {"detail": "Signature has expired"})]
    notified(run, stand_in, path, "--dag", "load")
    assert (len(stand_in.tokens), set(stand_in.runs["load"])) == (2, {run_id(path)})
    commit_frames(http, path, 2, {"a": BASE + HOUR + 12}, late=3)
    monkeypatch.setenv("AIRFLOW_TOKEN", "old")
    assert "set AIRFLOW_TOKEN to a valid token" in notified(run, stand_in, path, "--dag", "load", status=1).stderr
    monkeypatch.setenv("AIRFLOW_TOKEN", stand_in.tokens[-1])
    notified(run, stand_in, path, "--dag", "load")
    assert run_id(path, 2) in stand_in.runs["load"]


def test_another_server_ends_the_command(run: Run, tidegate: CoordinatorProcess, path: str) -> None:
    job = path.rpartition("/")[2]
    ended = run("notify", "airflow", job, "--airflow", tidegate.url, "--dag", "load", status=1)
    assert f"{tidegate.url} has neither /api/v2/version nor" in ended.stderr


def test_options_of_the_notifier(run: Run, stand_in: StandIn, path: str) -> None:
    assert "either --dag" in notified(run, stand_in, path, status=2).output
    assert "either --dag" in notified(run, stand_in, path, "--dag", "a", "--tag", "b", status=2).output
    assert "no id of a Dag" in notified(run, stand_in, path, "--dag", "a/b", status=2).output
    job = path.rpartition("/")[2]
    wrong = run("notify", "airflow", job, "--airflow", "http://joe:s@localhost", "--dag", "a", status=2)
    assert "AIRFLOW_USERNAME" in wrong.stderr


def test_a_notifier_outlives_an_airflow_that_is_down_and_ends_in_order(
    tidegate: CoordinatorProcess, http: httpx.Client, stand_in: StandIn, path: str, tmp_path: Path
) -> None:
    """A process that is killed before its position has moved starts no second run."""
    environment = os.environ | {"TIDEGATE_URL": tidegate.url, "PYTHONUNBUFFERED": "1", "AIRFLOW_URL": stand_in.url}
    command = [sys.executable, "-m", "tidegate", "notify", "airflow", path.rpartition("/")[2], "--dag", "load"]
    stand_in.failures = 2 * [(503, {"detail": "starting"})]
    errors = tmp_path / "errors"
    with errors.open("w") as file:
        notifier = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=file, text=True)
    assert notifier.stdout is not None
    try:
        until(lambda: "503: starting" in errors.read_text(), "the failure is shown")
        until(lambda: "does not know" in errors.read_text(), "the missing Dag is shown")
        stand_in.dags = {"load": []}
        assert "started a run" in notifier.stdout.readline()
        commit_frames(http, path, 2, {"a": BASE + 2 * HOUR + 11})
        assert "T11:00:00Z__g1: started a run" in notifier.stdout.readline()
        until(lambda: read(http, f"{path}/consumers/airflow")["consumer"]["position"]["start"] > BASE, "it has moved")
        notifier.send_signal(signal.SIGTERM)
        assert notifier.wait(30) == 0
    finally:
        notifier.kill()
        notifier.communicate()
    assert read(http, f"{path}/consumers/airflow")["consumer"]["lease_until_ms"] is None
    assert len(stand_in.runs["load"]) == 2
