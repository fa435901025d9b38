"""The Dags of the documentation in a real Airflow: one run for each frame and generation."""

from typing import Any

import httpx
import pytest

from tests.airflow.loading import HOUR_MS, Loader, at
from tests.airflow.notifying import notify
from tests.airflow.running import Airflow
from tests.support.waiting import until

HOUR = at("2026-03-31T01:00:00Z")
POSITION = "tidegate_position_flights"


def started(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["dag_run_id"])


def test_a_frame_starts_one_run_however_often_it_is_posted(airflow: Airflow, http: httpx.Client) -> None:
    airflow.unpause("hourly")
    job = Loader(http, "posted", every="hour")
    job.finish(HOUR)
    frame = job.frame(HOUR)
    run = started(notify(airflow, job.job, frame, dag="hourly"))
    assert run == "posted__2026-03-31T01:00:00Z__g1"
    assert notify(airflow, job.job, frame, dag="hourly").status_code == 409
    airflow.ended("hourly", run)
    assert notify(airflow, job.job, frame, dag="hourly").status_code == 409
    result = airflow.result("hourly", run, "process")
    assert result == "rows from 2026-03-31T01:00:00Z to 2026-03-31T02:00:00Z"
    shown = airflow.runs("hourly")[run]
    assert (shown["partition_key"], shown["conf"]["state"]) == ("2026-03-31T01:00:00+0000", "complete")


def test_runs_of_a_paused_dag_wait(airflow: Airflow, http: httpx.Client) -> None:
    job = Loader(http, "paused", every="hour")
    job.finish(HOUR)
    airflow.unpause("hourly", is_paused=True)
    run = started(notify(airflow, job.job, job.frame(HOUR), dag="hourly"))
    assert airflow.runs("hourly")[run]["state"] == "queued"
    airflow.unpause("hourly")
    airflow.ended("hourly", run)


def test_a_correction_starts_a_run_of_its_own(airflow: Airflow, http: httpx.Client) -> None:
    """Both generations are posted at once, and run one after the other."""
    airflow.unpause("corrections")
    job = Loader(http, "corrected", every="hour")
    job.finish(HOUR)
    first = started(notify(airflow, job.job, job.frame(HOUR), dag="corrections"))
    job.commit("HNL", HOUR + HOUR_MS + 2000, HOUR + 5)
    second = started(notify(airflow, job.job, job.frame(HOUR), dag="corrections"))
    assert (first[-3:], second[-3:]) == ("_g1", "_g2")
    for run in (first, second):
        airflow.ended("corrections", run)
    assert airflow.result("corrections", first, "append") == "append 2026-03-31T01:00:00Z"
    assert airflow.task("corrections", first, "replace")["state"] == "skipped"
    replaced = airflow.result("corrections", second, "replace")
    assert replaced == "replace 2026-03-31T01:00:00Z by generation 2"
    runs = airflow.runs("corrections")
    assert runs[first]["end_date"] <= runs[second]["start_date"]
    assert runs[first]["partition_key"] == runs[second]["partition_key"]


def test_a_relay_starts_its_followers(airflow: Airflow, http: httpx.Client) -> None:
    airflow.unpause("relay", "follower")
    job = Loader(http, "relayed", every="hour")
    job.finish(HOUR)
    relay = started(notify(airflow, job.job, job.frame(HOUR), asset="flights_hours"))
    assert notify(airflow, job.job, job.frame(HOUR), asset="flights_hours").status_code == 409
    airflow.ended("relay", relay)
    until(lambda: len(airflow.runs("follower")) == 1, "the follower has a run", 60)
    [follower] = airflow.runs("follower")
    airflow.ended("follower", follower)
    assert airflow.result("follower", follower, "follow") == "2026-03-31T01:00:00Z generation 1"
    job.commit("HNL", HOUR + HOUR_MS + 2000, HOUR + 5)
    started(notify(airflow, job.job, job.frame(HOUR), asset="flights_hours"))
    until(lambda: len(airflow.runs("follower")) == 2, "the follower has a run for the correction", 60)
    [correction] = airflow.runs("follower").keys() - {follower}
    airflow.ended("follower", correction)
    assert airflow.result("follower", correction, "follow") == "2026-03-31T01:00:00Z generation 2"


def test_a_day_of_23_hours_starts_one_run(airflow: Airflow, http: httpx.Client) -> None:
    airflow.unpause("daily")
    job = Loader(http, "days", every="day", time_zone="America/New_York")
    day = at("2026-03-08T00:00:00-05:00")
    job.commit("HNL", day + 1000)
    job.commit("HNL", day + 23 * HOUR_MS + 1000)
    run = started(notify(airflow, job.job, job.frame(day), dag="daily"))
    airflow.ended("daily", run)
    assert airflow.result("daily", run, "report") == "2026-03-08T05:00:00+00:00: 23 hours"


