"""The sensors in a real Airflow: in a worker, in the triggerer, and their errors."""

import time
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.airflow.loading import HOUR_MS, LAG_MS, Loader, at
from tests.airflow.running import Airflow
from tests.support.waiting import until
from tidegate_spark.testing import CoordinatorProcess

HOUR = at("2026-03-31T01:00:00Z")
TIME = "2026-03-31T01:00:00+00:00"
ATTEMPTS = 3
"""Attempts of a task in the Dags of ``probes.py``."""


def started(airflow: Airflow, dag: str, job: str, **conf: Any) -> str:
    """Start a run of a Dag with one sensor, and return its id."""
    airflow.unpause(dag)
    return airflow.trigger(dag, conf={"job": job, "time": TIME} | conf)


def waits(airflow: Airflow, dag: str, run: str, state: str) -> None:
    until(lambda: airflow.task(dag, run, "wait")["state"] == state, f"the sensor of {dag} is {state}", 60)


@pytest.mark.parametrize(("dag", "state"), [("poke", "running"), ("defer", "deferred")])
def test_a_sensor_waits_for_a_frame_and_returns_it(airflow: Airflow, http: httpx.Client, dag: str, state: str) -> None:
    job = Loader(http, f"waits-{dag}", every="hour")
    job.commit("HNL", HOUR + 1000)
    run = started(airflow, dag, job.job)
    waits(airflow, dag, run, state)
    job.commit("HNL", HOUR + HOUR_MS + 1000)
    airflow.ended(dag, run)
    frame = airflow.result(dag, run, "wait")
    assert (frame["start"], frame["state"], frame["generation"]) == (HOUR, "complete", 1)
    link = airflow.get(f"dags/{dag}/dagRuns/{quote(run, safe='')}/taskInstances/wait/links")["extra_links"]
    assert link == {"Tidegate": f"{str(http.base_url).rstrip('/')}/jobs/{job.job}"}


def test_the_wait_survives_the_triggerer(airflow: Airflow, http: httpx.Client) -> None:
    """The frame is finished while no triggerer runs."""
    job = Loader(http, "killed", every="hour")
    job.commit("HNL", HOUR + 1000)
    runs = {
        "defer": started(airflow, "defer", job.job),
        "written": started(airflow, "written", job.job, time=HOUR + HOUR_MS),
    }
    for dag, run in runs.items():
        waits(airflow, dag, run, "deferred")
    airflow.kill("triggerer")
    job.commit("HNL", HOUR + HOUR_MS + 1000)
    airflow.start("triggerer")
    for dag, run in runs.items():
        airflow.ended(dag, run)
    assert airflow.result("written", runs["written"], "wait") == HOUR + HOUR_MS + 1000 - LAG_MS


def test_the_wait_survives_the_coordinator(
    airflow: Airflow, http: httpx.Client, coordinator: CoordinatorProcess
) -> None:
    job = Loader(http, "restarted", every="hour")
    job.commit("HNL", HOUR + 1000)
    run = started(airflow, "defer", job.job)
    waits(airflow, "defer", run, "deferred")
    coordinator.stop(kill=True)
    time.sleep(3)
    assert airflow.task("defer", run, "wait")["state"] == "deferred"
    coordinator.start()
    job.commit("HNL", HOUR + HOUR_MS + 1000)
    airflow.ended("defer", run)


@pytest.mark.parametrize("dag", ["written", "read"])
def test_a_sensor_waits_for_a_watermark_and_returns_it(airflow: Airflow, http: httpx.Client, dag: str) -> None:
    """The connection has the whole address as its host, and a page for browsers."""
    job = Loader(http, f"watermark-{dag}", every="hour")
    job.commit("HNL", HOUR - 1000)
    run = started(airflow, dag, job.job, conn_id="by_address")
    waits(airflow, dag, run, "deferred" if dag == "written" else "running")
    job.commit("HNL", HOUR + 1000)
    airflow.ended(dag, run)
    assert airflow.result(dag, run, "wait") == HOUR + 1000 - LAG_MS
    link = airflow.get(f"dags/{dag}/dagRuns/{quote(run, safe='')}/taskInstances/wait/links")["extra_links"]
    assert link == {"Tidegate": f"https://tidegate.example.com/jobs/{job.job}"}


