"""A real Airflow: API server, scheduler, Dag processor and triggerer, with SQLite and the LocalExecutor."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx

from tests.support.ports import free_port
from tests.support.waiting import until

VENV = Path(sys.prefix) / "airflow"
"""The environment of Airflow and the provider: ``make test-airflow`` creates it."""
PROCESSES = ("api-server", "scheduler", "dag-processor", "triggerer")
STARTS_S, STOPS_S, COMMAND_S = 180, 30, 180
ATTEMPTS = 10
"""Number of attempts of a call. Airflow answers 500 while another process writes into SQLite."""
USERS = {"admin": "admin", "ops": "op", "joe": "user"}
"""Roles in Airflow by name. The password of each is its name."""


class Airflow:
    """An Airflow whose processes end with the test session.

    Args:
        directory: Directory of its database, Dags and logs.
        connections: Connections by id, as the JSON texts of ``AIRFLOW_CONN_…``.
    """

    def __init__(self, directory: Path, connections: Mapping[str, Mapping[str, Any]]) -> None:
        self.dags, self.logs = directory / "dags", directory / "processes"
        self.dags.mkdir(parents=True)
        self.logs.mkdir()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        # The tests' own PYTHONPATH would hide Airflow behind the folder tests/airflow.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))}
        self.environment = kept | {
            "PATH": f"{VENV}/bin{os.pathsep}{os.environ['PATH']}",
            "AIRFLOW_HOME": str(directory),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": self.port,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "3",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in USERS.items()),
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{directory}/airflow.db?timeout=30",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(directory / "logs"),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": free_port(),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": free_port(),
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
            # After a scheduler was killed, the next one takes its tasks over in seconds, not in minutes.
            "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "2",
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
            **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(value) for name, value in connections.items()},
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        passwords = directory / "simple_auth_manager_passwords.json.generated"
        passwords.write_text(json.dumps({name: name for name in USERS}))
        self.http = httpx.Client(base_url=self.url, timeout=60)

    def __enter__(self) -> Self:
        try:
            self.command("db", "migrate")
            for name in PROCESSES:
                self.start(name)
            until(self._answers, f"Airflow answers; see {self.logs}", STARTS_S, 0.5)
            self.http.headers.update(self.token("admin"))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.http.close()
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        for name in list(self._processes):
            self.kill(name, STOPS_S)

    def command(self, *arguments: str) -> str:
        """Run a command of Airflow and return its output."""
        command = [f"{VENV}/bin/airflow", *arguments]
        ran = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=COMMAND_S)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def start(self, name: str) -> None:
        with open(self.logs / f"{name}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                [f"{VENV}/bin/airflow", name],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name: str, after_s: float = 0) -> None:
        """End a process and all of its children by SIGKILL; give it ``after_s`` to end by itself first."""
        process = self._processes.pop(name)
        with suppress(subprocess.TimeoutExpired):
            process.wait(after_s)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def token(self, user: str) -> dict[str, str]:
        """Return the header of a user."""
        answer = self.http.post("/auth/token", json={"username": user, "password": user})
        assert answer.status_code == 201, answer.text
        return {"Authorization": f"Bearer {answer.json()['access_token']}"}

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Return the answer of a call of ``/api/v2/path``."""
        for _ in range(ATTEMPTS):
            answer = self.http.request(method, f"/api/v2/{path}", **options)
            if answer.status_code < 500:
                break
            time.sleep(0.5)
        return answer

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the JSON of ``GET /api/v2/path``."""
        answer = self.call("GET", path, params=parameters)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        return answer.json()

    def unpause(self, *dags: str, is_paused: bool = False) -> None:
        """Wait until Airflow knows Dags, and let their runs start. With ``is_paused``, pause them instead."""

        def known() -> bool:
            errors = self.get("importErrors")["import_errors"]
            assert not errors, errors
            return all(self.call("GET", f"dags/{dag}").status_code == 200 for dag in dags)

        until(known, f"Airflow knows {dags}", 60, 0.5)
        for dag in dags:
            answer = self.call("PATCH", f"dags/{dag}", json={"is_paused": is_paused})
            assert answer.status_code == 200, answer.text

    def runs(self, dag: str) -> dict[str, Any]:
        """Return the runs of a Dag by id."""
        return {run["dag_run_id"]: run for run in self.get(f"dags/{dag}/dagRuns", limit=100)["dag_runs"]}

    def trigger(self, dag: str, **body: Any) -> str:
        """Start a run of a Dag and return its id."""
        answer = self.call("POST", f"dags/{dag}/dagRuns", json={"logical_date": None} | body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["dag_run_id"])

    def ended(self, dag: str, run: str, state: str = "success", timeout_s: float = 120) -> None:
        """Wait until a run ends, and check its state."""
        path = f"dags/{dag}/dagRuns/{quote(run, safe='')}"

        def is_over() -> bool:
            answer = self.call("GET", path)
            return answer.status_code == 200 and answer.json()["state"] in ("success", "failed")

        until(is_over, f"{dag} {run} ends", timeout_s, 0.3)
        found = self.get(path)["state"]
        assert found == state, f"{dag} {run} is {found}:\n{self.task_logs(dag, run)}"

    def task(self, dag: str, run: str, task: str) -> Any:
        """Return a task instance."""
        return self.get(f"dags/{dag}/dagRuns/{quote(run, safe='')}/taskInstances/{task}")

    def result(self, dag: str, run: str, task: str, key: str = "return_value") -> Any:
        """Return what a task has returned."""
        path = f"dags/{dag}/dagRuns/{quote(run, safe='')}/taskInstances/{task}/xcomEntries/{key}"
        return self.get(path, deserialize="true")["value"]

    def task_logs(self, dag: str, run: str) -> str:
        """Return the messages of the tasks of a run, each attempt."""
        path = f"dags/{dag}/dagRuns/{quote(run, safe='')}/taskInstances"
        lines = []
        for task in self.get(path)["task_instances"]:
            for attempt in range(1, task["try_number"] + 1):
                of_index = {"map_index": task["map_index"]}
                log = self.call("GET", f"{path}/{task['task_id']}/logs/{attempt}", params=of_index).json()
                for entry in log.get("content", []):
                    lines.append(entry if isinstance(entry, str) else f"{entry.get('event')} {_error(entry)}")
        return "\n".join(lines)

    def output(self) -> str:
        """Return the ends of the logs of all processes."""
        return "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in sorted(self.logs.glob("*.log")))

    def _answers(self) -> bool:
        for name, process in self._processes.items():
            assert process.poll() is None, f"{name} has ended:\n{self.output()}"
        try:
            return self.http.get("/api/v2/version").status_code == 200
        except httpx.TransportError:
            return False


def _error(entry: Mapping[str, Any]) -> str:
    return "; ".join(f"{each['exc_type']}: {each['exc_value']}" for each in entry.get("error_detail") or [])