def test_both_hours_of_a_clock_change_have_a_run(airflow: Airflow, http: httpx.Client) -> None:
    """In Zurich, 02:00 occurs twice on 25 October 2026."""
    airflow.unpause("hourly")
    job = Loader(http, "twice", every="hour")
    hours = [at("2026-10-25T02:00:00+02:00"), at("2026-10-25T02:00:00+01:00")]
    for hour in hours:
        job.finish(hour)
    runs = [started(notify(airflow, job.job, job.frame(hour), dag="hourly")) for hour in hours]
    for run in runs:
        airflow.ended("hourly", run)
    found = airflow.runs("hourly")
    keys = [found[run]["partition_key"] for run in runs]
    assert keys == ["2026-10-25T00:00:00+0000", "2026-10-25T01:00:00+0000"]


@pytest.mark.parametrize(
    ("user", "target", "status"),
    [
        ("joe", {"dag": "hourly"}, 200),
        ("joe", {"asset": "flights_hours"}, 403),
        ("ops", {"asset": "flights_hours"}, 200),
    ],
)
def test_a_notifier_needs_the_documented_role(
    airflow: Airflow, http: httpx.Client, user: str, target: dict[str, str], status: int
) -> None:
    job = Loader(http, f"rights-{user}-{next(iter(target))}", every="hour")
    job.finish(HOUR)
    airflow.unpause("hourly", "relay")
    own = dict(airflow.http.headers)
    airflow.http.headers.update(airflow.token(user))
    try:
        assert notify(airflow, job.job, job.frame(HOUR), **target).status_code == status
    finally:
        airflow.http.headers.update(own)


def test_the_bridge_starts_each_run_once(airflow: Airflow, http: httpx.Client) -> None:
    """Also if its position is lost, and if a run exists already."""
    airflow.unpause("hourly")
    job = Loader(http, "flights", every="hour")
    # Airflow renders the arguments of the operator, and this name is not meant as a template.
    job.commit("{{ 1 / 0 }}", HOUR + 1000)
    job.finish(HOUR, substream="HNL")
    http.post(f"{job.path}/substreams:idle", json={"query": "loader", "substreams": ["{{ 1 / 0 }}"]}).raise_for_status()
    job.commit("HNL", HOUR + HOUR_MS + 2000)
    assert job.frame(HOUR)["state"] == "complete_with_exclusions"

    def bridge(state: str = "success") -> str:
        run = airflow.trigger("bridge")
        airflow.ended("bridge", run, state)
        return run

    def position() -> Any:
        return airflow.get(f"variables/{POSITION}")["value"]

    def flights() -> list[str]:
        return sorted(run for run in airflow.runs("hourly") if run.startswith("flights__"))

    first = "flights__2026-03-31T01:00:00Z__g1"
    airflow.unpause("bridge")
    bridge()
    assert flights() == [first]
    airflow.ended("hourly", first)
    [exclusion] = airflow.runs("hourly")[first]["conf"]["exclusions"]
    assert exclusion["substreams"][0]["substream"] == "loader/{{ 1 / 0 }}"
    before = position()
    bridge()
    assert (flights(), position()) == ([first], before)
    job.finish(HOUR + HOUR_MS, late=(HOUR + 5,))
    expected = [first, "flights__2026-03-31T01:00:00Z__g2", "flights__2026-03-31T02:00:00Z__g1"]
    started(notify(airflow, job.job, job.frame(HOUR), dag="hourly"))
    bridge()
    assert flights() == expected
    assert airflow.call("DELETE", f"variables/{POSITION}").status_code == 204
    bridge()
    assert flights() == expected
    for run in expected:
        airflow.ended("hourly", run)


def test_a_sensor_waits_for_the_data_interval_of_a_scheduled_dag(airflow: Airflow, http: httpx.Client) -> None:
    """The sensors of the documentation wait for the job `flights`, which the test before has created."""
    airflow.unpause("by_schedule", "waiting")
    hour = {"data_interval_start": "2026-03-31T01:00:00Z", "data_interval_end": "2026-03-31T02:00:00Z"}
    run = airflow.trigger("by_schedule", logical_date="2026-03-31T01:00:00Z", **hour)
    airflow.ended("by_schedule", run)
    assert airflow.result("by_schedule", run, "process") == "complete_with_exclusions, generation 2"
    day = {"data_interval_start": "2026-03-31T00:00:00Z", "data_interval_end": "2026-03-31T00:00:00Z"}
    run = airflow.trigger("waiting", logical_date="2026-03-31T00:00:00Z", **day)
    airflow.ended("waiting", run)
    assert airflow.result("waiting", run, "report").startswith("written up to 17749")