@pytest.mark.parametrize("dag", ["strict_poke", "strict_defer"])
def test_a_frame_with_exclusions_fails_a_strict_sensor_at_once(airflow: Airflow, http: httpx.Client, dag: str) -> None:
    """Such a frame never becomes complete, so a retry would only wait. Without complete_only, the sensor succeeds."""
    job = Loader(http, f"excluded-{dag}", every="hour")
    job.commit("HNL", HOUR + 1000)
    job.commit("BOS", HOUR + 1000)
    run = started(airflow, dag, job.job)
    waits(airflow, dag, run, "running" if dag == "strict_poke" else "deferred")
    idle = {"query": "loader", "substreams": ["HNL"]}
    http.post(f"{job.path}/substreams:idle", json=idle).raise_for_status()
    job.commit("BOS", HOUR + HOUR_MS + 1000)
    assert job.frame(HOUR)["state"] == "complete_with_exclusions"
    airflow.ended(dag, run, "failed")
    # Airflow itself may fail the first attempt, if the trigger fires before the executor has reported the deferral.
    assert airflow.task(dag, run, "wait")["try_number"] < ATTEMPTS
    assert "is complete with exclusions: loader/HNL (idle). It never becomes complete." in airflow.task_logs(dag, run)
    lenient = started(airflow, "poke", job.job)
    airflow.ended("poke", lenient)
    assert airflow.result("poke", lenient, "wait")["state"] == "complete_with_exclusions"


REFUSED = [
    ({"job": "unknown"}, "(job_not_found): "),
    ({"job": "unknown"}, "Check the argument job, and the host of the connection 'tidegate_default'"),
    ({"conn_id": "wrong_key"}, "The key is the password of the connection 'wrong_key'"),
    ({"conn_id": "other_prefix"}, "Set another key as the password of the connection 'other_prefix'"),
    ({"conn_id": "no_host"}, "The connection 'no_host' has no host: set the host"),
    ({"time": "2026-03-31T01:00:00"}, "without a time zone: add an offset"),
    ({"time": "{{ ds }}"}, "has no logical_date, ds or data_interval_end: use '{{ dag_run.conf.frame_start }}'"),
    ({"time": "2026-01-01T00:00:00Z"}, "(frame_not_found): "),
]


def test_a_refused_call_fails_a_sensor_at_once_and_says_what_to_change(airflow: Airflow, http: httpx.Client) -> None:
    job = Loader(http, "refused", every="hour")
    job.commit("HNL", HOUR + 1000)
    runs = [(started(airflow, "poke", **{"job": job.job} | conf), message) for conf, message in REFUSED]
    for run, message in runs:
        airflow.ended("poke", run, "failed")
        assert airflow.task("poke", run, "wait")["try_number"] == 1, "a retry would be refused again"
        assert message in airflow.task_logs("poke", run)


def test_a_sensor_without_a_coordinator_is_tried_again(airflow: Airflow, http: httpx.Client) -> None:
    run = started(airflow, "defer", "any", conn_id="nothing_there")
    airflow.ended("defer", run, "failed")
    assert airflow.task("defer", run, "wait")["try_number"] == ATTEMPTS
    logs = airflow.task_logs("defer", run)
    assert "No coordinator answered at http://127.0.0.1:1" in logs
    assert "correct the host and the port of the connection 'nothing_there'" in logs


def test_a_sensor_ends_after_its_timeout(airflow: Airflow, http: httpx.Client) -> None:
    job = Loader(http, "short", every="hour")
    job.commit("HNL", HOUR + 1000)
    run = started(airflow, "short", job.job)
    airflow.ended("short", run, "failed")
    assert "AirflowSensorTimeout" in airflow.task_logs("short", run)
