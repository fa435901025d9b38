"""The provider in a real Airflow: what Airflow finds, the connection, and the runs that the hook finds."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.airflow.loading import HOUR_MS, Loader, at
from tests.airflow.running import VENV, Airflow
from tidegate_spark.testing import CoordinatorProcess

HOURS = [at("2026-03-31T01:00:00Z") + number * HOUR_MS for number in range(5)]
FIND = """
import json, sys
from tidegate_airflow.hooks import TidegateHook
for line in sys.stdin:
    arguments, options = json.loads(line)
    print("found", json.dumps(TidegateHook().due_runs(*arguments, **options)), flush=True)
"""
Due = Callable[..., Any]


@pytest.fixture(scope="module")
def due(airflow: Airflow) -> Iterator[Due]:
    """Yield a function that returns the ids of the runs that the hook finds, and its position."""
    with subprocess.Popen(
        [f"{VENV}/bin/python", "-c", FIND],
        env=airflow.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def find(job: str, position: Any = None, **options: Any) -> Any:
            print(json.dumps([[job, position], options]), file=asked, flush=True)
            line = next(line for line in answers if line.startswith("found "))
            found = json.loads(line.removeprefix("found "))
            return [run["trigger_run_id"] for run in found["runs"]], found["position"]

        yield find


def named(job: str, hour: int, generation: int = 1) -> str:
    return f"{job}__2026-03-31T{hour:02}:00:00Z__g{generation}"


def test_airflow_finds_the_provider_and_its_hook(airflow: Airflow) -> None:
    """Airflow checks the information of the provider against its schema, and shows the connection's form."""
    [provider] = [
        each for each in json.loads(airflow.command("providers", "list", "-o", "json")) if "tidegate" in str(each)
    ]
    assert provider["package_name"] == "airflow-provider-tidegate"
    [hook] = [
        each for each in json.loads(airflow.command("providers", "hooks", "-o", "json")) if "tidegate" in str(each)
    ]
    assert (hook["connection_type"], hook["conn_id_attribute_name"]) == ("tidegate", "tidegate_conn_id")
    links = airflow.command("providers", "links", "-o", "json")
    assert "tidegate_airflow.sensors.TidegateJobLink" in links
    form = airflow.http.get("/ui/connections/hook_meta")
    assert form.status_code == 200, form.text
    [meta] = [each for each in form.json() if each["connection_type"] == "tidegate"]
    assert set(meta["extra_fields"]) == {"verify", "timeout", "page"}
    assert meta["standard_fields"]["password"]["title"] == "Key"
    assert meta["standard_fields"]["login"]["hidden"]


@pytest.mark.parametrize(
    ("changed", "status", "message"),
    [
        ({}, True, "answers and accepts the key"),
        ({"password": "tdg_unknown"}, False, "The key is the password of the connection"),
        ({"port": 1}, False, "No coordinator answered at http://127.0.0.1:1"),
        ({"host": None}, False, "has no host: set the host"),
        ({"extra": '{"verfy": false}'}, False, "unknown members: verfy; use verify, timeout, page"),
    ],
)
def test_the_test_of_a_connection_says_what_to_change(
    airflow: Airflow,
    coordinator: CoordinatorProcess,
    keys: tuple[Path, dict[str, str]],
    changed: dict[str, Any],
    status: bool,
    message: str,
) -> None:
    body = {"connection_id": "tried", "conn_type": "tidegate", "host": "127.0.0.1", "port": coordinator.port}
    answer = airflow.http.post("/api/v2/connections/test", json=body | {"password": keys[1]["read"]} | changed)
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] is status
    assert message in answer.json()["message"]
    assert keys[1]["read"] not in answer.text


def test_the_hook_finds_each_generation_once(due: Due, http: httpx.Client) -> None:
    """A position is after what it has returned, and what comes later is found from there."""
    job = Loader(http, "due-each", every="hour")
    none, position = due(job.job)
    assert none == []
    job.finish(HOURS[0])
    first, position = due(job.job, position)
    assert first == [named(job.job, 1)]
    again, position = due(job.job, position)
    assert again == []
    job.finish(HOURS[1], late=(HOURS[0] + 5,))
    both, after = due(job.job, position)
    assert sorted(both) == [named(job.job, 1, 2), named(job.job, 2)]
    assert due(job.job, position)[0] == both, "a repeated call finds the same runs"
    assert due(job.job, after)[0] == []


def test_the_hook_reads_frames_if_the_history_lacks_the_position(due: Due, http: httpx.Client) -> None:
    """Otherwise, a bridge that was paused for long would lose frames."""
    job = Loader(http, "due-cut", every="hour")
    job.finish(HOURS[0])
    job.finish(HOURS[1], late=(HOURS[0] + 5,))
    found, position = due(job.job, {"after": "1-0"})
    assert found == [named(job.job, 1), named(job.job, 1, 2), named(job.job, 2)]
    assert due(job.job, position)[0] == []
    assert due(job.job, {"after": "1-0"}, first=HOURS[1])[0] == [named(job.job, 2)]


def test_a_call_ends_at_its_limit_and_the_next_one_continues(due: Due, http: httpx.Client) -> None:
    """Airflow refuses to expand a task into more than 1,024; a backfill finishes thousands of frames in one step."""
    job = Loader(http, "due-many", every="hour")
    job.commit("HNL", HOURS[0])
    position = due(job.job)[1]
    for hour in (*HOURS[:4], HOURS[4] + 1000):
        job.commit("BOS", hour + 1)
    job.commit("HNL", HOURS[4] + 1000)  # the watermark passes four frames in one step
    every = [named(job.job, hour) for hour in range(1, 5)]
    seen: list[str] = []
    for _ in range(10):
        found, position = due(job.job, position, limit=2)
        assert len(found) <= 2
        seen += found
    assert seen == every
